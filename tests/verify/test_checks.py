"""Every row of the table of checks: each way to fail, to be inconclusive, to pass."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvrelease.binding.hits import Unattributed
from kvrelease.binding.observe import Leg
from kvrelease.engines.base import EngineKind, GeneratedToken, Observation
from kvrelease.verify.checks import (
    Check,
    CheckVerdict,
    binding_result,
    check_binding,
    check_consistency,
    check_control,
    check_degenerate,
    check_first_touch,
    check_replicas,
    check_residency,
)
from kvrelease.verify.consistency import judge_probes
from kvrelease.verify.evidence import (
    BindingEvidence,
    ControlEvidence,
    FlushEvidence,
    Isolation,
    Limits,
    PowerPair,
    ProbeEvidence,
    ReferencePair,
    ReplicaEvidence,
    Rung,
    RungOutcome,
)
from kvrelease.verify.identity import check_identity
from kvrelease.verify.isolation import check_bypass
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.power import check_power
from tests.verify.builders import (
    BOUND,
    CACHED_TOKENS,
    NAMESPACE,
    clean_probes,
    identity,
    leg,
    observation,
    probe,
    replica,
    stale_probe,
    token,
)

PASS, FAIL, INCONCLUSIVE, NOTE = (
    CheckVerdict.PASS,
    CheckVerdict.FAIL,
    CheckVerdict.INCONCLUSIVE,
    CheckVerdict.NOTE,
)
QUARTER = Limits(stale_below=0.25)
COLD = Limits(stale_below=0.25, expects_cold=True)
QUIET = NoiseFloor(pairs=4, p50=0.0, max=0.0, quantum=0.01)


# --- identity -------------------------------------------------------------------------------------------------------


def pairs(shift: float, *, count: int = 3) -> tuple[ReferencePair, ...]:
    return tuple(ReferencePair(probe=f"p{number}", witness=observation(shift)) for number in range(count))


def identified(**fields: object) -> ReplicaEvidence:
    return replace(replica(), **({"identity_source": "release"} | fields))


def asked(**fields: object) -> Check:
    return check_identity(identified(**fields), floor=QUIET)


# `pairs(x)` lie at a distance of x / 2 nats.


def test_identity_passes_within_the_bound_between_kernels() -> None:
    assert asked(identity_pairs=pairs(0.2)).verdict is PASS


def test_weights_loaded_in_part_are_not_proved_to_be_the_release() -> None:
    # 0.21 nats: vLLM after a reload in place that left the tied output layer at the old weights (docs/engines.md).
    found = asked(identity_pairs=pairs(0.42), old_identity_pairs=pairs(2.8))
    assert found.verdict is INCONCLUSIVE
    assert "loaded in part" in found.detail


def test_a_golden_record_of_the_same_engine_is_held_to_a_closer_bound() -> None:
    assert asked(identity_pairs=pairs(0.2), identity_is_alike=True).verdict is INCONCLUSIVE
    assert asked(identity_pairs=pairs(0.1), identity_is_alike=True).verdict is PASS


@pytest.mark.parametrize(("candidates", "expected"), [(20, PASS), (2, INCONCLUSIVE)])
def test_of_few_candidates_the_bound_between_kernels_is_closer(candidates: int, expected: CheckVerdict) -> None:
    # 0.13 nats: within 0.15, and above the two thirds of it that two candidates show of other weights.
    found = check_identity(identified(identity_pairs=pairs(0.26)), floor=replace(QUIET, candidates=candidates))
    assert found.verdict is expected


def test_identity_fails_beyond_it() -> None:
    found = asked(identity_pairs=pairs(1.0))
    assert found.verdict is FAIL
    assert "other weights" in found.detail


def test_identity_fails_when_the_old_weights_are_much_closer() -> None:
    found = asked(identity_pairs=pairs(0.2), old_identity_pairs=pairs(0.05))
    assert found.verdict is FAIL
    assert "old weights" in found.detail


def test_old_weights_that_are_nearer_by_no_more_than_noise_are_not_proved_and_not_passed() -> None:
    found = asked(identity_pairs=pairs(0.1), old_identity_pairs=pairs(0.02))
    assert found.verdict is INCONCLUSIVE
    assert "--golden" in found.detail


def test_between_two_records_settings_differ_by_as_much_as_kernels() -> None:
    # An engine in bfloat16 that runs the release, a golden record in float32, a baseline in bfloat16 of a near release.
    recorded = {"identity_source": "golden", "old_identity_pairs": pairs(0.08)}
    assert asked(identity_pairs=pairs(0.24), **recorded).verdict is INCONCLUSIVE
    assert asked(identity_pairs=pairs(0.5), **recorded).verdict is FAIL


def test_releases_that_differ_by_less_than_kernels_leave_identity_unproven() -> None:
    found = asked(identity_pairs=pairs(0.2), old_identity_pairs=pairs(0.15))
    assert found.verdict is NOTE
    assert "Unproven" in found.detail


def test_a_baseline_from_another_source_alone_does_not_fail_identity() -> None:
    # The engine against its own earlier record is at no distance of kernels, against the release in process it is.
    assert asked(identity_pairs=pairs(0.2), old_pairs=pairs(0.05)).verdict is INCONCLUSIVE
    assert asked(identity_pairs=pairs(0.1), old_pairs=pairs(0.4)).verdict is PASS


def test_a_release_that_does_not_run_in_process_is_unproven_and_says_why() -> None:
    found = asked(identity_failure="no such rope type")
    assert found.verdict is NOTE
    assert "no such rope type" in found.detail


def test_identity_without_witnesses_is_unproven_and_labels_never_decide() -> None:
    labelled = replace(replica(), identity=replace(identity(), labels={"root": "/models/old"}))
    found = check_identity(labelled, floor=QUIET)
    assert found.verdict is NOTE
    assert "root=/models/old" in found.detail
    silent = identified(identity_pairs=(ReferencePair(probe="p0", witness=observation(logprobs=False)),))
    assert check_identity(silent, floor=QUIET).verdict is NOTE
    assert "can be compared" in check_identity(silent, floor=QUIET).detail


# --- first touch ----------------------------------------------------------------------------------------------------


def touched(
    *legs_of: ProbeEvidence, is_fresh: bool | None = False, limits: Limits = QUARTER
) -> tuple[CheckVerdict, str]:
    found = check_first_touch(replica(legs_of, is_fresh=is_fresh), limits=limits, key_space=None)
    return found.verdict, found.detail


DIRTY = probe(production=[leg(foreign=80)])
UNKNOWN = probe("p1", production=[leg(cached=None)])
# A server without a tokenizer: hits are told, and nobody can say whose they are.
UNATTRIBUTED = probe("p2", production=[leg(foreign=None)])


def test_a_foreign_hit_fails_on_a_fresh_process_and_where_cold_was_expected() -> None:
    assert touched(DIRTY, is_fresh=True)[0] is FAIL
    verdict, detail = touched(DIRTY, limits=COLD)
    assert verdict is FAIL
    assert "80 of 192" in detail
    assert "--new-epoch" in detail


def test_a_foreign_hit_of_unknown_origin_is_left_to_consistency() -> None:
    assert touched(DIRTY)[0] is NOTE
    assert touched(DIRTY, is_fresh=None)[0] is NOTE


def test_a_foreign_hit_of_a_later_leg_counts() -> None:
    assert touched(probe(production=[leg(cached=0), leg(foreign=80)]), is_fresh=True)[0] is FAIL


def test_one_unknown_leg_does_not_hide_a_foreign_hit() -> None:
    assert touched(UNKNOWN, DIRTY, is_fresh=True)[0] is FAIL


def test_not_known_is_not_zero() -> None:
    verdict, detail = touched(probe(), UNKNOWN)
    assert verdict is INCONCLUSIVE
    assert "not known is not zero" in detail


def test_what_the_very_first_request_hits_needs_no_token_ids() -> None:
    assert touched(UNATTRIBUTED)[0] is NOTE
    assert touched(UNATTRIBUTED, limits=COLD)[0] is FAIL
    assert touched(UNATTRIBUTED, is_fresh=True)[0] is FAIL
    # The second may hit what the first one left.
    assert touched(probe(production=[leg(cached=0)]), UNATTRIBUTED, limits=COLD)[0] is NOTE


def test_a_leg_that_hit_nothing_does_not_hide_a_later_one_that_cannot_be_attributed() -> None:
    verdict, detail = touched(probe(production=[leg(cached=0), leg(foreign=None)]))
    assert verdict is NOTE
    assert "192 cached tokens" in detail
    assert "token ids" in detail
    assert touched(probe(production=[leg(foreign=80), leg(foreign=None)]), is_fresh=True)[0] is FAIL
    lost = replace(leg(foreign=None), doubt=Unattributed.LOST)
    assert "(lost)" in touched(probe(production=[lost]))[1]


def test_no_foreign_hit_passes_and_no_leg_does_not() -> None:
    assert touched(probe(), is_fresh=True, limits=COLD)[0] is PASS
    assert touched()[0] is INCONCLUSIVE


# --- control --------------------------------------------------------------------------------------------------------


def controlled(first: object, second: object, *, counted: float | None = None) -> CheckVerdict:
    assert isinstance(first, type(leg()))
    assert isinstance(second, type(leg()))
    return check_control(replica(control=ControlEvidence(legs=(first, second), counted_hits=counted))).verdict


def test_control_passes_when_the_second_hits_and_is_inconclusive_otherwise() -> None:
    assert check_control(replica()).verdict is PASS
    assert check_control(replica(control=None)).verdict is INCONCLUSIVE
    assert controlled(leg(cached=0), leg(cached=0)) is INCONCLUSIVE
    assert controlled(leg(), leg()) is INCONCLUSIVE
    assert controlled(leg(cached=0), leg(cached=None)) is INCONCLUSIVE
    assert controlled(leg(cached=None), leg()) is INCONCLUSIVE


def test_a_hit_that_the_servers_own_counter_denies_is_no_hit() -> None:
    assert controlled(leg(cached=0), leg(), counted=0.0) is INCONCLUSIVE
    assert controlled(leg(cached=0), leg(), counted=192.0) is PASS
    assert controlled(leg(cached=0), leg(), counted=None) is PASS


def test_the_templates_own_tokens_in_a_nonce_are_no_hit_of_it() -> None:
    assert controlled(leg(cached=16), leg()) is PASS


# --- binding --------------------------------------------------------------------------------------------------------


def bound(evidence: BindingEvidence | None, *, salt: str | None = NAMESPACE) -> CheckVerdict:
    return check_binding(replica(binding=evidence), namespace=NAMESPACE, production_salt=salt).verdict


def test_binding_passes_when_the_nonce_hits_as_production_and_nowhere_else() -> None:
    assert bound(BOUND) is PASS


def test_an_ignored_salt_fails_where_production_claims_the_namespace() -> None:
    ignored = replace(BOUND, fresh_salt=leg())
    assert bound(ignored) is FAIL
    assert bound(ignored, salt=None) is NOTE


def test_a_nonce_that_production_does_not_hit_fails_the_claim() -> None:
    elsewhere = replace(BOUND, as_production=leg(cached=0, salt="tenant"))
    assert bound(elsewhere) is FAIL
    assert bound(elsewhere, salt=None) is NOTE


def test_where_nothing_hits_nothing_tells_whether_production_is_bound() -> None:
    again = replace(BOUND, as_production=leg(cached=0))  # the very same request
    assert bound(again) is INCONCLUSIVE
    elsewhere = replace(BOUND, as_production=leg(cached=0, salt="tenant"))
    for control in (None, ControlEvidence(legs=(leg(cached=0), leg(cached=0)), counted_hits=0.0)):
        silent = replica(binding=elsewhere, control=control)
        assert check_binding(silent, namespace=NAMESPACE, production_salt=NAMESPACE).verdict is INCONCLUSIVE
        ignored = replica(binding=replace(elsewhere, fresh_salt=leg()), control=control)
        assert check_binding(ignored, namespace=NAMESPACE, production_salt=NAMESPACE).verdict is FAIL


def test_a_control_that_cannot_hit_gives_the_engine_s_own_reason() -> None:
    who = identity()
    why = "cannot be cached: prefix caching is off"
    off = replace(who, capabilities=replace(who.capabilities, why_nothing_is_cached=why))
    missed = ControlEvidence(legs=(leg(cached=0), leg(cached=0)), counted_hits=0.0)
    assert why in check_control(replica(who=off, control=missed)).detail
    assert "Likely causes" in check_control(replica(control=missed)).detail


def test_unwitnessed_binding_is_inconclusive_where_it_is_claimed() -> None:
    unknown = replace(BOUND, as_production=leg(cached=None))
    assert bound(unknown) is INCONCLUSIVE
    assert bound(unknown, salt=None) is NOTE


def test_a_run_that_ended_before_the_nonces_is_no_failed_binding() -> None:
    assert bound(None) is INCONCLUSIVE
    assert binding_result(replica(binding=None)).bound is None


def test_an_engine_without_salts_is_not_bound_and_does_not_fail() -> None:
    llama = replica(binding=None, who=identity(kind=EngineKind.LLAMACPP, has_salt=False))
    found = check_binding(llama, namespace=NAMESPACE, production_salt=None)
    assert found.verdict is NOTE
    assert "has no salt" in found.detail


# --- bypass ---------------------------------------------------------------------------------------------------------


def test_a_reference_that_was_not_proved_cold_is_inconclusive_with_the_way_out() -> None:
    failed = "1 not proved cold, the first: p0: hit 80 tokens"
    rung = Rung(isolation=Isolation.BYPASS, outcome=RungOutcome.GIVEN_UP, failed=1, detail=failed)
    found = check_bypass(replace(replica(isolation=Isolation.NONE), rungs=(rung,)))
    assert found.verdict is INCONCLUSIVE
    assert "--reference" in found.detail
    assert "hit 80 tokens" in found.detail


@pytest.mark.parametrize("isolation", [Isolation.FRESH_SALT, Isolation.BYPASS, Isolation.REFERENCE])
def test_any_proved_isolation_passes(isolation: Isolation) -> None:
    assert check_bypass(replica(isolation=isolation)).verdict is PASS


# --- consistency ----------------------------------------------------------------------------------------------------


def consistent(*probes: ProbeEvidence, limits: Limits = QUARTER) -> tuple[CheckVerdict, str]:
    judgements = judge_probes(probes, floor=QUIET, replica="here")
    found = check_consistency(judgements, floor=QUIET, limits=limits, replica="here")
    return found.verdict, found.detail


STALE = stale_probe(prefix="returns")


def test_one_proven_stale_probe_fails_and_names_its_prefix_and_what_to_do() -> None:
    verdict, detail = consistent(*clean_probes(), STALE)
    assert verdict is FAIL
    assert "returns" in detail
    assert "Stop traffic" in detail


def test_suspects_beside_a_proven_one_are_named_as_not_repeated() -> None:
    assert "1 more are suspect" in consistent(STALE, probe("q", production=[leg(0.6)]))[1]


def test_a_lone_suspect_and_an_unjudged_probe_are_inconclusive() -> None:
    assert consistent(*clean_probes(), probe("q", production=[leg(0.6)]))[0] is INCONCLUSIVE
    unjudged = ProbeEvidence(id="u", prefix="d", weight=1.0, production=(leg(),))
    assert consistent(*clean_probes(), unjudged)[0] is INCONCLUSIVE


def test_too_few_clean_probes_are_inconclusive_and_say_what_they_prove() -> None:
    verdict, detail = consistent(*clean_probes(10))
    assert verdict is INCONCLUSIVE
    assert "10 clean probes prove a stale share below 26%; below 25% takes 11" in detail
    assert consistent(*clean_probes(11))[0] is PASS
    assert consistent()[0] is INCONCLUSIVE


# --- power ----------------------------------------------------------------------------------------------------------


def power(
    *stale_by: float,
    largest_noise: float = 0.0,
    required: bool = False,
    decided: bool = False,
    foreign: int = 0,
    candidates: int | None = None,
) -> CheckVerdict:
    found = tuple(PowerPair(probe=f"p{n}", stale=observation(by), clean=observation()) for n, by in enumerate(stale_by))
    floor = NoiseFloor(pairs=4, p50=0.0, max=largest_noise, quantum=0.01, candidates=candidates)
    limits = Limits(stale_below=0.25, requires_power=required)
    return check_power(
        found, floor=floor, limits=limits, first_touch_decided=decided, unexplained_tokens=foreign
    ).verdict


def test_power_passes_above_the_threshold_and_is_inconclusive_below_it() -> None:
    assert power(0.2, largest_noise=0.03) is PASS
    assert power(0.2, largest_noise=0.04) is INCONCLUSIVE
    assert power(0.2, largest_noise=0.04, decided=True) is NOTE


def test_power_is_computed_of_the_candidates_that_the_server_tells() -> None:
    # Every second candidate moves, so the first one tells nothing, and two of three 0.2 / 3.
    assert power(0.2, candidates=20) is PASS
    assert power(0.2, candidates=1) is INCONCLUSIVE
    assert power(0.2, candidates=3, largest_noise=0.02) is PASS
    assert power(0.2, candidates=3, largest_noise=0.025) is INCONCLUSIVE


def test_the_fewer_candidates_are_told_the_less_noise_permits_a_pass_with_unknown_power() -> None:
    assert [power(largest_noise=0.06, candidates=told) for told in (20, 5, 2, 1)] == [
        NOTE,
        NOTE,
        INCONCLUSIVE,
        INCONCLUSIVE,
    ]
    assert power(largest_noise=0.004, foreign=640, candidates=1) is INCONCLUSIVE
    assert power(largest_noise=0.003, foreign=640, candidates=1) is NOTE


def test_unknown_power_permits_a_pass_unless_it_is_required() -> None:
    assert power() is NOTE
    assert power(required=True) is INCONCLUSIVE


def test_unknown_power_permits_no_pass_where_the_noise_could_hide_anything() -> None:
    assert power(largest_noise=0.08) is NOTE
    assert power(largest_noise=0.09) is INCONCLUSIVE


def test_unknown_power_permits_no_pass_over_hits_of_unknown_origin_unless_the_engine_is_quiet() -> None:
    assert power(largest_noise=0.006, foreign=640) is NOTE
    assert power(largest_noise=0.008, foreign=640) is INCONCLUSIVE
    assert power(0.2, largest_noise=0.008, foreign=640) is PASS


# --- degenerate -----------------------------------------------------------------------------------------------------


def alive(seen: Observation) -> CheckVerdict:
    return check_degenerate(replica([probe(), probe("p1", production=[leg(seen=seen)])])).verdict


def test_a_living_answer_passes() -> None:
    assert alive(observation()) is PASS
    assert alive(observation(texts=("a", "a", "a"))) is PASS
    assert alive(replace(observation(texts=()), finish_reason="length")) is PASS


@pytest.mark.parametrize(
    "dead",
    [
        observation(texts=()),
        observation(texts=("!",) * 8),
        replace(observation(), tokens=(GeneratedToken(token="a", logprob=None), token())),
    ],
    ids=["empty", "one token repeated", "NaN"],
)
def test_a_dead_answer_fails(dead: Observation) -> None:
    assert alive(dead) is FAIL


def test_no_answer_is_no_living_answer() -> None:
    assert check_degenerate(replica([])).verdict is INCONCLUSIVE


# --- residency and replicas -----------------------------------------------------------------------------------------


def asked_again(before: Leg, after: Leg, *, count: int = 2) -> ReplicaEvidence:
    """Probes that were sent as production at first, and at last."""
    probes = [probe(f"p{number}", production=[before, after]) for number in range(count)]
    return replace(replica(probes), residency=tuple(after for _ in probes))


def test_residency_tells_how_much_of_the_warm_set_is_left_and_never_decides() -> None:
    assert check_residency(replica()).verdict is NOTE
    kept = check_residency(asked_again(leg(), leg()))
    assert (kept.verdict, kept.detail) == (PASS, "the warm set is still resident: 2 of 2 prompts that were asked again")
    for after in (leg(cached=0), leg(cached=CACHED_TOKENS - 16)):
        lost = check_residency(asked_again(leg(), after))
        assert (lost.verdict, "0 of 2" in lost.detail, "prewarm again" in lost.detail) == (NOTE, True, True)
    assert check_residency(asked_again(leg(), leg(cached=None))).verdict is NOTE


def test_what_was_not_warm_before_says_nothing_of_the_warm_set() -> None:
    for before in (leg(cached=0), leg(cached=CACHED_TOKENS // 2)):
        found = check_residency(asked_again(before, leg()))
        assert (found.verdict, "was warm before" in found.detail) == (NOTE, True)


def test_after_a_flush_nothing_is_resident() -> None:
    flush = FlushEvidence(probe="p0", cached_before=80, requests_before=9, is_done=True, cached_after=0)
    found = check_residency(replace(asked_again(leg(), leg()), flush=flush))
    assert (found.verdict, "emptied" in found.detail) == (NOTE, True)


def test_any_replica_that_fails_fails_all_and_mixed_weights_are_named() -> None:
    assert check_replicas([("a", PASS), ("a", PASS)], mixed=()).verdict is PASS
    assert check_replicas([("a", PASS), ("b", INCONCLUSIVE)], mixed=()).verdict is INCONCLUSIVE
    failed = check_replicas([("a", INCONCLUSIVE), ("b", FAIL)], mixed=())
    assert (failed.verdict, "b" in failed.detail) == (FAIL, True)
    mixed = check_replicas([("a", PASS), ("b", PASS)], mixed=("b",))
    assert (mixed.verdict, "other weights" in mixed.detail) == (FAIL, True)
