"""Whatever becomes of the steps, the gate never opens before weights that may be another release's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from kvrelease.artifacts import Verdict
from kvrelease.binding.reloading.plan import (
    Ending,
    Outcome,
    Start,
    Step,
    Taken,
    decisive,
    ending_of,
    may_have_swapped,
    next_step,
    verdict_of,
)

STARTS = [
    Start(was_open=was_open, asks=asks, flushes=flushes)
    for was_open, asks, flushes in itertools.product((True, False), repeat=3)
]


def every_run(start: Start) -> Iterator[tuple[Taken, ...]]:
    """Every way through the protocol, with every outcome at every step."""

    def longer(taken: tuple[Taken, ...]) -> Iterator[tuple[Taken, ...]]:
        step = next_step(taken, start=start)
        if step is None:
            yield taken
            return
        assert len(taken) < 12, f"no end: {taken}"
        for outcome in Outcome:
            yield from longer((*taken, Taken(step=step, outcome=outcome, seconds=0.0)))

    return longer(())


def outcomes(taken: tuple[Taken, ...]) -> dict[Step, Outcome]:
    return {one.step: one.outcome for one in taken}


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_the_new_namespace_opens_only_after_the_engine_loaded_and_nothing_disagreed(start: Start) -> None:
    runs = [outcomes(run) for run in every_run(start) if any(one.step is Step.RESUME_NEW for one in run)]
    assert runs
    for found in runs:
        assert found[Step.SWAP] is Outcome.DONE
        assert found[Step.DRAIN] is Outcome.DONE
        if start.asks:
            assert found[Step.ASK_NEW] in (Outcome.DONE, Outcome.UNPROVEN)


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_the_old_namespace_opens_again_only_where_the_old_weights_are_known_to_be_there(start: Start) -> None:
    runs = [outcomes(run) for run in every_run(start) if any(one.step is Step.RESUME_OLD for one in run)]
    assert bool(runs) is start.was_open
    for found in runs:
        swapped = found.get(Step.SWAP)
        again = found.get(Step.ASK_AGAIN)
        assert (
            swapped is None
            or again is Outcome.DONE
            or (swapped is Outcome.REFUSED and again in (None, Outcome.UNPROVEN))
        )


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_every_hold_ends_in_an_attempt_to_open_or_close(start: Start) -> None:
    for run in every_run(start):
        if run[0].outcome in (Outcome.DONE, Outcome.INTERRUPTED):
            assert run[-1].step in (Step.RESUME_NEW, Step.RESUME_OLD, Step.CLOSE)


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_a_pass_is_a_new_release_that_answered_for_itself(start: Start) -> None:
    for run in every_run(start):
        ending = ending_of(run, start=start)
        if verdict_of(run, ending=ending) is Verdict.PASS:
            assert ending is Ending.NEW
            assert outcomes(run)[Step.ASK_NEW] is Outcome.DONE
        if verdict_of(run, ending=ending) is Verdict.FAIL:
            assert decisive(run, ending=ending) is not None


def test_without_anything_to_ask_a_reload_that_went_well_is_not_proved() -> None:
    start = Start(was_open=True, asks=False, flushes=False)
    good = tuple(
        Taken(step=step, outcome=Outcome.DONE, seconds=0.0)
        for step in (Step.HOLD, Step.DRAIN, Step.SWAP, Step.RESUME_NEW)
    )
    assert good in set(every_run(start))
    assert verdict_of(good, ending=ending_of(good, start=start)) is Verdict.INCONCLUSIVE


def test_a_refused_swap_changed_nothing_and_any_other_may_have() -> None:
    def after(outcome: Outcome) -> bool:
        return may_have_swapped((Taken(step=Step.SWAP, outcome=outcome, seconds=0.0),))

    assert [outcome for outcome in Outcome if not after(outcome)] == [Outcome.REFUSED]
    assert not may_have_swapped((Taken(step=Step.DRAIN, outcome=Outcome.LATE, seconds=0.0),))
