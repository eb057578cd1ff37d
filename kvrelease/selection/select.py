"""Choosing a prompt set from a traffic log that is read several times and never held.

Pass 0, only where requests tell times, learns when the held-out part begins; pass 1 counts blocks; pass 2 fetches the
chosen prompts and measures what they hit. Pure but for the log, which the caller opens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from kvrelease.errors import InputError, TrafficLogError
from kvrelease.printable import number_of
from kvrelease.selection.chosen_set import ChosenSet, choose_set, fit_to_read
from kvrelease.selection.cutting import Cutter, Encode, Unit, cutter_for
from kvrelease.selection.evaluate import Score, Sums
from kvrelease.selection.result import CurvePoint, SelectedPrompt, Selection
from kvrelease.selection.served_names import served_name_warning
from kvrelease.selection.sketch import DEFAULT_MAX_BLOCKS, PrefixSketch
from kvrelease.selection.split import Split, SplitBy, split_by
from kvrelease.workload.budget import Budget
from kvrelease.workload.entry import DistinctIds
from kvrelease.workload.key_space import key_space
from kvrelease.workload.logged import LoggedRequest

# Opens the log anew and yields its requests, always the same in the same order; the argument names the pass.
OpenLog = Callable[[str], Iterator[LoggedRequest]]

# Requests without a time at the start of a log mean that it has none; later ones that it is not worth a split by time.
_LOOK_AHEAD = 1000
# Steps of the curve: 1, 2, 3, 5, 7, then the same times ten, …
_STEPS = (1, 2, 3, 5, 7)


class Selected(msgspec.Struct, frozen=True, kw_only=True):
    """A choice, and the requests to write.

    Attributes:
        report: what is known of it.
        requests: [prompts] as the log has them, in the report's order; empty for a trace.
    """

    report: Selection
    requests: tuple[LoggedRequest, ...]


def select(
    open_log: OpenLog,
    *,
    source: str,
    budget: Budget,
    held_out_share: float,
    seed: int = 0,
    cutter: Cutter | None = None,
    max_blocks: int = DEFAULT_MAX_BLOCKS,
    damaged: Callable[[], int] = int,
    passed_over: Callable[[], tuple[tuple[str, int], ...]] = tuple,
) -> Selected:
    """Chooses from a log.

    Args:
        open_log: called once per pass.
        source: how messages name the log.
        budget: of the set.
        held_out_share: part of the log that is not chosen from, and that the choice is measured on; 0 for none.
        seed: of a split by hash.
        cutter: as `cutter_of` finds it; None to find it here.
        max_blocks: counted at once, see `PrefixSketch`.
        damaged: how many records the last pass left out.
        passed_over: how many records of the last pass are no requests, by reason.

    Raises:
        TrafficLogError: nothing in it can be chosen from, or it changed while it was read.
        InputError: whatever reading it raises.
    """
    cutter = cutter or cutter_of(open_log, source=source)
    split = split_by(_times(open_log, share=held_out_share), share=held_out_share, seed=seed)
    counted = _count(open_log, cutter, split, max_blocks=max_blocks)
    if not counted.sums.requests:
        raise TrafficLogError(
            f"selecting from the log {source}: every request is held out", hint="give a smaller --holdout"
        )
    sketch = counted.sketch
    chosen_set = choose_set(sketch, budget, block=cutter.block, unit_weight=counted.unit_weight)
    held_out = Score(sums=Sums(), hits=[0.0] * len(chosen_set.choice.chosen))
    requests = _fetch(open_log, cutter, split, counted=counted, chosen_set=chosen_set, held_out=held_out, source=source)
    chosen_from = Score(sums=counted.sums, hits=list(chosen_set.hits), known=chosen_set.worthwhile)
    return Selected(
        report=Selection(
            source=source,
            unit=cutter.unit,
            block=cutter.block,
            is_trace=cutter.is_trace,
            requests=counted.requests,
            damaged=damaged(),
            passed_over=passed_over(),
            split=split.by,
            seed=seed,
            budget=budget,
            prompts=_prompts(chosen_set, requests),
            chosen_from=chosen_from.traffic(cutter.block),
            held_out=None if split.by is SplitBy.NONE else held_out.traffic(cutter.block),
            curve=_curve(chosen_set, chosen_from, held_out, block=cutter.block),
            proved_share=chosen_set.choice.proved_share,
            undercount=sketch.undercount,
            key_spaces=len({key_space(model=one.model, salt=one.salt) for one in requests}),
            uncacheable_weight=counted.uncacheable_weight,
            warnings=(*_warnings(cutter, chosen_set, counted), *_name_warnings(cutter, requests)),
        ),
        requests=() if cutter.is_trace else requests,
    )


def cutter_of(open_log: OpenLog, *, source: str, block: int | None = None, encode: Encode | None = None) -> Cutter:
    """How a log is cut, which its first request tells.

    Args:
        open_log: as in `select`.
        source: how messages name the log.
        block: as in `cutter_for`.
        encode: as in `cutter_for`.

    Raises:
        TrafficLogError: its requests have neither text nor hashes.
        InputError: whatever reading it raises.
    """
    requests = open_log("looking at the log")
    first = next(requests, None)
    if first is None:
        raise TrafficLogError(f"selecting from the log {source}: none of its records can be read")
    cutter = cutter_for(first, block=block, encode=encode)
    if cutter is None:
        raise TrafficLogError(
            f"selecting from the log {source}: its requests have neither text nor hashes of blocks",
            hint="choose from a log with prompts, or from a trace with `hash_ids`",
        )
    return cutter


class _Counted(msgspec.Struct, frozen=True, kw_only=True):
    sketch: PrefixSketch
    requests: int
    sums: Sums
    unit_weight: float
    uncacheable_weight: float
    unknown: int


def _times(open_log: OpenLog, *, share: float) -> array[float] | None:
    """[requests] times; None where one has none, or nothing is held out."""
    if share <= 0:
        return None
    if any(request.at_s is None for request in islice(open_log("looking at the log"), _LOOK_AHEAD)):
        return None
    times = array("d")
    for request in open_log("reading times"):
        if request.at_s is None:
            return None
        times.append(request.at_s)
    return times


def _count(open_log: OpenLog, cutter: Cutter, split: Split, *, max_blocks: int) -> _Counted:
    sketch = PrefixSketch(max_blocks)
    is_held_out = split.judge()
    requests = 0
    sums = Sums()
    uncacheable = 0.0
    unknown = 0
    unit_weight = float("inf")
    for index, request in enumerate(open_log("counting blocks")):
        requests += 1
        if is_held_out(request):
            continue
        cut = cutter.cut(request)
        sums.add(cut, weight=request.weight)
        unit_weight = min(unit_weight, request.weight)
        if cut.names:
            sketch.add(cut.names, weight=request.weight, length=cut.length, index=index)
        elif cut.length == 0:
            unknown += 1
        else:
            uncacheable += request.weight
    return _Counted(
        sketch=sketch,
        requests=requests,
        sums=sums,
        unit_weight=unit_weight,
        uncacheable_weight=uncacheable,
        unknown=unknown,
    )


def _fetch(
    open_log: OpenLog,
    cutter: Cutter,
    split: Split,
    *,
    counted: _Counted,
    chosen_set: ChosenSet,
    held_out: Score,
    source: str,
) -> tuple[LoggedRequest, ...]:
    """[chosen] the requests; adds the held-out ones to `held_out` as they pass by."""
    chosen = chosen_set.choice.chosen
    ranks = {one.prompt: rank for rank, one in enumerate(chosen)}
    found: dict[int, LoggedRequest] = {}
    is_held_out = split.judge()
    requests = 0
    for index, request in enumerate(open_log("fetching prompts")):
        requests += 1
        if is_held_out(request):
            cut = cutter.cut(request)
            held_out.add(cut, counted.sketch, unit_weight=chosen_set.unit_weight, weight=request.weight)
        elif index in ranks:
            if cutter.cut(request).length != chosen[ranks[index]].length:
                raise _changed(source)
            found[ranks[index]] = request
    if requests != counted.requests or len(found) < len(chosen):
        raise _changed(source)
    return tuple(found[rank] for rank in range(len(chosen)))


def _changed(source: str) -> InputError:
    return TrafficLogError(
        f"selecting from the log {source}: it changed while it was read", hint="copy it, and select from the copy"
    )


def _prompts(chosen_set: ChosenSet, requests: tuple[LoggedRequest, ...]) -> tuple[SelectedPrompt, ...]:
    ids = DistinctIds()
    prompts = []
    weights = fit_to_read(chosen_set.weights, least=chosen_set.unit_weight)
    for chosen, weight, request in zip(chosen_set.choice.chosen, weights, requests, strict=True):
        stem = "request" if request.place.line is None else f"line-{request.place.line}"
        prompts.append(
            SelectedPrompt(
                id=ids.of(stem),
                line=request.place.line,
                weight=weight,
                length=chosen.length,
                new_blocks=chosen.new_blocks,
                saves=chosen.gain,
            )
        )
    return tuple(prompts)


def _curve(chosen_set: ChosenSet, chosen_from: Score, held_out: Score, *, block: int) -> tuple[CurvePoint, ...]:
    chosen = chosen_set.choice.chosen
    sizes = sorted({step * 10**power for power in range(9) for step in _STEPS if step * 10**power < len(chosen)})
    sizes = [*sizes, len(chosen)] if chosen else []
    lengths, blocks = [0], [0]
    for one in chosen:
        lengths.append(lengths[-1] + one.length)
        blocks.append(blocks[-1] + one.new_blocks)
    rates = zip(chosen_from.hit_rates(sizes, block), held_out.hit_rates(sizes, block), strict=True)
    return tuple(
        CurvePoint(prompts=size, length=lengths[size], blocks=blocks[size], hit_rate=own, held_out_hit_rate=other)
        for size, (own, other) in zip(sizes, rates, strict=True)
    )


def _warnings(cutter: Cutter, chosen_set: ChosenSet, counted: _Counted) -> tuple[str, ...]:
    warnings = []
    if not cutter.is_trace and cutter.unit is Unit.CHARACTERS:
        warnings.append(
            "lengths are characters, not tokens: no tokenizer was used; English has about four characters a token"
        )
    if counted.unknown:
        warnings.append(
            f"the length of {number_of(counted.unknown, 'request')} is not known (images, or what the chat template "
            "refuses): nothing of that is counted"
        )
    if not chosen_set.choice.chosen:
        warnings.append("nothing was chosen: no beginning of a whole block comes back in this log, or none fits")
    if counted.sketch.undercount:
        warnings.append(
            f"more different blocks than are counted at once: of each, traffic of up to {counted.sketch.undercount:g} "
            "may be missing"
        )
    return tuple(warnings)


def _name_warnings(cutter: Cutter, requests: tuple[LoggedRequest, ...]) -> tuple[str, ...]:
    warning = None if cutter.is_trace else served_name_warning(requests)
    return () if warning is None else (warning,)
