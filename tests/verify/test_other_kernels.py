"""Reference legs from another engine: its kernels are measured, and never stand in for its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from kvrelease.artifacts import Verdict
from kvrelease.engines.base import EngineIdentity
from kvrelease.engines.block_cache import BlockCache
from kvrelease.engines.detect import open_engine
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.calibration import KERNEL_BOUND_NATS, kernel_distance
from kvrelease.verify.checks import CheckId, CheckVerdict
from kvrelease.verify.evidence import Calibration, Evidence, Isolation, Limits, ReferencePair, ReplicaEvidence
from kvrelease.verify.floor import judging_floor
from kvrelease.verify.identity import check_identity
from kvrelease.verify.judge import judge
from kvrelease.verify.legs import NOISE_NONCES
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.record import record
from kvrelease.verify.run import observe
from kvrelease.verify.twins import Twins
from tests.engines.in_process import opened
from tests.engines.model_server import ModelServer
from tests.loops import run
from tests.tiny_models import build_release
from tests.verify.builders import clean_probes, identity, leg, observation, replica
from tests.verify.scenarios.verdicts import check
from tests.verify.test_in_process import DEPLOYED

LIMITS = Limits(stale_below=0.8)  # two probes
QUIET = NoiseFloor(pairs=8, p50=0.0, max=0.0, quantum=None)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("releases")
    return {name: build_release(root / name, seed=seed, layers=1) for name, seed in (("old", 1), ("new", 2))}


def observed(server: ModelServer, releases: dict[str, Path], *, old_release: bool = False) -> Evidence:
    """What verify observes with the new release in process as the reference."""

    async def main() -> Evidence:
        async with aclosing(await open_engine(server.url, kind=server.kind)) as engine:
            with Ledger(IN_MEMORY) as ledger:
                found = await observe(
                    [engine], deployment=DEPLOYED, ledger=ledger, limits=LIMITS, twins=twins, max_probes=2
                )
            assert found.faults == ()
            return found.evidence

    new = opened(releases["new"])
    twins = Twins(reference=new, release=new, old_release=opened(releases["old"]) if old_release else None)
    return run(main())


def filled_by(release: Path, *, dtype: str) -> BlockCache:
    """A cache that users of a release filled."""
    cache = BlockCache()
    with ModelServer(release, cache=cache, dtype=dtype) as server:

        async def users() -> None:
            engine = await open_engine(server.url, kind=server.kind)
            with Ledger(IN_MEMORY) as ledger:
                await record(engine, deployment=DEPLOYED, ledger=ledger, max_tokens=1)
            await engine.aclose()

        run(users())
    return cache


def test_a_clean_engine_of_another_precision_passes_and_its_kernels_are_measured(releases: dict[str, Path]) -> None:
    with ModelServer(releases["new"], dtype="bfloat16") as server:
        found = observed(server, releases, old_release=True)
    (seen,) = found.replicas
    assert (seen.isolation, len(seen.calibration)) == (Isolation.REFERENCE, NOISE_NONCES)
    assert len({one.name for one in seen.calibration}) == NOISE_NONCES
    apart = kernel_distance(seen)
    assert apart is not None
    assert 0 < apart < KERNEL_BOUND_NATS
    report = judge(found)
    assert report.verdict is Verdict.PASS, [one for one in report.checks if one.verdict is not CheckVerdict.PASS]
    assert check(report, CheckId.IDENTITY).verdict is CheckVerdict.PASS
    assert report.noise_floor.max is not None
    assert report.noise_floor.max >= apart
    assert "in process (kernels apart: 0." in check(report, CheckId.BYPASS).detail


def test_an_engine_that_serves_another_release_fails_identity_whatever_floor_was_measured(
    releases: dict[str, Path],
) -> None:
    with ModelServer(releases["old"], dtype="bfloat16") as server:
        report = judge(observed(server, releases))
    assert report.verdict is Verdict.FAIL
    assert check(report, CheckId.IDENTITY).verdict is CheckVerdict.FAIL
    assert check(report, CheckId.CONSISTENCY).verdict is not CheckVerdict.FAIL, "its cache is its own"


def test_stale_blocks_show_through_other_kernels(releases: dict[str, Path]) -> None:
    with ModelServer(releases["new"], dtype="bfloat16", cache=filled_by(releases["old"], dtype="bfloat16")) as server:
        report = judge(observed(server, releases))
    assert report.verdict is Verdict.FAIL
    assert check(report, CheckId.CONSISTENCY).verdict is CheckVerdict.FAIL
    assert check(report, CheckId.IDENTITY).verdict is CheckVerdict.PASS


# --- judged from evidence alone --------------------------------------------------------------------------------------


def asked_of_both(shift: float, *, count: int = 4) -> tuple[Calibration, ...]:
    """Unique prompts that the two engines answer `shift / 2` nats apart."""
    return tuple(
        Calibration(
            name=f"unique-{number}",
            engine=(leg(shift, cached=0), leg(shift)),
            reference=(leg(cached=0), leg()),
        )
        for number in range(count)
    )


def by_reference(
    shift: float | None, *, witness: float | None = None, unique: float | None = None, **changes: object
) -> ReplicaEvidence:
    """A replica whose reference legs are another engine's.

    Args:
        shift: between the two engines on unique prompts, in twice the distance; None where none was asked.
        witness: of a golden record from the reference's own answers.
        unique: of the release in process from the engine's answers to unique prompts.
        changes: of the evidence.
    """
    pairs: Sequence[ReferencePair] = ()
    if witness is not None:
        pairs = [ReferencePair(probe="p0", witness=observation(witness))]
    if unique is not None:
        pairs = [ReferencePair(probe="unique-0", witness=observation((shift or 0.0) + unique))]
    reference: EngineIdentity = identity("http://ref")
    return msgspec.structs.replace(
        replica(clean_probes(), isolation=Isolation.REFERENCE, reference=reference),
        calibration=() if shift is None else asked_of_both(shift),
        identity_pairs=tuple(pairs),
        identity_source="golden" if witness is not None else "release" if unique is not None else "none",
        **changes,
    )


Outcome = CheckVerdict
PASS, FAIL, NOTE, OPEN = Outcome.PASS, Outcome.FAIL, Outcome.NOTE, Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("shift", "witness", "verdict"),
    [
        (0.1, None, NOTE),  # both run the same, whatever that is
        (0.4, None, OPEN),  # between the bounds
        (1.0, None, OPEN),  # one of the two runs other weights
        (0.1, 0.1, PASS),
        (0.1, 0.4, OPEN),
        (0.1, 1.0, FAIL),  # both run other weights
        (1.0, 0.1, FAIL),  # the reference is the release, and the engine is not
        (1.0, 1.0, OPEN),
        (None, 0.0, NOTE),  # the reference's answers say nothing of the engine
    ],
)
def test_a_golden_record_proves_the_engine_by_way_of_the_reference_and_within_the_bound_between_kernels(
    shift: float | None, witness: float | None, verdict: CheckVerdict
) -> None:
    assert check_identity(by_reference(shift, witness=witness), floor=QUIET).verdict is verdict


@pytest.mark.parametrize(("unique", "verdict"), [(0.1, PASS), (0.4, OPEN), (1.0, FAIL)])
def test_the_release_in_process_is_compared_on_unique_prompts_and_a_wide_floor_proves_nothing(
    unique: float, verdict: CheckVerdict
) -> None:
    wide = NoiseFloor(pairs=8, p50=1.0, max=1.0, quantum=None)
    for floor in (QUIET, wide):
        assert check_identity(by_reference(unique, unique=-unique), floor=floor).verdict is verdict


def test_a_reference_that_runs_other_weights_than_the_release_is_told() -> None:
    found = check_identity(by_reference(1.0, unique=0.1), floor=QUIET)
    assert found.verdict is OPEN
    assert "that runs other weights" in found.detail


Spoil = Callable[[Calibration], Calibration]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda one: msgspec.structs.replace(one, engine=(leg(5.0), leg(5.0))),
        lambda one: msgspec.structs.replace(one, reference=(leg(5.0), leg(5.0))),
    ],
)
def test_a_unique_prompt_that_hit_at_once_counts_for_nothing(spoil: Spoil) -> None:
    good, bad = asked_of_both(0.1, count=2)
    seen = msgspec.structs.replace(by_reference(0.1), calibration=(good, spoil(bad)))
    assert kernel_distance(seen) == pytest.approx(0.05)
    floor = judging_floor(seen)
    assert floor.max == pytest.approx(0.05)
