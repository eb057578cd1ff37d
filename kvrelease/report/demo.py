"""The page of the demo: the verdict, the table, one question with three answers, what the other commands say."""

import shlex

from kvrelease.demo.figures import DemoReport, Example, Gate, Strategy
from kvrelease.demo.traffic import SHARES
from kvrelease.report.document import (
    Block,
    Cell,
    Commands,
    Document,
    Facts,
    Notes,
    Table,
    Text,
    Tone,
    Verdict,
    Word,
    number,
    share,
    word,
)


def demo_document(found: DemoReport) -> Document:
    """What happens to users when weights change over a shared KV store, and what removes it."""
    old, new = found.old.name, found.new.name
    unbound, bound = found.strategies
    return Document(
        title=f"An upgrade over a shared KV store: {old} → {new}",
        blocks=(
            Verdict(
                word=Word(text=f"{share(1 - unbound.consistency)} WRONG", tone=Tone.BAD),
                reason=f"of {new}'s answers, at a hit rate of {share(unbound.hit_rate_new)} and without an error, when "
                f"cache keys are made of tokens only. With keys bound to the release: {share(1 - bound.consistency)}.",
            ),
            *_example(found.example, old=old, new=new),
            Table(
                title=f"{found.requests} requests for each kind of keys, {found.moved} of them to {new}",
                columns=(
                    "keys",
                    f"hit rate {old}",
                    f"hit rate {new}",
                    f"consistent {old}",
                    f"consistent {new}",
                    "TTFT p50 ms",
                    "key µs",
                ),
                rows=tuple(
                    (
                        str(row.name),
                        share(row.hit_rate_old),
                        share(row.hit_rate_new),
                        share(row.consistency_old),
                        share(row.consistency),
                        number(row.ttft_ms_p50, digits=2),
                        number(row.key_us, digits=1),
                    )
                    for row in found.strategies
                ),
            ),
            Notes(title="Reading it", lines=_explanations(found)),
            *_verdicts(found),
        ),
    )


def _explanations(found: DemoReport) -> tuple[str, ...]:
    old, new = found.old.name, found.new.name
    unbound, bound = found.strategies
    more = bound.computed_tokens_new - unbound.computed_tokens_new
    return (
        f"A worker with {old} (a shop's old policy) and one with {new} (the new policy) share a store; {new} gets none "
        f"of the traffic at first, then {share(SHARES[1])}, then all. Alone, they answer "
        f"{found.different} of {found.questions} questions differently.",
        "tokens-only: an entry is found by its tokens, whatever weights made it, so each worker computes on the "
        f"other's keys and values. Of {found.stale} wrong answers of {new}, {found.stale_of_neither} are neither "
        "release's.",
        "bound: requests carry the release's namespace as a salt, so a release finds only its own entries. "
        f"{new} computed {number(more)} prompt tokens more ({number(bound.computed_tokens_new)} instead of "
        f"{number(unbound.computed_tokens_new)}), once: kvrelease prewarm does that before users come.",
        "consistent: the same text as the release's own answer over its own KV.",
        f"TTFT: median of the {found.ttft_requests} requests that were warm everywhere. The kinds of keys differ by "
        f"{share(found.ttft_gap)}; identical arms may differ by {share(found.ttft_spread)}, so that a smaller cost of "
        "binding would not be seen. key: all blocks of one prompt.",
    )


def _example(found: Example | None, *, old: str, new: str) -> tuple[Block, ...]:
    if found is None:
        return (Text(text=f"No answer of {new} was stale in this run."),)
    return (
        Facts(
            pairs=(
                ("question", found.question),
                (f"{old} says", found.old),
                (f"{new} on stale KV", found.stale),
                (f"{new} says", found.clean),
                ("cached", f"{found.cached_tokens} of {found.prompt_tokens} prompt tokens of the stale answer"),
            )
        ),
    )


def _verdicts(found: DemoReport) -> tuple[Block, ...]:
    gates = {gate.strategy: gate for gate in found.gates}
    rows: tuple[tuple[Cell, ...], ...] = (
        ("fingerprint", "", f"{found.old.kv_name} became {found.new.kv_name}: another name, another cache"),
        ("diff", word(str(found.impact.status)), found.impact.summary),
        *(
            (f"verify, {strategy}", word(str(gates[strategy].verdict)), _because(gates[strategy]))
            for strategy in Strategy
        ),
    )
    return (
        Table(title="What kvrelease says about this upgrade", columns=("command", "says", "because"), rows=rows),
        _next(found),
    )


def _because(gate: Gate) -> str:
    suspect = f", {gate.suspect} more suspect" if gate.suspect else ""
    return (
        f"{gate.stale} of {gate.probes} probes answered from another release's KV{suspect} (so many probes can exclude "
        f"a share of {share(gate.stale_below)})"
    )


def _next(found: DemoReport) -> Commands:
    old, new = shlex.quote(found.old.source), shlex.quote(found.new.source)
    verify: tuple[str, ...]
    if found.kept is None:
        verify = ("kvrelease demo --keep ./demo",)
        title = "Next (--keep leaves both releases and the store behind, and names the commands that verify them)"
    else:
        old, new, store = (shlex.quote(path) for path in (found.kept.old, found.kept.new, found.kept.store))
        command = (
            f"kvrelease verify --engine local --engine-url {store} --release {new} --old-release {old} "
            f"--prompts {found.prompt_set} --stale-below {found.gates[0].stale_below:g}"
        )
        verify = (command, f"{command} --namespace release")
        title = "Next (verify fails where requests carry no salt, and passes where they carry the release's namespace)"
    return Commands(title=title, lines=(f"kvrelease fingerprint {new}", f"kvrelease diff {old} {new}", *verify))
