"""Whose answer a stale answer is like; never a claim where two are equally near."""

from __future__ import annotations

import pytest

from kvrelease.verify.closeness import Witnesses, closeness, closeness_of, with_closeness
from kvrelease.verify.consistency import CloserTo, judge_probes
from kvrelease.verify.evidence import InProcessAnswers, ReferencePair, ReplicaEvidence
from kvrelease.verify.noise import NoiseFloor
from tests.verify.builders import observation, replica, stale_probe

QUIET = NoiseFloor(pairs=12, p50=0.0, max=0.001, quantum=None)


def near(
    seen: float, *, old: float = 1.0, hybrid: float | None = 0.6, new: float = 0.0, apart: float = 0.02
) -> CloserTo | None:
    """Whose answer it is like where answers differ by one number each."""
    witnesses = Witnesses(
        old=observation(old),
        hybrid=None if hybrid is None else observation(hybrid),
        new=observation(new),
        apart_nats=apart,
    )
    return closeness(observation(seen), witnesses, threshold=0.003).closer_to


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (1, CloserTo.OLD),
        (0.61, CloserTo.HYBRID),
        (0.01, CloserTo.NEW),
        (0.3, CloserTo.UNLIKE),
        (9.0, CloserTo.UNLIKE),
    ],
)
def test_the_nearest_within_what_noise_and_kernels_make_is_named(seen: float, expected: CloserTo) -> None:
    assert near(seen) is expected


def test_two_that_are_equally_near_make_no_claim() -> None:
    assert near(0.6, hybrid=0.61, old=0.62) is None
    # By kernels alone either could be the nearer one.
    assert near(0.6, hybrid=0.6, old=0.7, apart=0.02) is CloserTo.HYBRID
    assert near(0.6, hybrid=0.6, old=0.7, apart=0.1) is None


def test_a_witness_without_figures_leaves_it_unknown() -> None:
    silent = observation(logprobs=False)
    found = closeness(observation(0.6), Witnesses(old=silent, new=observation(), apart_nats=0.0), threshold=0.003)
    assert found.closer_to is None
    assert found.to_old is None
    assert found.to_new == pytest.approx(0.3)


def of(evidence: ReplicaEvidence) -> CloserTo | None:
    (judged,) = with_closeness(
        judge_probes(evidence.probes, floor=QUIET, replica="here"), closeness_of(evidence, floor=QUIET)
    )
    return judged.closer_to


def with_old(by: float, *, is_alike: bool, shift: float = 0.6) -> ReplicaEvidence:
    seen = replica([stale_probe(shift=shift)])
    pairs = (ReferencePair(probe="s", witness=observation(by)),)
    return ReplicaEvidence(
        **{name: getattr(seen, name) for name in seen.__struct_fields__}
        | {"old_pairs": pairs, "old_is_alike": is_alike}
    )


def test_a_baseline_tells_old_from_new_and_of_what_is_like_neither_nothing_is_known() -> None:
    assert of(replica([stale_probe()])) is None
    assert of(with_old(0.7, is_alike=True)) is CloserTo.OLD
    assert of(with_old(0.7, is_alike=True, shift=0.1)) is CloserTo.NEW
    # A stale answer is like neither; so are another release's.
    assert of(with_old(1.2, is_alike=True)) is None


def test_a_baseline_of_another_engine_is_held_to_the_bound_between_kernels() -> None:
    assert of(with_old(0.7, is_alike=False)) is CloserTo.OLD
    assert of(with_old(0.3, is_alike=True, shift=0.25)) is CloserTo.OLD
    assert of(with_old(0.3, is_alike=False, shift=0.25)) is None


def in_process(*, clean: float) -> ReplicaEvidence:
    seen = with_old(0.6, is_alike=True)
    answers = InProcessAnswers(
        probe="s", old=observation(1.2), stale=observation(0.6 + clean), clean=observation(clean)
    )
    return ReplicaEvidence(
        **{name: getattr(seen, name) for name in seen.__struct_fields__} | {"in_process": (answers,)}
    )


def test_answers_in_process_say_more_than_a_baseline_unless_the_engine_is_another_release() -> None:
    assert of(in_process(clean=0.02)) is CloserTo.HYBRID
    assert of(in_process(clean=0.5)) is None
