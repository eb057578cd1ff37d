"""Cells of the table: all counted runs of one pool and one stale share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from benchmarks.gate.counting import Chunk, Counts
from benchmarks.gate.levels import LOCAL_LEVELS, VLLM_LEVELS
from benchmarks.gate.releases import RELEASES
from kvrelease.artifacts import Verdict

# (engine, level, release) of every pool that the benchmark is about.
WANTED = tuple(
    (engine, level, release.name)
    for engine, levels in (("local", LOCAL_LEVELS), ("vllm", VLLM_LEVELS))
    for level in levels
    for release in RELEASES
)


class Cell(Counts, frozen=True, kw_only=True):
    """All runs of one pool and one stale share.

    Attributes:
        engine: of the pool.
        level: of noise.
        release: by its name.
    """

    engine: str
    level: str
    release: str

    def count(self, verdict: Verdict) -> int:
        """Runs that ended so."""
        return self.verdicts.get(str(verdict), 0)

    @property
    def missed(self) -> int:
        """Stale runs that passed though they met a stale probe: nothing but `power` could have excused that."""
        return self.count(Verdict.PASS) - self.unmet if self.stale_share > 0 else 0

    @property
    def pool(self) -> tuple[str, str, str]:
        """Engine, level and release: what it was drawn from."""
        return (self.engine, self.level, self.release)

    @property
    def place(self) -> tuple[int, float]:
        """In the order of tables."""
        return (WANTED.index(self.pool), self.stale_share)


def cells_of(chunks: Iterable[Chunk]) -> list[Cell]:
    """Chunks added up."""
    groups: dict[tuple[str, float], list[Chunk]] = {}
    for chunk in chunks:
        groups.setdefault((chunk.pool, chunk.stale_share), []).append(chunk)
    found = []
    for (pool, share), members in groups.items():
        engine, level, release, _ = pool.split(".")
        found.append(
            Cell(
                engine=engine,
                level=level,
                release=release,
                stale_share=share,
                runs=sum(chunk.runs for chunk in members),
                verdicts=_added(chunk.verdicts for chunk in members),
                failed=_added(chunk.failed for chunk in members),
                open=_added(chunk.open for chunk in members),
                unmet=sum(chunk.unmet for chunk in members),
                visible=sum(chunk.visible for chunk in members),
                blind=sum(chunk.blind for chunk in members),
                requests=sum(chunk.requests for chunk in members),
                tokens=sum(chunk.tokens for chunk in members),
            )
        )
    return found


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)
