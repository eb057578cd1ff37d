"""The whole gate on servers that tell few candidates of a token, or no log-probabilities at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvrelease.artifacts import Verdict
from kvrelease.report.document import Facts
from kvrelease.report.verify import verify_document
from kvrelease.verify.checks import CheckId
from kvrelease.verify.distance import cut_to
from kvrelease.verify.evidence import Limits
from kvrelease.verify.judge import VerifyReport, judge
from kvrelease.verify.next_step import Action
from kvrelease.verify.repeats import REPEATS
from tests.engines.scripted import Generation, ScriptedEngine
from tests.verify.builders import evidence, leg, observation, probe, repeats, replica
from tests.verify.deployments import deployment, prompts, serve_users, verified

SMALL = prompts(per_desk=2)
LIMITS = Limits(stale_below=0.4)
UNSALTED = deployment(prompt_set=SMALL)


class Capped(ScriptedEngine):
    """Behind a gateway that lets so many candidates through; none for no log-probabilities."""

    def __init__(self, most: int) -> None:
        super().__init__(release="old")
        self.most = most

    def generate(self, prompt: Sequence[int], body: dict[str, Any]) -> Generation:
        made = super().generate(prompt, body)
        body["top_logprobs"] = min(self.most, body.get("top_logprobs", 0))
        body["logprobs"] = self.most > 0
        return made


def judged(most: int, *, is_stale: bool) -> VerifyReport:
    with Capped(most) as engine:
        if is_stale:
            serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        return verified(engine, deployed=UNSALTED, limits=LIMITS)


def consistency(report: VerifyReport) -> str:
    return next(check.detail for check in report.checks if check.id is CheckId.CONSISTENCY)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_few_candidates_tell_stale_from_clean_on_a_quiet_engine(most: int) -> None:
    clean, stale = (judged(most, is_stale=is_stale) for is_stale in (False, True))
    assert (clean.verdict, stale.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert clean.noise_floor.candidates == most


def test_without_log_probabilities_nothing_passes_and_the_next_step_is_to_have_them_answered() -> None:
    clean = judged(0, is_stale=False)
    assert clean.verdict is Verdict.INCONCLUSIVE
    assert clean.noise_floor.candidates is None
    assert "have the server answer with log-probabilities" in consistency(clean)


def test_another_text_alone_never_passes_and_names_no_quiet_engine_as_the_way() -> None:
    silent, other = observation(logprobs=False), observation(texts=("z",), logprobs=False)
    clean = [leg(seen=silent)] * REPEATS
    suspect = probe(
        production=[leg(seen=other)],
        cold=leg(seen=silent, cached=0),
        clean=clean[:1],
        repeats=repeats(*[leg(seen=other)] * REPEATS, clean=clean),
    )
    report = judge(evidence(replica([suspect], control=None)))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "have the server answer with log-probabilities" in consistency(report)
    (step,) = report.diagnosis[0].next_steps
    assert (step.action, "log-probabilities" in step.text) == (Action.ASK_AGAIN, True)


def test_the_page_says_how_few_candidates_are_told() -> None:
    few = leg(seen=cut_to(observation(), 3))
    report = judge(evidence(replica([probe(production=[few])])))
    (facts,) = [block for block in verify_document(report).blocks if isinstance(block, Facts)]
    assert "of each token 3 candidates are told" in str(dict(facts.pairs)["noise floor"])
