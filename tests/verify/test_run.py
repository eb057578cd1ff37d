"""The gate on real (scripted) servers over sockets: what an operator would see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from kvrelease import artifacts
from kvrelease.artifacts import Fault, Verdict
from kvrelease.engines.base import EngineClient, EngineKind
from kvrelease.errors import InputError, PromptSetError
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.progress import ProgressEvent
from kvrelease.verify.checks import CheckId, CheckVerdict
from kvrelease.verify.consistency import ProbeVerdict
from kvrelease.verify.evidence import Evidence, Isolation, Limits, RungOutcome
from kvrelease.verify.exposure import SpaceVerdict
from kvrelease.verify.judge import judge
from kvrelease.verify.legs import LAST_LOOKS
from kvrelease.verify.run import Observed, conclude, observe
from kvrelease.verify.twins import Twins
from tests.engines.never_hits import NeverHits
from tests.engines.scripted import Break, Generation, ScriptedEngine
from tests.verify.deployments import (
    deployment,
    namespace_of,
    observed,
    prompts,
    recorded,
    serve_users,
    verified,
    warmed,
    with_clients,
)
from tests.verify.scenarios.verdicts import check

# Two prefixes show what one would not; a third takes a third of the time.
TWO_DESKS = ("returns", "repairs")
SMALL = prompts(per_desk=2, desks=TWO_DESKS)
# Four clean probes prove less than 53 %.
LIMITS = Limits(stale_below=0.53)
UNSALTED = deployment(prompt_set=SMALL)
SALTED = deployment(salt="release", prompt_set=SMALL)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(IN_MEMORY) as store:
        yield store


def reloaded(**settings: Any) -> ScriptedEngine:
    return ScriptedEngine(release="old", **settings)


def make_stale(engine: ScriptedEngine) -> None:
    """The incident: users of the old release filled the cache, then the weights were swapped in place."""
    serve_users(engine, prompt_set=SMALL)
    engine.reload("new")


# --- the incident ---------------------------------------------------------------------------------------------------


def test_unsalted_after_a_reload_fails_lists_the_probes_and_says_the_namespace_would_be_clean() -> None:
    with reloaded() as engine:
        make_stale(engine)
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        assert "consistency" in report.reason
        assert {probe.prefix for probe in report.probes if probe.verdict is ProbeVerdict.STALE} == set(TWO_DESKS)
        exposure = check(report, CheckId.EXPOSURE)
        assert "the release's own namespace, which would be clean" in exposure.detail


def test_unsalted_fails_also_when_somebody_prewarmed_the_namespace_first(ledger: Ledger) -> None:
    with reloaded() as engine:
        make_stale(engine)
        assert warmed(engine, deployed=SALTED, ledger=ledger).verdict is Verdict.PASS
        report = verified(engine, deployed=UNSALTED, ledger=ledger, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        assert [one.verdict for one in report.exposure if one.key_space == SALTED.namespace] == [SpaceVerdict.CLEAN]


def test_salted_passes_with_binding_proved_and_exposes_the_unsalted_space(ledger: Ledger) -> None:
    with reloaded() as engine:
        make_stale(engine)
        warmed(engine, deployed=SALTED, ledger=ledger)
        report = verified(engine, deployed=SALTED, ledger=ledger, limits=LIMITS)
        assert report.verdict is Verdict.PASS, report.reason
        assert report.binding.bound
        assert check(report, CheckId.RESIDENCY).verdict is CheckVerdict.PASS
        assert [(one.key_space, one.verdict) for one in report.exposure] == [(None, SpaceVerdict.STALE)]
        assert "unsalted requests would meet a stale prefix" in report.reason


def test_a_previous_namespace_that_the_ledger_knows_is_probed_as_exposure(ledger: Ledger) -> None:
    made, _ = ledger.namespace(kv_name="kv1-old", runtime="undeclared", made_by="prewarm")
    before = deployment("old", salt=made.namespace, prompt_set=SMALL)
    assert before.namespace == made.namespace
    with reloaded() as engine:
        warmed(engine, deployed=before, ledger=ledger)
        engine.reload("new")
        report = verified(engine, deployed=SALTED, ledger=ledger, limits=LIMITS)
        assert report.verdict is Verdict.PASS, report.reason
        assert (made.namespace, SpaceVerdict.STALE) in [(one.key_space, one.verdict) for one in report.exposure]


def test_staleness_under_one_prefix_only_is_found() -> None:
    """https://github.com/promptfoo/promptfoo/pull/9066: a rate over all hides one that always fails."""
    with reloaded() as engine:
        serve_users(engine, prompt_set=prompts(per_desk=1, desks=("repairs",)))
        engine.reload("new")
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        assert {probe.prefix for probe in report.probes if probe.verdict is ProbeVerdict.STALE} == {"repairs"}


