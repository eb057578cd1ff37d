"""A prompt that an engine does not take is left out by name, and the others are warmed."""

from __future__ import annotations

import msgspec
import pytest

from kvrelease.artifacts import JsonObject, Verdict
from kvrelease.binding.left_out import Why, left_out_for
from kvrelease.engines.base import EngineClient, EngineKind
from kvrelease.errors import (
    ExitCode,
    KvreleaseError,
    PromptTooLong,
    Refused,
    Unreachable,
    UsageError,
    WrongModel,
)
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.prewarm.result import PrewarmPlan, PrewarmReport, ReplicaResult
from kvrelease.prewarm.run import plan_only
from kvrelease.report.prewarm import plan_document
from kvrelease.report.terminal import render_text
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet
from tests.engines.scripted import Break, ScriptedEngine
from tests.engines.scripted_routes import GENERATIONS
from tests.report.pages import page_of
from tests.verify.deployments import deployment, prompts, question, warmed, with_clients

PICTURE = "https://pictures.example/cat.png"
TOKENIZERS = ("/tokenize", "/apply-template")


def with_picture() -> PromptSet:
    """A prompt that shows a picture, and three that do not."""
    content = [{"type": "text", "text": question(99)}, {"type": "image_url", "image_url": {"url": PICTURE}}]
    body: JsonObject = {"messages": [{"role": "user", "content": content}]}
    shown = Prompt(id="picture", weight=99.0, kind=PromptKind.CHAT, body=body)
    return with_first(shown)


def with_first(prompt: Prompt) -> PromptSet:
    desks = prompts(per_desk=1)
    return msgspec.structs.replace(desks, prompts=(prompt, *desks.prompts))


def only(report: PrewarmReport) -> ReplicaResult:
    (found,) = report.replicas
    return found


def left_out(found: ReplicaResult) -> list[tuple[str, Why]]:
    return [(one.prompt, one.why) for one in found.skipped]


def codes(report: PrewarmReport | PrewarmPlan) -> set[int]:
    return {fault.exit_code for fault in report.faults}


def asks_for_the_picture(engine: ScriptedEngine) -> int:
    return sum(PICTURE in str(seen.body) for seen in engine.generations())


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (PromptTooLong("x"), Why.TOO_LONG),
        *((Refused("x", status=status), Why.REFUSED) for status in (400, 413, 422)),
        *((Refused("x", status=status), None) for status in (None, 401, 404, 429, 500, 503)),
        (Refused("x", status=400, was_throttled=True), None),
        (WrongModel("x"), None),
        (Unreachable("x"), None),
    ],
)
def test_what_is_about_the_prompt_and_what_about_the_server(error: KvreleaseError, why: Why | None) -> None:
    found = left_out_for(error, prompt="p")
    assert (None if found is None else found.why) is why


@pytest.mark.parametrize(("status", "route"), [(400, GENERATIONS), (422, TOKENIZERS)])
def test_a_prompt_that_is_refused_is_named_and_the_others_are_warm(status: int, route: tuple[str, ...]) -> None:
    with ScriptedEngine(release="new") as engine:
        engine.refused_text, engine.refused_status, engine.refused_on = PICTURE, status, route
        report = warmed(engine, deployed=deployment(prompt_set=with_picture()))
        found = only(report)
        assert left_out(found) == [("picture", Why.REFUSED)]
        assert (found.sent, found.errors, found.failed, found.fault) == (3, 0, (), None)
        assert (found.hit_rate_after, found.over_lower_bound) == (1.0, 1.0)
        assert asks_for_the_picture(engine) == (1 if route == GENERATIONS else 0), "no retry, and no second pass"
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "1 prompt was left out: picture, refused by the server (POST " in report.reason
    assert "At most 0 image(s)" in report.reason
    assert codes(report) == {ExitCode.INCONCLUSIVE}
    assert "left out, refused by the server: picture" in render_text(page_of(report), width=400)


def test_a_prompt_that_got_no_answer_and_is_then_refused_is_left_out_and_no_error() -> None:
    with ScriptedEngine(release="new") as engine:
        engine.refused_text = PICTURE
        engine.break_with(Break.CRASHING, times=1)
        pictured = deployment(prompt_set=with_picture())
        found = only(warmed(engine, deployed=pictured, max_retries=0, max_error_rate=0.5, concurrency=1))
        assert asks_for_the_picture(engine) == 2
    assert left_out(found) == [("picture", Why.REFUSED)]
    assert (found.errors, found.failed) == (0, ())


