"""Answers that no engine computed are noticed, and what merely looks like them is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from kvrelease.artifacts import Verdict
from kvrelease.engines.base import EngineKind, Observation
from kvrelease.errors import InputError
from kvrelease.ledger.records import CacheOrigin
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.evidence import ControlEvidence, Isolation, Limits, ProbeEvidence, ReplicaEvidence
from kvrelease.verify.judge import VerifyReport, judge
from kvrelease.verify.kept_answers import kept_answers
from kvrelease.verify.next_step import Action
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.response_cache import check_response_cache
from kvrelease.verify.twins import Twins
from tests.engines.response_cache import CachingGateway
from tests.engines.scripted import ScriptedEngine
from tests.verify.builders import CONTROL, PROMPT_TOKENS, evidence, identity, leg, observation, probe, replica
from tests.verify.deployments import deployment, prompts, recorded, verified

FLOOR = NoiseFloor(pairs=8, p50=0.0, max=0.0, quantum=None)
SMALL = prompts(per_desk=2, desks=("returns", "billing"))
UNSALTED = deployment(prompt_set=SMALL)
LIMITS = Limits(stale_below=0.6)
BEGAN = 1_700_000_000.0


class Run:
    """Answers one after the other, one a second, each with an id of its own unless told otherwise."""

    def __init__(self, *, clock_s: float = 0.0) -> None:
        self.sent = 0
        self.clock_s = clock_s

    def answer(
        self, *, name: str | None = "", created: int | None = -1, shift: float = 0.0, text: str = "a", **told: object
    ) -> Observation:
        """`name` "" for an id that no other has; `created` -1 for the time it is by the server's clock."""
        at = BEGAN + self.sent
        self.sent += 1
        seen = replace(
            observation(shift, texts=(text, f"answer-{self.sent}")),
            id=f"id-{self.sent}" if name == "" else name,
            created=int(at + 0.1 + self.clock_s) if created == -1 else created,
            sent_at=at,
            total_s=0.2,
        )
        return replace(seen, **told)

    def probes(self, count: int = 5) -> list[ProbeEvidence]:
        return [self.probe(f"p{number}", self.answer()) for number in range(count)]

    def probe(self, name: str, *production: Observation, clean: Sequence[Observation] | None = None) -> ProbeEvidence:
        twins = [self.answer(), self.answer()] if clean is None else clean
        return probe(
            name,
            production=[leg(seen=seen) for seen in production],
            cold=leg(seen=twins[0], cached=0),
            clean=[leg(seen=seen) for seen in twins[1:]],
        )


def checked(probes: Sequence[ProbeEvidence], *, evidence: ReplicaEvidence | None = None) -> Check:
    base = evidence or replica(binding=None, control=None)
    seen = replace(base, probes=tuple(probes))
    return check_response_cache(seen, kept_answers(seen), floor=FLOOR)


def test_answers_with_ids_and_times_of_their_own_show_no_sign() -> None:
    found = checked(Run().probes())
    assert found.verdict is CheckVerdict.PASS
    assert found.detail == "no sign of one in 15 answers (15 ids, the times of the answers)"


def test_where_nothing_would_show_a_cache_nothing_is_claimed() -> None:
    found = checked([probe("p0"), probe("p1")])
    assert found.verdict is CheckVerdict.NOTE
    assert "cannot be told" in found.detail


def test_a_header_of_a_hit_is_named_with_the_way_past_that_product() -> None:
    run = Run()
    told = run.answer(cached_in_front="LiteLLM answered from what it had kept (header x-litellm-cache-key)")
    found = checked([*run.probes(), run.probe("kept", told)])
    assert found.verdict is CheckVerdict.INCONCLUSIVE
    assert "1 of 18 answers were not computed for this run: LiteLLM answered" in found.detail
    assert '`cache: {"no-cache": true}`' in found.detail


def test_a_kept_answer_that_is_not_the_engines_fails() -> None:
    run = Run()
    told = run.answer(shift=0.6, cached_in_front="A CDN answered from what it had kept (header x-cache)")
    found = checked([*run.probes(), run.probe("kept", told)])
    assert found.verdict is CheckVerdict.FAIL
    assert "1 of 6 probes get another answer than the engine gives (such as kept)" in found.detail