def test_noise_alone_does_not_fail_a_clean_engine_and_does_not_hide_a_stale_one() -> None:
    with ScriptedEngine(release="new", noise=True) as clean, reloaded(noise=True) as stale:
        serve_users(clean, prompt_set=SMALL)
        make_stale(stale)
        assert verified(clean, deployed=UNSALTED, limits=LIMITS).verdict is not Verdict.FAIL
        assert verified(stale, deployed=UNSALTED, limits=LIMITS).verdict is Verdict.FAIL


# --- salts that do nothing ------------------------------------------------------------------------------------------


def test_an_ignored_salt_fails_binding_and_the_bypass_stands_in() -> None:
    with reloaded(ignores_salt=True) as engine:
        make_stale(engine)
        report = verified(engine, deployed=SALTED, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        assert check(report, CheckId.BINDING).verdict is CheckVerdict.FAIL
        assert check(report, CheckId.CONSISTENCY).verdict is CheckVerdict.FAIL
        assert "reference legs by bypass" in check(report, CheckId.BYPASS).detail


def test_a_store_below_that_ignores_salts_is_found_through_the_bypass() -> None:
    store: dict[str, str] = {}
    with reloaded(store=store) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.restart("new")
        report = verified(engine, deployed=SALTED, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        # A fresh process, and a store that an earlier process of this release may have filled: what it answers decides.
        assert check(report, CheckId.FIRST_TOUCH).verdict is CheckVerdict.NOTE
        assert check(report, CheckId.CONSISTENCY).verdict is CheckVerdict.FAIL


class ReadOnlyStore(dict[str, str]):
    """A store that this process reads and does not write, as one mounted from the release before."""

    def setdefault(self, key: str, default: str = "", /) -> str:
        return self.get(key, default)


@pytest.mark.parametrize("desk", ["returns", "repairs"])
def test_a_layer_that_ignores_salts_is_found_by_any_probe_it_holds_though_a_nonce_is_bound(desk: str) -> None:
    store: dict[str, str] = {}
    with reloaded(store=store) as engine:
        serve_users(engine, prompt_set=prompts(per_desk=1, desks=(desk,)))
    with ScriptedEngine(release="new", store=ReadOnlyStore(store)) as engine:
        report = verified(engine, deployed=SALTED, limits=LIMITS)
        binding = check(report, CheckId.BINDING)
        assert binding.verdict is CheckVerdict.FAIL
        assert "ignores the salt" in binding.detail
        assert f"{desk}-" in binding.detail


def test_a_salt_that_is_ignored_shows_without_token_ids_as_well() -> None:
    with NoTokenizer(release="new", ignores_salt=True) as engine:
        (replica,) = observed(engine, deployed=UNSALTED, limits=LIMITS).evidence.replicas
        assert {leak.asked for leak in replica.leaks} == {"nonce"}
        salt = replica.rungs[0]
        assert (salt.isolation, salt.outcome, salt.failed) == (Isolation.FRESH_SALT, RungOutcome.GIVEN_UP, 0)
        assert "nonce hit" in salt.detail, "no reference leg is spent on what is known"


def test_without_token_ids_each_reference_leg_has_a_key_space_of_its_own_and_is_proved_cold_there() -> None:
    with NoTokenizer(release="new") as engine:
        (replica,) = observed(engine, deployed=UNSALTED, limits=LIMITS).evidence.replicas
        assert replica.isolation is Isolation.FRESH_SALT
        assert replica.leaks == ()
        assert len({probe.cold.key_space for probe in replica.probes if probe.cold is not None}) == len(SMALL)


class NoTokenizer(ScriptedEngine):
    """Behind a gateway that lets nothing but `/v1` through."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.break_with(Break.NO_ROUTE, path="/tokenize")


def test_a_fresh_process_over_the_store_of_its_own_release_passes() -> None:
    with ScriptedEngine(release="new", store={}) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.restart()
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.PASS, report.reason
        assert "hit tokens are of unknown origin" in report.reason


def test_a_clean_engine_over_a_store_that_ignores_salts_passes_by_bypass(ledger: Ledger) -> None:
    store: dict[str, str] = {}
    with ScriptedEngine(release="new", store=store) as engine:
        warmed(engine, deployed=UNSALTED, ledger=ledger)
        report = verified(engine, deployed=UNSALTED, ledger=ledger, limits=LIMITS)
        assert report.verdict is Verdict.PASS, report.reason
        assert "reference legs by bypass" in check(report, CheckId.BYPASS).detail


def test_without_any_isolation_a_clean_reference_engine_decides_and_without_one_nothing_does() -> None:
    with (
        reloaded(ignores_salt=True, honours_bypass=False) as engine,
        ScriptedEngine(release="new") as reference,
    ):
        make_stale(engine)
        alone = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert alone.verdict is Verdict.INCONCLUSIVE
        assert "--reference" in check(alone, CheckId.BYPASS).detail
        report = verified(engine, deployed=UNSALTED, limits=LIMITS, reference=reference)
        assert report.verdict is Verdict.FAIL
        assert check(report, CheckId.CONSISTENCY).verdict is CheckVerdict.FAIL


def test_a_llamacpp_reference_that_has_been_used_before_is_still_cold() -> None:
    with (
        ScriptedEngine(EngineKind.OPENAI, release="new") as engine,
        ScriptedEngine(EngineKind.LLAMACPP, release="new") as reference,
    ):
        serve_users(reference, prompt_set=SMALL)
        found = observed(engine, deployed=UNSALTED, limits=LIMITS, reference=reference)
        (replica,) = found.evidence.replicas
        assert replica.isolation is Isolation.REFERENCE
        assert all(probe.cold is not None and len(probe.clean) == 1 for probe in replica.probes)


# --- what hits tell -------------------------------------------------------------------------------------------------


def test_llamacpp_whose_prompts_alternate_still_shows_the_stale_slot_without_counters() -> None:
    import httpx

    files: dict[str, tuple[list[int], list[str]]] = {}
    kind = EngineKind.LLAMACPP
    # The prompt that is drawn first meets the slot; the next one, of another desk, wipes it.
    first = observed_order(SMALL)[0].rpartition("-")[0]
    with ScriptedEngine(kind, release="old", slot_files=files) as old:
        serve_users(old, prompt_set=prompts(per_desk=1, desks=(first,)))
        httpx.post(f"{old.url}/slots/0?action=save", json={"filename": "s"})
    with ScriptedEngine(kind, release="new", slot_files=files, has_metrics=False) as engine:
        httpx.post(f"{engine.url}/slots/0?action=restore", json={"filename": "s"})
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        assert check(report, CheckId.FIRST_TOUCH).verdict is CheckVerdict.NOTE


def observed_order(prompt_set: Any) -> list[str]:
    from kvrelease.verify.probes import draw

    return [prompt.id for prompt in draw(prompt_set.prompts, count=len(prompt_set), seed=0)]


def test_llamacpp_started_clean_and_prewarmed_passes(ledger: Ledger) -> None:
    with ScriptedEngine(EngineKind.LLAMACPP, release="new") as engine:
        warmed(engine, deployed=UNSALTED, ledger=ledger)
        report = verified(engine, deployed=UNSALTED, ledger=ledger, limits=LIMITS)
        assert report.verdict is Verdict.PASS, report.reason


def test_null_usage_and_no_metrics_are_inconclusive() -> None:
    """https://github.com/raullenchai/Rapid-MLX/issues/1641: a figure that a persisted cache made."""
    with ScriptedEngine(release="new", reports_cached_tokens=False, has_metrics=False) as engine:
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert check(report, CheckId.FIRST_TOUCH).verdict is CheckVerdict.INCONCLUSIVE


def test_null_usage_with_counters_finds_the_same() -> None:
    with reloaded(reports_cached_tokens=False) as stale, ScriptedEngine(release="new") as clean:
        make_stale(stale)
        assert verified(stale, deployed=UNSALTED, limits=LIMITS).verdict is Verdict.FAIL
        clean.reports_cached_tokens = False
        assert verified(clean, deployed=UNSALTED, limits=LIMITS).verdict is Verdict.PASS


def test_expect_cold_fails_on_any_hit_even_one_that_the_ledger_explains(ledger: Ledger) -> None:
    cold = msgspec.structs.replace(LIMITS, expects_cold=True)
    with ScriptedEngine(release="new") as engine:
        assert verified(engine, deployed=UNSALTED, ledger=ledger, limits=cold).verdict is Verdict.PASS
        report = verified(engine, deployed=UNSALTED, ledger=ledger, limits=cold)
        assert report.verdict is Verdict.FAIL
        assert check(report, CheckId.FIRST_TOUCH).verdict is CheckVerdict.FAIL


def test_a_cache_that_cannot_hit_is_inconclusive() -> None:
    with NeverHits(release="new") as engine:
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert check(report, CheckId.CONTROL).verdict is CheckVerdict.INCONCLUSIVE


class LateTier(ScriptedEngine):
    """A tier below whose look-up comes too late for the first request, and serves the ones after it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seen: set[tuple[int, ...]] = set()
        self.old: dict[str, str] = {}

    def generate(self, prompt: Any, body: Any) -> Generation:
        name = (*prompt[:40], *prompt[-8:])
        blocks: dict[str, str] = self.cache.blocks  # type: ignore[attr-defined]
        if self.release == "new" and name in self.seen and body.get("cache_salt") is None:
            blocks.update(self.old)
        self.seen.add(name)
        return super().generate(prompt, body)


def test_what_missed_at_first_and_is_stale_the_second_time_does_not_pass() -> None:
    with LateTier(release="old") as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.old = dict(engine.cache.blocks)  # type: ignore[attr-defined]
        engine.reload("new", reset=True)
        engine.seen.clear()
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        assert check(report, CheckId.FIRST_TOUCH).verdict is not CheckVerdict.FAIL


def test_of_each_prefix_up_to_six_what_missed_at_first_is_asked_again() -> None:
    desks = ("returns", "billing", "repairs", "sales", "parts")
    late = prompts(per_desk=1, desks=desks)
    with LateTier(release="old") as engine:
        serve_users(engine, prompt_set=prompts(per_desk=1, desks=("parts",)))
        engine.old = dict(engine.cache.blocks)  # type: ignore[attr-defined]
        engine.reload("new", reset=True)
        engine.seen.clear()
        report = verified(engine, deployed=deployment(prompt_set=late), limits=Limits(stale_below=0.5))
        assert report.verdict is Verdict.FAIL, report.reason
        assert {probe.prefix for probe in report.probes if probe.verdict is ProbeVerdict.STALE} == {"parts"}


def test_prefixes_beyond_that_are_told_as_not_covered() -> None:
    many = prompts(per_desk=1, desks=tuple(f"desk-{number}" for number in range(LAST_LOOKS + 2)))
    with ScriptedEngine(release="new") as engine:
        report = verified(engine, deployed=deployment(prompt_set=many), limits=Limits(stale_below=0.32))
        assert report.verdict is Verdict.PASS, report.reason
        assert any(one.startswith("what 2 shared prefixes that hit nothing at first") for one in report.not_covered)


@pytest.mark.parametrize(("is_stale", "verdict"), [(False, Verdict.PASS), (True, Verdict.FAIL)])
def test_a_first_upgrade_without_golden_or_baseline_is_gated_by_the_bypass_alone_and_says_what_it_did_not_cover(
    is_stale: bool, verdict: Verdict
) -> None:
    with reloaded(ignores_salt=True) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new", reset=not is_stale)
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is verdict, report.reason
        assert report.isolation[0].used is Isolation.BYPASS
        identity, power, origin = [one for one in report.not_covered if "--" in one]
        assert "whether the engine runs this release at all" in identity
        assert "whether staleness would show" in power
        assert "whether an answer that differs is the old release's" in origin


# --- golden, baseline -----------------------------------------------------------------------------------------------


def test_a_golden_record_proves_identity_and_a_baseline_names_the_old_weights() -> None:
    with ScriptedEngine(release="new") as staging, ScriptedEngine(release="old") as before:
        golden = recorded(staging, deployed=UNSALTED)
        baseline = recorded(before, deployed=deployment("old", prompt_set=SMALL))
        twins = Twins(golden=golden, baseline=baseline)
        with reloaded() as engine:
            make_stale(engine)
            report = verified(engine, deployed=UNSALTED, limits=LIMITS, twins=twins)
            assert check(report, CheckId.IDENTITY).verdict is CheckVerdict.PASS
            # Old KV under new weights is neither release's own answer, and nobody computed what it makes.
            assert {probe.closer_to for probe in report.probes} == {None}
        # Nobody reloaded at all.
        report = verified(before, deployed=UNSALTED, limits=LIMITS, twins=twins)
        assert check(report, CheckId.IDENTITY).verdict is CheckVerdict.FAIL
        assert "old weights" in check(report, CheckId.IDENTITY).detail


def test_a_baseline_of_another_kind_of_engine_is_no_witness_like_the_golden_record() -> None:
    with ScriptedEngine(release="new") as engine, ScriptedEngine(release="old") as before:
        golden = recorded(engine, deployed=UNSALTED)
        alike = recorded(before, deployed=deployment("old", prompt_set=SMALL))
        other = msgspec.structs.replace(alike, engine=msgspec.structs.replace(alike.engine, kind="llamacpp"))
        for baseline, witnesses in ((alike, len(SMALL.prompts)), (other, 0)):
            twins = Twins(golden=golden, baseline=baseline)
            (seen,) = observed(engine, deployed=UNSALTED, limits=LIMITS, twins=twins).evidence.replicas
            assert len(seen.old_pairs) == len(seen.probes)
            assert len(seen.old_identity_pairs) == min(witnesses, len(seen.probes))


def test_what_other_weights_computed_is_not_remembered_as_the_releases(ledger: Ledger) -> None:
    with ScriptedEngine(release="new", strength_nats=1.0) as staging:
        golden = recorded(staging, deployed=UNSALTED)
    with ScriptedEngine(release="old", strength_nats=1.0) as engine:
        report = verified(engine, deployed=UNSALTED, limits=LIMITS, twins=Twins(golden=golden), ledger=ledger)
        assert check(report, CheckId.IDENTITY).verdict is CheckVerdict.FAIL
        engine.reload("new")
        assert warmed(engine, deployed=UNSALTED, ledger=ledger).verdict is Verdict.FAIL


def test_records_of_something_else_are_refused() -> None:
    with ScriptedEngine(release="new") as engine:
        golden = recorded(engine, deployed=UNSALTED)
        other_prompts = deployment(prompt_set=prompts(per_desk=1))
        with pytest.raises(InputError, match="another prompt set"):
            verified(engine, deployed=other_prompts, twins=Twins(golden=golden))
        with pytest.raises(InputError, match="not of"):
            verified(engine, deployed=deployment("newer", prompt_set=SMALL), twins=Twins(golden=golden))
        with pytest.raises(InputError, match="itself"):
            verified(engine, deployed=UNSALTED, twins=Twins(baseline=golden))


def test_a_golden_from_a_dirty_process_is_refused() -> None:
    with reloaded() as engine:
        make_stale(engine)
        golden = recorded(engine, deployed=UNSALTED)
        assert golden.foreign_tokens
        with pytest.raises(InputError, match="proves nothing"):
            verified(engine, deployed=UNSALTED, twins=Twins(golden=golden))


# --- how much was asked ---------------------------------------------------------------------------------------------


def test_too_few_probes_are_inconclusive_and_say_what_they_prove() -> None:
    with ScriptedEngine(release="new") as engine:
        report = verified(engine, deployed=UNSALTED, limits=Limits(stale_below=0.05))
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "4 clean probes prove a stale share below 53%" in check(report, CheckId.CONSISTENCY).detail


def test_prompts_of_less_than_two_blocks_are_an_input_error() -> None:
    with ScriptedEngine(release="new", block_tokens=64) as engine, pytest.raises(PromptSetError, match="two blocks"):
        verified(engine, deployed=UNSALTED)


# --- several replicas, faults, Ctrl-C -------------------------------------------------------------------------------


def test_one_stale_replica_of_two_fails_and_is_named() -> None:
    with ScriptedEngine(release="new") as clean, reloaded() as stale:
        make_stale(stale)
        report = verified(clean, stale, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        assert check(report, CheckId.REPLICAS).detail == f"failed: {stale.url}"


def test_a_replica_that_dies_leaves_the_other_s_evidence_and_no_pass() -> None:
    with ScriptedEngine(release="new") as good, ScriptedEngine(release="new") as bad:
        bad.break_with(Break.CRASHING)
        found = observed(good, bad, deployed=SALTED, limits=LIMITS, max_retries=0)
        assert [fault.where for fault in found.faults] == [bad.url]
        assert found.faults[0].exit_code == 5
        report = judge(found.evidence)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert len([probe for probe in report.probes if probe.replica == good.url]) == len(SMALL)


@pytest.mark.parametrize("after", [1, 8, 20])
def test_ctrl_c_keeps_the_evidence_and_never_passes_or_fails(after: int, ledger: Ledger) -> None:
    async def main(clients: list[EngineClient]) -> Observed:
        task = asyncio.current_task()
        assert task is not None

        def stop(event: ProgressEvent) -> None:
            if event.done == after:
                task.cancel()

        return await observe(clients, deployment=SALTED, ledger=ledger, limits=LIMITS, twins=Twins(), progress=stop)

    with ScriptedEngine(release="new") as engine:
        found = with_clients([engine], main)
        assert found.evidence.interrupted
        assert found.evidence.cost.requests >= after
        rungs = found.evidence.replicas[0].rungs
        enough = [rung for rung in rungs if rung.outcome is RungOutcome.UNNEEDED]
        assert not enough or any(rung.proved for rung in rungs), "no way was enough where none was used"
        report, _ = conclude(found, deployment=SALTED, ledger=ledger)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert ledger.events()[0].verdict is Verdict.INCONCLUSIVE


def test_saved_evidence_is_judged_again_to_the_same_report(tmp_path: Any) -> None:
    with reloaded() as engine:
        make_stale(engine)
        found = observed(engine, deployed=UNSALTED, limits=LIMITS)
    artifacts.write(tmp_path / "seen.json", found.evidence)
    again = judge(artifacts.read(tmp_path / "seen.json", Evidence))
    first = judge(found.evidence)
    assert msgspec.structs.replace(again, created=first.created) == first


def test_dead_answers_fail() -> None:
    with ScriptedEngine(release="new") as engine:
        engine.break_with(Break.NAN)
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert check(report, CheckId.DEGENERATE).verdict is CheckVerdict.FAIL
    with ScriptedEngine(release="new") as engine:
        engine.break_with(Break.THINKING)  # the budget went into hidden reasoning: alive, and nothing to compare
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert check(report, CheckId.DEGENERATE).verdict is CheckVerdict.PASS
        assert report.verdict is Verdict.INCONCLUSIVE


def test_a_server_that_gives_no_log_probabilities_cannot_pass() -> None:
    with ScriptedEngine(release="new") as engine:
        engine.break_with(Break.INFINITE)
        assert verified(engine, deployed=UNSALTED, limits=LIMITS).verdict is Verdict.INCONCLUSIVE


def test_the_ledger_keeps_what_verify_computed(ledger: Ledger) -> None:
    with ScriptedEngine(release="new") as engine:
        verified(engine, deployed=SALTED, ledger=ledger, limits=LIMITS)
        assert warmed(engine, deployed=SALTED, ledger=ledger).verdict is Verdict.PASS
    assert namespace_of("new") == SALTED.namespace


def test_the_cost_is_what_the_engine_was_really_asked() -> None:
    """https://github.com/EleutherAI/lm-evaluation-harness/pull/3715: repeats collapse into one answer that was kept."""
    with reloaded() as engine:
        make_stale(engine)
        engine.requests.clear()
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.cost.requests == len(engine.generations())
        assert report.cost.retries == 0


def test_a_body_is_tokenised_once_whatever_its_key_space() -> None:
    with ScriptedEngine(release="new") as engine:
        verified(engine, deployed=UNSALTED, limits=LIMITS)
        asked = [str(seen.body.get("messages")) for seen in engine.requests if seen.path == "/tokenize"]
        assert len(asked) == len(set(asked))


def test_a_golden_record_of_unknown_origin_is_refused() -> None:
    with ScriptedEngine(release="new") as engine:
        golden = recorded(engine, deployed=UNSALTED)
        for broken in (
            msgspec.structs.replace(golden, foreign_tokens=None),
            msgspec.structs.replace(golden, interrupted=True),
        ):
            with pytest.raises(InputError, match="proves nothing"):
                verified(engine, deployed=UNSALTED, limits=LIMITS, twins=Twins(golden=broken))


class Restarting(ScriptedEngine):
    """Is restarted, with an empty cache, after so many generations."""

    def __init__(self, *, after: int) -> None:
        super().__init__(release="new")
        self.after = after

    def generate(self, prompt: Sequence[int], body: dict[str, Any]) -> Generation:
        made = super().generate(prompt, body)
        self.after -= 1
        if self.after == 0:
            self.restart()
        return made


def test_an_engine_that_was_restarted_meanwhile_passes_nothing() -> None:
    with Restarting(after=20) as engine:
        found = observed(engine, deployed=UNSALTED, limits=LIMITS)
    assert [fault.exit_code for fault in found.faults] == [5]
    assert "changed during the run" in found.faults[0].message
    assert judge(found.evidence).verdict is not Verdict.PASS


def test_a_golden_record_of_two_processes_is_refused_and_one_that_only_the_ledger_missed_is_not() -> None:
    with Restarting(after=2) as restarting:
        two = recorded(restarting, deployed=UNSALTED)
        assert not two.interrupted
        with pytest.raises(InputError, match=r"--golden: the engine process .* proves nothing"):
            verified(restarting, deployed=UNSALTED, limits=LIMITS, twins=Twins(golden=two))
    with ScriptedEngine(release="new") as engine:
        unwritten = Fault(where="the ledger", exit_code=4, message="no space left")
        whole = msgspec.structs.replace(recorded(engine, deployed=UNSALTED), faults=(unwritten,))
        verified(engine, deployed=UNSALTED, limits=LIMITS, twins=Twins(golden=whole))


def test_a_dirty_key_space_does_not_cost_the_clean_one_its_memory(ledger: Ledger) -> None:
    with reloaded() as engine:
        make_stale(engine)
        assert verified(engine, deployed=UNSALTED, limits=LIMITS, ledger=ledger).verdict is Verdict.FAIL
        assert warmed(engine, deployed=SALTED, ledger=ledger).verdict is Verdict.PASS
        assert warmed(engine, deployed=UNSALTED, ledger=ledger).verdict is Verdict.FAIL
