"""Key spaces that production does not use."""

from __future__ import annotations

from msgspec.structs import replace

from kvrelease.binding.observe import Leg
from kvrelease.verify.checks import CheckVerdict
from kvrelease.verify.evidence import ExposureEvidence, ProbeEvidence
from kvrelease.verify.exposure import (
    ExposureResult,
    SpaceVerdict,
    check_exposure,
    exposed_suspects,
    exposure_results,
)
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.repeats import REPEATS
from tests.verify.builders import NAMESPACE, leg, observation, probe, repeats, replica

QUIET = NoiseFloor(pairs=4, p50=0.0, max=0.0, quantum=0.01)


def results(*legs: Leg, key_space: str | None = None, one: ProbeEvidence | None = None) -> tuple[ExposureResult, ...]:
    found = replica([one or probe("p0")])
    exposure = tuple(ExposureEvidence(key_space=key_space, probe="p0", leg=seen) for seen in legs)
    return exposure_results(replace(found, exposure=exposure), floor=QUIET)


def test_each_key_space_gets_the_worst_of_its_probes() -> None:
    assert results(leg(cached=0)) == (ExposureResult(key_space=None, cached_tokens=0, verdict=SpaceVerdict.COLD),)
    assert results(leg(), leg(cached=0))[0].verdict is SpaceVerdict.CLEAN
    found = results(leg(), leg(0.6))
    assert found == (ExposureResult(key_space=None, cached_tokens=384, verdict=SpaceVerdict.SUSPECT),)


def test_one_answer_is_no_proof_and_as_many_as_production_s_own_take_are() -> None:
    def asked_again(*fresh: Leg) -> SpaceVerdict:
        one = ExposureEvidence(key_space=None, probe="p0", leg=leg(0.6), repeats=repeats(*fresh))
        (found,) = exposure_results(replace(replica([probe("p0")]), exposure=(one,)), floor=QUIET)
        return found.verdict

    assert asked_again(*[leg(0.6)] * REPEATS) is SpaceVerdict.STALE
    assert asked_again(*[leg(0.6)] * (REPEATS - 1)) is SpaceVerdict.SUSPECT
    assert asked_again(*[leg()] * REPEATS) is SpaceVerdict.SUSPECT, "once, by more than noise makes"


def test_of_each_key_space_the_worst_suspect_is_asked_again() -> None:
    seen = [(None, leg(0.5)), (None, leg(0.6)), (None, leg(0.9, cached=0)), ("old", leg(0.4)), ("new", leg())]
    exposure = tuple(ExposureEvidence(key_space=space, probe="p0", leg=one) for space, one in seen)
    found = exposed_suspects(replace(replica([probe("p0")]), exposure=exposure), floor=QUIET)
    assert sorted(found) == [1, 3]
    assert found[1].production == (leg(0.6),)


def test_what_is_not_known_is_not_clean() -> None:
    assert results(leg(), leg(cached=None))[0] == ExposureResult(
        key_space=None, cached_tokens=None, verdict=SpaceVerdict.UNKNOWN
    )
    assert results(leg(seen=observation(logprobs=False)))[0].verdict is SpaceVerdict.UNKNOWN
    assert results(leg(seen=observation(texts=("z",), logprobs=False)))[0].verdict is SpaceVerdict.SUSPECT
    alone = ProbeEvidence(id="p0", prefix="desk", weight=1.0, production=(leg(),))
    assert results(leg(), one=alone)[0].verdict is SpaceVerdict.UNKNOWN


def test_exposure_is_a_warning_with_the_remedy_and_says_that_the_namespace_would_be_clean() -> None:
    evidence = replace(
        replica([probe("p0")]),
        exposure=(
            ExposureEvidence(key_space=NAMESPACE, probe="p0", leg=leg()),
            ExposureEvidence(key_space=None, probe="p0", leg=leg(0.6), repeats=repeats(*[leg(0.6)] * REPEATS)),
        ),
    )
    found = check_exposure(evidence, floor=QUIET, namespace=NAMESPACE)
    assert found is not None
    assert found.verdict is CheckVerdict.NOTE
    assert "the release's own namespace, which would be clean" in found.detail
    assert "unsalted keys, which would be STALE" in found.detail
    assert "flush" in found.detail
    once = replace(evidence, exposure=(ExposureEvidence(key_space=None, probe="p0", leg=leg(0.6)),))
    unproved = check_exposure(once, floor=QUIET, namespace=NAMESPACE)
    assert unproved is not None
    assert "unsalted keys, which may be STALE" in unproved.detail


def test_an_engine_with_one_key_space_has_no_exposure() -> None:
    assert check_exposure(replica(), floor=QUIET, namespace=NAMESPACE) is None