def test_the_next_step_is_the_response_cache_because_a_flush_would_change_nothing_of_what_users_get() -> None:
    run = Run()
    told = run.answer(shift=0.6, cached_in_front="A CDN answered from what it had kept (header x-cache)")
    report = judge(evidence(replica([*run.probes(), run.probe("kept", told)], control=None, binding=None)))
    assert [step.action for step in report.diagnosis[0].next_steps] == [Action.FRONT]


def test_without_log_probabilities_another_text_is_told_and_proves_no_other_release() -> None:
    run = Run()
    kept = run.answer(text="old", tokens=(), cached_in_front="A CDN answered from what it had kept (header age)")
    same = [replace(run.answer(tokens=()), text="new") for _ in range(2)]
    found = checked([*run.probes(), run.probe("kept", kept, clean=same)])
    assert found.verdict is CheckVerdict.INCONCLUSIVE
    assert "1 probes get another text than the engine gives" in found.detail
    wavering = [same[0], replace(same[1], text=kept.text)]
    assert "another text" not in checked([*run.probes(), run.probe("kept", kept, clean=wavering)]).detail


def test_one_answer_for_two_prompts_is_a_semantic_cache() -> None:
    run = Run()
    kept = run.answer()
    again = replace(kept, sent_at=run.answer().sent_at)
    found = checked([*run.probes(), run.probe("asked", kept), run.probe("similar", again)])
    assert found.verdict is CheckVerdict.INCONCLUSIVE
    assert "two different prompts got one answer, with one id" in found.detail


def test_the_same_answer_with_its_id_when_asked_again_was_kept() -> None:
    run = Run()
    kept = run.answer()
    found = checked([*run.probes(), run.probe("p", kept, replace(kept, sent_at=run.answer().sent_at))])
    assert found.verdict is CheckVerdict.INCONCLUSIVE
    assert "asked again, and the same answer came back with its id" in found.detail


@pytest.mark.parametrize("name", ["cmpl-scripted", "chatcmpl-of-a-client's-header"])
def test_ids_that_are_constant_prove_nothing(name: str) -> None:
    run = Run()
    constant = [run.probe(f"p{number}", run.answer(name=name), run.answer(name=name)) for number in range(3)]
    assert checked([*run.probes(), *constant]).verdict is CheckVerdict.PASS


def test_one_id_for_each_prompt_proves_nothing_where_the_second_answer_hit_more() -> None:
    run = Run()
    cold = run.answer(name="hash-of-the-prompt", cached_tokens=0)
    warm = replace(run.answer(), id=cold.id, text=cold.text, tokens=cold.tokens, created=cold.created, cached_tokens=96)
    assert checked([*run.probes(), run.probe("p", cold, warm)]).verdict is CheckVerdict.PASS


def without_twins(*seen: Observation) -> list[ProbeEvidence]:
    """Probes of which only users' answers are there."""
    made = (probe(f"p{number}", production=[leg(seen=one)]) for number, one in enumerate(seen))
    return [replace(one, cold=None, clean=()) for one in made]


@pytest.mark.parametrize("starts", [(1,), (1_600_000_000, 1_650_000_000)], ids=["constant", "of two processes"])
def test_a_constant_created_and_start_times_are_no_clock(starts: tuple[int, ...]) -> None:
    run = Run()
    seen = [run.answer(name=None, created=starts[number % len(starts)]) for number in range(9)]
    assert checked(without_twins(*seen)).verdict is CheckVerdict.NOTE


@pytest.mark.parametrize("clock_s", [0.0, -3600.0, 86_400.0, 0.95])
def test_an_answer_from_before_the_run_is_found_whatever_the_servers_clock_says(clock_s: float) -> None:
    run = Run(clock_s=clock_s)
    computed = run.probes()
    assert checked(computed).verdict is CheckVerdict.PASS
    for age_s, expected in ((600, CheckVerdict.INCONCLUSIVE), (0, CheckVerdict.PASS)):
        kept = run.answer(created=int(BEGAN + clock_s) - age_s)
        found = checked([*computed, run.probe("kept", kept)])
        assert found.verdict is expected, found.detail
        assert ("made before the run began" in found.detail) == (expected is CheckVerdict.INCONCLUSIVE)


