"""The page of the release gate."""

from kvrelease.report.diagnosis import diagnosis_blocks, next_line, steps_block
from kvrelease.report.document import Block, Cell, Document, Facts, Notes, Table, Verdict, number, share, word
from kvrelease.verify.consistency import ProbeJudgement, ProbeVerdict
from kvrelease.verify.distance import ENOUGH_CANDIDATES
from kvrelease.verify.judge import StaleShare, VerifyReport
from kvrelease.verify.noise import NoiseFloor


def verify_document(found: VerifyReport) -> Document:
    """Does anything that users get come from another release's KV?"""
    floor, stale = found.noise_floor, found.stale
    several = len({check.replica for check in found.checks if check.replica}) > 1
    blocks: list[Block] = [
        Verdict(word=word(str(found.verdict)), reason=found.reason),
        *next_line(found),
        Facts(
            pairs=(
                ("namespace", found.namespace),
                (
                    "claim",
                    f"with confidence {found.claim.confidence:.0%}, fewer than {found.claim.stale_below:.0%} of "
                    f"{found.claim.population} meet a stale prefix",
                ),
                ("probes", f"{len(found.probes)} on {found.prefixes} shared prefixes"),
                ("stale", _stale_share(stale)),
                (
                    "noise floor",
                    _noise_floor(floor),
                ),
                (
                    "cost",
                    _cost(found),
                ),
            )
        ),
        Table(
            title="Checks",
            columns=("check", "verdict", "found"),
            rows=tuple(
                (
                    str(check.id),
                    word(str(check.verdict)),
                    f"{check.replica}: {check.detail}" if several and check.replica else check.detail,
                )
                for check in found.checks
            ),
        ),
    ]
    blocks += diagnosis_blocks(found.diagnosis) or steps_block(found.next_steps)
    blocks += _stale_probes(found)
    notes = [f"not covered: {one}" for one in found.not_covered]
    notes.append(found.method)
    if found.skipped:
        notes.append(f"too short to show a stale prefix, not probed: {', '.join(found.skipped)}")
    notes += [fault.shown for fault in found.faults]
    blocks.append(Notes(title="Notes", lines=tuple(notes)))
    return Document(title=f"Verifying {found.release.name}", blocks=tuple(blocks))


def _noise_floor(floor: NoiseFloor) -> str:
    kinds = f"{floor.whole} of prompts computed whole, {floor.apart} of entries written apart"
    told = floor.candidates
    few = f"; of each token {told} candidates are told" if told is not None and told < ENOUGH_CANDIDATES else ""
    return (
        f"{floor.pairs} clean pairs ({kinds}), median {number(floor.p50, digits=4)}, largest "
        f"{number(floor.max, digits=4)} nats; logit step {number(floor.quantum, digits=4)}{few}"
    )


def _stale_share(found: StaleShare) -> str:
    suspect = f", {found.suspect} more suspect" if found.suspect else ""
    where = f", on {found.replica}" if found.replica is not None else ""
    return f"{found.count} of {found.of}{suspect} ({share(found.lower)} to {share(found.upper)}){where}"


def _cost(found: VerifyReport) -> str:
    cost = found.cost
    each = f" ({cost.requests / len(found.probes):.1f} for each probe)" if found.probes else ""
    elsewhere = f", {cost.on_reference} of them to the reference engine" if cost.on_reference else ""
    return (
        f"{cost.requests} requests{each}{elsewhere}, {number(cost.tokens)} prompt tokens, of them "
        f"{number(cost.computed_tokens)} computed, {cost.seconds:.1f} s"
    )


def history_line(found: VerifyReport, *, run: int) -> str:
    """One run of a watch in one line: verdict, size, and the claim or the reason, which are this run's alone."""
    stale, suspect = (
        sum(probe.verdict is verdict for probe in found.probes)
        for verdict in (ProbeVerdict.STALE, ProbeVerdict.SUSPECT)
    )
    return (
        f"run {run}, {found.created:%Y-%m-%d %H:%M:%S} UTC: {word(str(found.verdict)).text}, {stale} stale and "
        f"{suspect} suspect of {len(found.probes)} probes, {found.cost.requests} requests, {found.cost.seconds:.1f} s: "
        f"{found.reason}"
    )


def _stale_probes(found: VerifyReport) -> list[Block]:
    marked = [probe for probe in found.probes if probe.verdict in (ProbeVerdict.STALE, ProbeVerdict.SUSPECT)]
    if not marked:
        return []
    marked.sort(key=lambda probe: (probe.prefix, probe.verdict != ProbeVerdict.STALE, -(probe.distance or 0.0)))
    several = len({probe.replica for probe in found.probes}) > 1
    prefixes: dict[str, list[ProbeJudgement]] = {}
    for probe in marked:
        prefixes.setdefault(probe.prefix, []).append(probe)
    columns = ("probe", "verdict", "nats", "foreign/cached", "text", "closer to", *(("replica",) if several else ()))
    return [
        Table(
            title=f"Prefix {prefix}: {_counted(probes)}",
            columns=columns,
            rows=tuple((*_row(probe), *((probe.replica,) if several else ())) for probe in probes),
        )
        for prefix, probes in prefixes.items()
    ]


def _counted(probes: list[ProbeJudgement]) -> str:
    stale = sum(probe.verdict is ProbeVerdict.STALE for probe in probes)
    return f"{stale} stale, {len(probes) - stale} suspect"


def _row(probe: ProbeJudgement) -> tuple[Cell, ...]:
    return (
        probe.id,
        word(str(probe.verdict)),
        number(probe.distance, digits=4),
        f"{number(probe.foreign_tokens)}/{number(probe.cached_tokens)}",
        "same" if probe.first_divergence is None else f"token {probe.first_divergence}",
        probe.closer_to or "?",
    )
