"""A few answers tell whose weights an engine has, or say that they do not."""

from __future__ import annotations

import pytest

from kvrelease.binding.reloading.plan import Outcome
from kvrelease.engines.base import Observation
from kvrelease.verify.calibration import ALIKE_BOUND_NATS
from kvrelease.verify.swapped import told_to_be_new, told_to_be_the_same
from tests.builders import observation


def answers(nats: float) -> dict[str, Observation]:
    return {"one": observation(nats=nats), "two": observation(nats=nats)}


NOTHING_TOLD = {"one": Observation(text="No, you cannot.", total_s=0.1)}


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (answers(-0.25), Outcome.DONE),
        (answers(-0.26), Outcome.DISAGREES),
        (NOTHING_TOLD, Outcome.UNPROVEN),
        ({}, Outcome.UNPROVEN),
    ],
)
def test_the_same_weights_answer_to_the_last_digit(now: dict[str, Observation], outcome: Outcome) -> None:
    assert told_to_be_the_same(answers(-0.25), now).outcome is outcome


@pytest.mark.parametrize(
    ("now", "golden", "before", "outcome"),
    [
        (answers(-0.25), answers(-0.25), answers(-0.75), Outcome.DONE),
        (answers(-0.25), answers(-0.25), {}, Outcome.DONE),
        (answers(-0.25), {}, answers(-0.75), Outcome.UNPROVEN),
        (NOTHING_TOLD, answers(-0.25), {}, Outcome.UNPROVEN),
        (answers(-0.75), answers(-0.25), answers(-0.75), Outcome.DISAGREES),
        # Within the bound, and the old weights' own answers.
        (answers(-0.27), answers(-0.25), answers(-0.27), Outcome.DISAGREES),
        # As near to both: releases that hardly differ.
        (answers(-0.26), answers(-0.25), answers(-0.27), Outcome.UNPROVEN),
    ],
)
def test_the_new_weights_are_near_their_record_and_not_as_near_to_the_old(
    now: dict[str, Observation], golden: dict[str, Observation], before: dict[str, Observation], outcome: Outcome
) -> None:
    assert ALIKE_BOUND_NATS > 0.02
    told = told_to_be_new(now, golden=golden, before=before, is_alike=True, is_other_release=True)
    assert told.outcome is outcome, told.detail


def test_weights_of_the_same_namespace_may_answer_as_before() -> None:
    now = answers(-0.27)
    told = told_to_be_new(now, golden=answers(-0.25), before=now, is_alike=True, is_other_release=False)
    assert told.outcome is Outcome.DONE