def test_a_second_process_whose_clock_is_behind_is_no_cache() -> None:
    run = Run()
    computed = run.probes()
    late = [run.answer(created=int(BEGAN + run.sent - 600)) for _ in range(6)]
    found = checked([*computed, *(run.probe(f"late-{number}", seen) for number, seen in enumerate(late))])
    assert found.verdict is CheckVerdict.PASS, found.detail


def test_in_process_nothing_is_in_front() -> None:
    who = identity(kind=EngineKind.LOCAL)
    found = checked(Run().probes(), evidence=replica(who=who, control=None, binding=None))
    assert (found.verdict, found.detail) == (CheckVerdict.NOTE, "in process: nothing is in front")


def test_an_answer_older_than_the_engines_process_fails_even_where_it_is_the_same() -> None:
    run = Run()
    kept = run.answer(created=int(BEGAN) - 600)
    who = replace(identity(), process=f"started:{BEGAN - 60:.2f}")
    found = checked([*run.probes(), run.probe("kept", kept)], evidence=replica(who=who, control=None, binding=None))
    assert found.verdict is CheckVerdict.FAIL
    assert "1 answers are older than the engine's process" in found.detail


def test_usage_without_a_prompt_is_a_sign_only_where_others_have_one() -> None:
    run = Run()
    free = run.answer(prompt_tokens=0)
    assert checked([*run.probes(), run.probe("p", free)]).verdict is CheckVerdict.INCONCLUSIVE
    assert checked(without_twins(*(run.answer(prompt_tokens=0) for _ in range(5)))).verdict is CheckVerdict.PASS


def test_a_control_that_the_engine_never_saw_twice_is_told() -> None:
    for counted, expected in (
        (None, CheckVerdict.PASS),
        (2.0 * PROMPT_TOKENS, CheckVerdict.PASS),
        (9.0 * PROMPT_TOKENS, CheckVerdict.PASS),  # others use the engine too
        (2.0 * PROMPT_TOKENS - 1, CheckVerdict.PASS),
        (1.0 * PROMPT_TOKENS, CheckVerdict.INCONCLUSIVE),
        (0.0, CheckVerdict.INCONCLUSIVE),
    ):
        control = ControlEvidence(legs=CONTROL.legs, counted_hits=0.0, counted_queries=counted)
        run = Run()
        plain = replica(control=control, binding=None)
        probes = without_twins(*(run.answer() for _ in range(5)))
        assert checked(probes, evidence=plain).verdict is expected, counted


def test_answers_of_another_server_are_not_compared_with_the_replicas() -> None:
    run, other = Run(), Run(clock_s=-5000.0)
    probes = [run.probe(f"p{n}", run.answer(), clean=[other.answer(), other.answer()]) for n in range(5)]
    own = replica(isolation=Isolation.REFERENCE, control=None, binding=None, reference=identity("http://two:8000"))
    assert checked(probes, evidence=own).verdict is CheckVerdict.PASS


# --- through a real gateway ------------------------------------------------------------------------------------------


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(IN_MEMORY) as store:
        yield store


def response_cache(report: VerifyReport) -> Check:
    return next(one for one in report.checks if one.id is CheckId.RESPONSE_CACHE)


def test_a_gateway_that_keeps_nothing_shows_no_sign() -> None:
    with ScriptedEngine(release="new") as engine, CachingGateway(engine, keeps=False) as gateway:
        report = verified(gateway, deployed=UNSALTED, limits=LIMITS)
    assert response_cache(report).verdict is CheckVerdict.PASS
    assert report.verdict is Verdict.PASS, report.reason


