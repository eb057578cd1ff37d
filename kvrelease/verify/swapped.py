"""Whose weights an engine has after others were loaded in place: told by its answers to a few prompts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from kvrelease.binding.reloading.drive import Told
from kvrelease.binding.reloading.plan import Outcome
from kvrelease.engines.base import Observation
from kvrelease.verify.calibration import ALIKE_BOUND_NATS, FOREIGN_BOUND_NATS, KERNEL_BOUND_NATS
from kvrelease.verify.distance import candidates_told, distance, share_of_few
from kvrelease.verify.identity import MUCH_CLOSER

Answers = Mapping[str, Observation]


def told_to_be_the_same(before: Answers, now: Answers) -> Told:
    """Whether the weights that answered before answer now.

    Nobody else is on the engine, and there two answers of the same weights are equal to the last digit
    (docs/statistics.md): any distance is another model, or one that was loaded in part.

    Args:
        before: by prompt id, to the same requests in another key space.
        now: likewise.
    """
    nats = _distances(before, now)
    if not nats:
        return Told(outcome=Outcome.UNPROVEN, detail="the engine tells no candidates, so answers cannot be compared")
    if max(nats) > 0.0 or _has_other_texts(before, now):
        return Told(
            outcome=Outcome.DISAGREES, detail=f"answers moved by up to {max(nats):.3f} nats from those of before"
        )
    return Told(outcome=Outcome.DONE, detail=f"{len(nats)} answers are those of before, to the last digit")


def told_to_be_new(now: Answers, *, golden: Answers, before: Answers, is_alike: bool, is_other_release: bool) -> Told:
    """Whether the new release's weights answer.

    Args:
        now: by prompt id.
        golden: of the new release's record, by prompt id; empty without one.
        before: of the weights that were there before; empty where that is not known.
        is_alike: the record comes from the same kind and version of engine.
        is_other_release: the weights before were another release's, as far as the namespace says.
    """
    moved = _distances(before, now)
    aside = f"; {len(moved)} answers moved by up to {max(moved):.3f} nats" if moved else ""
    to_golden = _distances(golden, now)
    if not to_golden:
        why = "its answers cannot be compared with the golden record" if golden else "there is no golden record"
        return Told(outcome=Outcome.UNPROVEN, detail=f"unproven: {why}{aside}")
    to_new = statistics.median(to_golden)
    found = f"median distance of {len(to_golden)} answers to the golden record {to_new:.3f} nats"
    share = share_of_few(candidates_told([*golden.values(), *now.values()]))
    bound = (ALIKE_BOUND_NATS if is_alike else KERNEL_BOUND_NATS) * share
    if to_new > bound:
        kind = "other weights" if to_new > FOREIGN_BOUND_NATS else "other weights, or weights loaded in part"
        return Told(outcome=Outcome.DISAGREES, detail=f"{found}, above {bound:.2f}: {kind}{aside}")
    to_old = statistics.median(moved) if moved and is_other_release else None
    if to_old is None or to_old >= MUCH_CLOSER * to_new:
        return Told(outcome=Outcome.DONE, detail=f"{found}; the bound is {bound:.2f}{aside}")
    if MUCH_CLOSER * to_old < to_new:
        return Told(
            outcome=Outcome.DISAGREES,
            detail=f"{found}, and to the weights of before {to_old:.3f}: the old ones still answer",
        )
    return Told(
        outcome=Outcome.UNPROVEN,
        detail=f"unproven: {found}, and to the weights of before {to_old:.3f}, which is as near",
    )


def _distances(left: Answers, right: Answers) -> list[float]:
    found = (distance(left[prompt], right[prompt]).nats for prompt in left.keys() & right.keys())
    return [nats for nats in found if nats is not None]


def _has_other_texts(left: Answers, right: Answers) -> bool:
    return any(
        distance(left[prompt], right[prompt]).first_divergence is not None for prompt in left.keys() & right.keys()
    )
