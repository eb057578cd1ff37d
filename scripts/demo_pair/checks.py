"""What a pair must show to be shipped; a live test asks the same of the pair in the package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from demo_pair.texts import Lesson
from kvrelease.demo.arm import request_of
from kvrelease.demo.pair import DemoPair, pair_in
from kvrelease.engines.local import open_local, stale_and_clean
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.loading import load_release

MAX_BYTES = 6_000_000
MIN_DIFFERENT = 0.8  # share of questions that the releases answer differently
MAX_CONSISTENT = 0.7  # share of traffic whose stale answer happens to be right; `demo` promises less than 0.8


class PairFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured on a pair.

    Attributes:
        size_bytes: of both directories.
        wrong: prompts that a release does not answer in its policy's words, as `v1 returns-days: …`.
        different: share of questions answered differently.
        consistent: share of traffic whose answer over the old release's KV is the new one's own, 0 to 1.
        kv: whether the old KV is valid under the new release.
        changed: names of the digests that differ.
    """

    size_bytes: int
    wrong: tuple[str, ...]
    different: float
    consistent: float
    kv: KvStatus
    changed: tuple[str, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it may not be shipped; empty when it may."""
        found = {
            f"{self.size_bytes} bytes are more than {MAX_BYTES}": self.size_bytes > MAX_BYTES,
            f"not in the policy's words: {'; '.join(self.wrong)}": bool(self.wrong),
            f"only {self.different:.0%} of the answers differ": self.different < MIN_DIFFERENT,
            f"{self.consistent:.0%} of stale answers are right": self.consistent > MAX_CONSISTENT,
            f"the old KV is {self.kv}": self.kv is not KvStatus.INVALID,
            f"{', '.join(self.changed)} changed": set(self.changed) != {"release", "weights", "kv"},
        }
        return tuple(fault for fault, holds in found.items() if holds)


async def measure(directory: Path, lessons: Sequence[Lesson]) -> PairFigures:
    """The figures of the pair in a directory, in process.

    Raises:
        KvreleaseError: a release cannot be loaded.
    """
    pair = pair_in(directory)
    difference = diff_fingerprints(load_release(pair.old), load_release(pair.new))
    answers = await _answers(pair)
    wrong = [
        f"{policy} {lesson.id}: {found[policy]}"
        for lesson in lessons
        for found in [answers[lesson.id]]
        for policy in ("v1", "v2")
        if found[policy] != lesson.answers[policy]
    ]
    shares = pair.prompts.shares
    return PairFigures(
        size_bytes=sum(path.stat().st_size for release in (pair.old, pair.new) for path in release.iterdir()),
        wrong=tuple(wrong),
        different=sum(found["v1"] != found["v2"] for found in answers.values()) / len(answers),
        consistent=sum(shares[name] for name, found in answers.items() if found["stale"] == found["v2"]),
        kv=difference.kv.status,
        changed=difference.changed,
    )


async def _answers(pair: DemoPair) -> dict[str, dict[str, str]]:
    """By prompt id: `v1` and `v2`, each over KV of its own, and `stale`, v2 over v1's."""
    found: dict[str, dict[str, str]] = {}
    async with await open_local(pair.old) as old, await open_local(pair.new) as new:
        for prompt in pair.prompts.prompts:
            request = request_of(prompt)
            stale, clean = await stale_and_clean(old, new, request)
            before = await old.complete(request)
            found[prompt.id] = {"v1": before.text, "v2": clean.text, "stale": stale.text}
    return found
