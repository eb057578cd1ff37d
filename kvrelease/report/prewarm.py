"""The pages of a prewarming, and of the plan of one."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelease.binding.left_out import Why
from kvrelease.prewarm.plan import KeySpaceCost, Plan
from kvrelease.prewarm.result import Percentiles, PrewarmPlan, PrewarmReport, ReplicaPlan, ReplicaResult, SecondWitness
from kvrelease.printable import number_of
from kvrelease.report.document import Block, Document, Facts, Notes, Table, Verdict, more_in_json, number, share, word

# Ids listed in one note.
_MAX_LISTED = 20


def prewarm_document(found: PrewarmReport) -> Document:
    """Is every replica clean and warm?"""
    blocks: list[Block] = [
        Verdict(word=word(str(found.verdict)), reason=found.reason),
        Facts(pairs=(*_where(found.namespace, found.key_space), *_cost(found.plan))),
    ]
    if found.replicas:
        blocks.append(
            Table(
                title="Replicas: tokens, hit rate (foreign → asked again), time to first token (p50/p95 ms)",
                columns=(
                    "replica",
                    "sent",
                    "foreign",
                    "computed",
                    "of bound",
                    "hit rate",
                    "cold ms",
                    "warm ms",
                    "hits told by",
                ),
                rows=tuple(_row(one, found.plan) for one in found.replicas),
            )
        )
    blocks += _key_spaces(found.plan.key_spaces)
    faults = dict.fromkeys((*(one.fault for one in found.replicas if one.fault), *found.faults))
    notes = [fault.shown for fault in faults]
    notes += [line for one in found.replicas for line in _skipped(one)]
    notes += [f"{one.shown}: without a proper answer: {_listed(one.failed)}" for one in found.replicas if one.failed]
    notes += [f"{one.shown}: lost when asked again: {_listed(one.lost)}" for one in found.replicas if one.lost]
    notes += [*_left_out(found.plan), *found.notes]
    if notes:
        blocks.append(Notes(title="Notes", lines=tuple(notes)))
    return Document(title=f"Prewarming {found.release.name}", blocks=tuple(blocks))


def plan_document(found: PrewarmPlan) -> Document:
    """What would be sent, and what it costs."""
    plan = found.plan
    blocks: list[Block] = [
        Facts(
            pairs=(
                *_where(found.namespace, found.key_space),
                *_cost(plan),
                ("replicas", number(len(found.replicas))),
                ("rate", "not known" if found.rate is None else f"{number(found.rate)} tokens a second"),
            )
        ),
        Table(
            title="Replicas: what each would be sent, once",
            columns=("replica", "requests", "tokens sent", "tokens to compute", "blocks", "dropped", "seconds"),
            rows=tuple(_planned(one, plan) for one in found.replicas),
        ),
        *_key_spaces(plan.key_spaces),
    ]
    notes = [fault.shown for fault in found.faults]
    notes += [line for one in found.replicas for line in _skipped(one)]
    notes += [*_left_out(plan), *found.notes]
    notes.append("nothing of this plan was sent: this is --dry-run")
    blocks.append(Notes(title="Notes", lines=tuple(notes)))
    return Document(title=f"Plan of prewarming {found.release.name}", blocks=tuple(blocks))


def _where(namespace: str, key_space: str | None) -> tuple[tuple[str, str], ...]:
    return (("namespace", namespace), ("key space", key_space or "unsalted"))


def _cost(plan: Plan) -> tuple[tuple[str, str], ...]:
    # What a slot lacks the server may fill from host memory: the plan's figure is then the most.
    bound = "at least" if plan.control_slot is None else "up to"
    room = f", {number(plan.head_room_blocks)} of them kept free" if plan.head_room_blocks else ""
    return (
        (
            "plan",
            f"{number_of(plan.prompts, 'prompt')}, {number(plan.prompt_tokens)} tokens, "
            f"{number(plan.cacheable_tokens)} cacheable; {number_of(len(plan.order), 'request')}, {bound} "
            f"{number(plan.lower_bound_tokens)} tokens to compute",
        ),
        ("blocks", f"{number(plan.blocks_needed)} needed, {number(plan.blocks_available)} available{room}"),
        ("expected hit rate", f"{share(plan.expected_hit_rate)} of the tokens of this set's traffic"),
    )


def _row(one: ReplicaResult, plan: Plan) -> tuple[str, ...]:
    planned = one.planned or len((one.plan or plan).order)
    return (
        one.shown,
        f"{one.sent}/{planned}" + (f" +{one.resumed}" if one.resumed else ""),
        number(one.foreign_tokens),
        number(one.computed_tokens),
        number(one.over_lower_bound, digits=3),
        f"{share(one.hit_rate_before)} → {share(one.hit_rate_after)}",
        _times(one.ttft_cold_ms),
        _times(one.ttft_warm_ms),
        _witnesses(one.witness, one.second),
    )


def _witnesses(first: str, second: SecondWitness | None) -> str:
    if first != "usage" or second is None or second.counter_tokens is None:
        return first
    return f"{first}, counters {'disagree' if second.disagree else 'agree'}"


def _planned(one: ReplicaPlan, plan: Plan) -> tuple[str, ...]:
    own = one.plan or plan
    return (
        one.shown,
        f"{len(own.order)}" + (f", {one.resumed} of them done" if one.resumed else ""),
        number(own.sent_tokens),
        number(own.lower_bound_tokens),
        number(own.blocks_needed),
        number(len(own.dropped)),
        "not known" if one.seconds is None else number(one.seconds),
    )


def _key_spaces(costs: Sequence[KeySpaceCost]) -> list[Block]:
    if not costs:
        return []
    return [
        Table(
            title="Key spaces: each is warmed for itself (salts are shown by a mark)",
            columns=("adapter", "salt", "prompts", "requests", "tokens sent", "tokens to compute", "blocks"),
            rows=tuple(
                (
                    one.model or "-",
                    one.salt or "-",
                    number(one.prompts),
                    number(one.requests),
                    number(one.sent_tokens),
                    number(one.lower_bound_tokens),
                    number(one.blocks),
                )
                for one in costs
            ),
        )
    ]


def _left_out(plan: Plan) -> list[str]:
    notes = []
    if plan.dropped:
        notes.append(f"left out for capacity: {_listed(plan.dropped)}{_proved(plan)}")
    if plan.without_slot:
        notes.append(f"sent, and without a slot to stay in: {_listed(plan.without_slot)}")
    if plan.uncacheable:
        notes.append(f"shorter than a block, cannot be cached: {_listed(plan.uncacheable)}")
    return notes


def _proved(plan: Plan) -> str:
    if plan.proved_share is None:
        return ""
    return f"; what is kept saves at least {share(plan.proved_share)} of what any choice that fits could"


def _skipped(one: ReplicaResult | ReplicaPlan) -> list[str]:
    by_why = {why: [skipped.prompt for skipped in one.skipped if skipped.why is why] for why in Why}
    return [f"{one.shown}: left out, {why.words}: {_listed(ids)}" for why, ids in by_why.items() if ids]


def _listed(ids: Sequence[str]) -> str:
    more = len(ids) - _MAX_LISTED
    return ", ".join(ids[:_MAX_LISTED]) + (f" and {more_in_json(more)}" if more > 0 else "")


def _times(found: Percentiles) -> str:
    return "?" if found.p50 is None else f"{number(found.p50)}/{number(found.p95)}"