@pytest.mark.parametrize("says", [{}, {"x-aisix-cache": "hit"}], ids=["silent", "told"])
def test_e15_a_gateway_that_keeps_the_old_models_answers_fails(says: dict[str, str]) -> None:
    """https://github.com/api7/aisix/issues/89: for its time to live the cache answers as the old model did.

    https://github.com/EleutherAI/lm-evaluation-harness/issues/4063, https://github.com/qcri/LLMeBench/issues/12,
    https://github.com/EvolvingLMMs-Lab/lmms-eval/pull/1149: a cache that is not keyed by the model.
    """
    with ScriptedEngine(release="old") as engine, CachingGateway(engine, says=says) as gateway:
        recorded(gateway, deployed=deployment("old", prompt_set=SMALL))
        engine.restart("new")
        report = verified(gateway, deployed=UNSALTED, limits=LIMITS)
    found = response_cache(report)
    assert report.verdict is Verdict.FAIL
    assert found.verdict is CheckVerdict.FAIL
    assert "another answer than the engine gives" in found.detail
    assert ("AISIX answered" in found.detail) == bool(says)


def test_what_kept_answers_tell_of_hits_is_no_hit_on_a_fresh_engine() -> None:
    """The same release, restarted: what users hit then, an earlier process computed, and no cache here is dirty."""
    with ScriptedEngine(release="new") as engine, CachingGateway(engine, says={"x-cache": "HIT"}) as gateway:
        recorded(gateway, deployed=UNSALTED)
        engine.restart()
        report = verified(gateway, deployed=UNSALTED, limits=LIMITS)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert next(one for one in report.checks if one.id is CheckId.FIRST_TOUCH).verdict is CheckVerdict.INCONCLUSIVE
    assert {probe.foreign_tokens for probe in report.probes} == {None}


def test_a_gateway_that_does_not_know_the_salt_makes_no_pass_and_teaches_the_ledger_nothing(ledger: Ledger) -> None:
    """Its replays would pass for cold legs: they carry the usage of the first answer."""
    with ScriptedEngine(release="new") as engine, CachingGateway(engine, passes_over=("cache_salt",)) as gateway:
        report = verified(gateway, deployed=UNSALTED, limits=LIMITS, ledger=ledger)
        process = f"started:{engine.started:.2f}"
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "asked again, and the same answer came back with its id" in response_cache(report).detail
    origin = CacheOrigin(replica=gateway.url, process=process, key_space=None, namespace=UNSALTED.namespace)
    assert ledger.computed_prefixes(origin) == frozenset()


def test_a_kept_answer_that_tells_of_a_hit_is_no_ignored_salt() -> None:
    salted = deployment(salt="release", prompt_set=SMALL)
    with ScriptedEngine(release="new") as engine, CachingGateway(engine, passes_over=("cache_salt",)) as gateway:
        recorded(engine, deployed=salted)
        report = verified(gateway, deployed=salted, limits=LIMITS)
    binding = next(one for one in report.checks if one.id is CheckId.BINDING)
    assert binding.verdict is CheckVerdict.INCONCLUSIVE, binding.detail
    assert "ignores the salt" not in binding.detail
    assert "A response cache gave" in binding.detail
    assert report.binding.bound is None
    assert report.verdict is not Verdict.PASS


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.OPENAI])
def test_a_semantic_cache_is_found_where_two_prompts_get_one_answer(kind: EngineKind) -> None:
    with ScriptedEngine(kind, release="new") as engine, CachingGateway(engine, is_semantic=True) as gateway:
        report = verified(gateway, deployed=UNSALTED, limits=LIMITS)
    assert report.verdict is not Verdict.PASS
    assert "two different prompts got one answer, with one id" in response_cache(report).detail


def test_a_golden_record_of_kept_answers_is_refused() -> None:
    with ScriptedEngine(release="new") as engine, CachingGateway(engine, says={"age": "9"}) as gateway:
        recorded(gateway, deployed=UNSALTED)
        kept = recorded(gateway, deployed=UNSALTED)
        with pytest.raises(InputError, match=r"--golden: An HTTP cache answered from what it had kept"):
            verified(engine, deployed=UNSALTED, limits=LIMITS, twins=Twins(golden=kept))
