"""The page of a prewarming."""

from kvrelease.prewarm.result import Percentiles, PrewarmReport, ReplicaResult
from kvrelease.report.document import Block, Document, Facts, Notes, Table, Verdict, number, share, word


def prewarm_document(found: PrewarmReport) -> Document:
    """Is every replica clean and warm?"""
    plan = found.plan
    blocks: list[Block] = [
        Verdict(word=word(str(found.verdict)), reason=found.reason),
        Facts(
            pairs=(
                ("namespace", found.namespace),
                ("key space", found.key_space or "unsalted"),
                (
                    "plan",
                    f"{plan.prompts} prompts, {number(plan.prompt_tokens)} tokens, {number(plan.cacheable_tokens)} "
                    f"cacheable; at least {number(plan.lower_bound_tokens)} to compute",
                ),
                ("blocks", f"{number(plan.blocks_needed)} needed, {number(plan.blocks_available)} available"),
            )
        ),
        Table(
            title="Replicas: tokens, hit rates, time to first token (p50/p95 ms)",
            columns=(
                "replica",
                "sent",
                "foreign",
                "computed",
                "hit before",
                "hit after",
                "cold ms",
                "warm ms",
                "hits told by",
            ),
            rows=tuple(_row(one) for one in found.replicas),
        ),
    ]
    notes = [
        one.fault.message if one.url in one.fault.message else f"{one.url}: {one.fault.message}"
        for one in found.replicas
        if one.fault
    ]
    if plan.dropped:
        notes.append(f"left out for capacity: {', '.join(plan.dropped)}")
    if plan.uncacheable:
        notes.append(f"shorter than a block, cannot be cached: {', '.join(plan.uncacheable)}")
    if notes:
        blocks.append(Notes(title="Notes", lines=tuple(notes)))
    return Document(title=f"Prewarming {found.release.name}", blocks=tuple(blocks))


def _row(one: ReplicaResult) -> tuple[str, ...]:
    return (
        one.url,
        f"{one.sent}/{len(one.plan.senders)}",
        number(one.foreign_tokens),
        number(one.computed_tokens),
        share(one.hit_rate_before),
        share(one.hit_rate_after),
        _times(one.ttft_cold_ms),
        _times(one.ttft_warm_ms),
        one.witness,
    )


def _times(found: Percentiles) -> str:
    return "?" if found.p50 is None else f"{number(found.p50)}/{number(found.p95)}"
