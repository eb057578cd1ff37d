"""The page of the demo: the table, one question with three answers, and what the other commands say."""

import shlex

from kvrelease.demo.figures import DemoReport, Example, Strategy
from kvrelease.report.document import Block, Commands, Document, Facts, Notes, Table, Text, number, share, word


def demo_document(found: DemoReport) -> Document:
    """What happens to users when weights change over a shared KV store, and what removes it."""
    old, new = found.old.name, found.new.name
    return Document(
        title=f"An upgrade over a shared KV store: {old} → {new}",
        blocks=(
            Text(
                text=f"A support bot is upgraded. A worker with {old} (the old policy) and one with {new} (the new "
                f"policy) share a KV store. Of {found.requests} requests {found.moved} went to {new}: none at first, "
                f"then 20 % of the traffic, then all. The releases answer {found.different} of {found.questions} "
                "questions differently. Both kinds of keys served the same requests, in turn."
            ),
            Table(
                title=f"What users got from {new}",
                columns=("keys", f"hit rate {old}", f"hit rate {new}", "consistent answers", "TTFT p50 ms", "key µs"),
                rows=tuple(
                    (
                        str(row.name),
                        share(row.hit_rate_old),
                        share(row.hit_rate_new),
                        share(row.consistency),
                        number(row.ttft_ms_p50, digits=2),
                        number(row.key_us, digits=1),
                    )
                    for row in found.strategies
                ),
            ),
            Notes(
                title="Reading it",
                lines=(
                    "tokens-only: as in serving engines, an entry is found by its tokens. Both releases find the same "
                    f"one, so {new} computes on keys and values that {old}'s weights made. There is no error.",
                    "bound: requests carry the release's namespace as a salt, so a release finds only its own entries.",
                    f"consistent answers: the same text as {new}'s own answer over its own KV.",
                    f"TTFT: identical arms differ by up to {share(found.ttft_spread)} in a tenth of the run, the two "
                    f"kinds of keys by {share(found.ttft_gap)} in all: "
                    + (
                        "no cost of binding can be seen."
                        if found.ttft_gap <= found.ttft_spread
                        else "more than identical arms do."
                    ),
                ),
            ),
            *_example(found.example, old=old, new=new),
            *_verdicts(found),
        ),
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
    old, new = shlex.quote(found.old.source), shlex.quote(found.new.source)
    gates = {gate.strategy: gate for gate in found.gates}
    unbound, bound = gates[Strategy.TOKENS_ONLY], gates[Strategy.BOUND]
    rows = (
        ("fingerprint", "", f"{found.old.kv_name} became {found.new.kv_name}: another name, another cache"),
        ("diff", word(str(found.impact.status)), found.impact.summary),
        ("verify, tokens-only", word(str(unbound.verdict)), unbound.reason),
        ("verify, bound", word(str(bound.verdict)), bound.reason),
    )
    verify = (
        f"kvrelease verify --engine local --release {new} --old-release {old} --prompts {found.prompt_set} "
        "--stale-below 0.25"
    )
    gate: tuple[str, ...]
    if found.kept is None:
        gate = ("kvrelease demo --keep ./demo   # and the commands that verify the store that it keeps",)
    else:
        store = f"--engine-url {shlex.quote(found.kept)}"
        gate = (f"{verify} {store}", f"{verify} {store} --namespace release")
    return (
        Table(title="What kvrelease says about this upgrade", columns=("command", "says", "because"), rows=rows),
        Commands(
            title="Next",
            lines=(f"kvrelease fingerprint {new}", f"kvrelease diff {old} {new}", *gate),
        ),
    )