def test_a_prompt_whose_ids_are_not_told_costs_the_others_no_figures() -> None:
    with ScriptedEngine(EngineKind.LLAMACPP, release="new", slots=4, context_tokens=100_000) as engine:
        found = only(report := warmed(engine, deployed=deployment(prompt_set=with_picture())))
        assert left_out(found) == [("picture", Why.NO_IDS)]
        assert asks_for_the_picture(engine) == 0
    assert (found.hit_rate_after, found.over_lower_bound) == (1.0, 1.0)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert codes(report) == {ExitCode.INCONCLUSIVE}


def test_a_prompt_that_does_not_fit_the_context_that_is_told_is_left_out_and_is_the_sets_fault() -> None:
    long = Prompt(id="long", weight=99.0, kind=PromptKind.COMPLETIONS, body={"prompt": "w " * 500})
    with ScriptedEngine(release="new", context_tokens=400) as engine:
        found = only(report := warmed(engine, deployed=deployment(prompt_set=with_first(long))))
        assert len(engine.generations()) == 3 + 2 + 3 + 3, "nothing of it is sent"
    assert left_out(found) == [("long", Why.TOO_LONG)]
    assert (found.sent, found.hit_rate_after) == (3, 1.0)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "tokens and 1 to generate, where 400 fit" in report.reason
    assert codes(report) == {ExitCode.INPUT}


def test_what_is_left_out_counts_against_the_error_rate_together_with_errors() -> None:
    for rate, fails, verdict in ((0.25, 0, Verdict.PASS), (0.24, 0, Verdict.INCONCLUSIVE), (0.5, 1, Verdict.PASS)):
        with ScriptedEngine(release="new") as engine:
            engine.refused_text, engine.refused_on = PICTURE, TOKENIZERS
            engine.break_with(Break.CRASHING, times=fails)
            asked = deployment(prompt_set=with_picture())
            report = warmed(engine, deployed=asked, max_error_rate=rate, max_retries=0)
        assert report.verdict is verdict, (rate, report.reason)
        assert only(report).errors == fails
        assert bool(codes(report)) is (verdict is not Verdict.PASS)
        assert "picture" in report.reason, "a pass says what it leaves out"


def test_a_server_that_refuses_everything_ends_the_run_at_the_control() -> None:
    with ScriptedEngine(release="new") as engine:
        engine.refused_text = "messages"
        found = only(report := warmed(engine))
        assert len(engine.generations()) == 4, "three prompts and the control"
    assert found.fault is not None
    assert (report.verdict, codes(report)) == (Verdict.INCONCLUSIVE, {ExitCode.SERVICE, ExitCode.INCONCLUSIVE})


def test_a_tokenizer_that_refuses_every_prompt_ends_the_replicas_preparation() -> None:
    with ScriptedEngine(release="new") as engine:
        engine.refused_text, engine.refused_on = "messages", TOKENIZERS
        with pytest.raises(Refused, match=r"all prompts were refused, of which the first is 'returns-.': POST "):
            warmed(engine)
        assert not engine.generations()


def test_an_error_says_which_prompt_it_is_about() -> None:
    with ScriptedEngine(release="new") as engine:
        engine.break_with(Break.CRASHING)
        fault = only(warmed(engine, max_retries=0)).fault
    assert fault is not None
    assert fault.message.startswith("prompt 'returns-0': POST ")


@pytest.mark.parametrize("place", ["the prompt set", "production.body in kvrelease.yaml"])
def test_a_body_that_has_engines_skip_their_cache_is_refused_before_anything_is_sent(place: str) -> None:
    asked = deployment()
    if place == "the prompt set":
        first, *rest = prompts().prompts
        first = msgspec.structs.replace(first, body=first.body | {"echo": True})
        asked = deployment(prompt_set=msgspec.structs.replace(prompts(), prompts=(first, *rest)))
    else:
        production = msgspec.structs.replace(asked.production, body={"echo": True})
        asked = msgspec.structs.replace(asked, production=production)
    with ScriptedEngine(release="new") as engine:
        with pytest.raises(UsageError, match=f"prompt 'returns-0' asks for `echo`, from {place}"):
            warmed(engine, deployed=asked)
        assert not engine.generations()


def test_a_dry_run_tells_what_would_be_left_out() -> None:
    async def main(clients: list[EngineClient]) -> PrewarmPlan:
        with Ledger(IN_MEMORY) as ledger:
            return await plan_only(clients, deployment=deployment(prompt_set=with_picture()), ledger=ledger)

    with ScriptedEngine(release="new") as engine:
        engine.refused_text, engine.refused_on = PICTURE, TOKENIZERS
        plan = with_clients([engine], main)
        assert not engine.generations()
    assert [(one.prompt, one.why) for one in plan.replicas[0].skipped] == [("picture", Why.REFUSED)]
    assert (plan.plan.prompts, codes(plan)) == (3, {ExitCode.INCONCLUSIVE})
    assert "left out, refused by the server: picture" in render_text(plan_document(plan), width=400)
