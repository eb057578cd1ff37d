"""What the gate's error rates are held to: no promise is kept by saying nothing, or by counting little."""

from __future__ import annotations

import pytest

from benchmarks.gate.cells import WANTED, Cell
from benchmarks.gate.counting import STALE_SHARES
from benchmarks.gate.promises import broken_promises, uncounted
from benchmarks.gate.sizes import Sizes, sizes_of
from benchmarks.gate.table import markdown
from tests.benchmarks.pools import READ_NATS, STALE_NATS, made_pool

POOL = ("local", "reading", "all-36")
VISIBLE = Sizes(noise=0.01, staleness=0.5)
HIDDEN = Sizes(noise=0.1, staleness=0.05)


def cell(
    share: float,
    *,
    passed: int = 0,
    failed: int = 0,
    undecided: int = 0,
    pool: tuple[str, str, str] = POOL,
    unmet: int = 0,
    blind: int = 0,
) -> Cell:
    engine, level, release = pool
    runs = passed + failed + undecided
    return Cell(
        engine=engine,
        level=level,
        release=release,
        stale_share=share,
        runs=runs,
        verdicts={"pass": passed, "fail": failed, "inconclusive": undecided},
        failed={},
        open={},
        unmet=unmet,
        visible=0,
        blind=blind,
        requests=207 * runs,
        tokens=runs,
    )


def is_broken(found: Cell, *, sizes: Sizes = VISIBLE) -> bool:
    return bool(broken_promises([found], {POOL: sizes}))


@pytest.mark.parametrize(("fails", "broken"), [(4, False), (5, True)])
def test_a_fifth_false_fail_breaks_a_promise(fails: int, broken: bool) -> None:
    assert is_broken(cell(0.0, passed=2000 - fails, failed=fails)) is broken


def test_a_gate_that_never_says_yes_breaks_a_promise() -> None:
    assert is_broken(cell(0.0, undecided=2000))
    assert is_broken(cell(0.0, passed=1850, undecided=150))
    assert not is_broken(cell(0.0, passed=1905, undecided=95))


def test_noise_excuses_a_clean_run_that_did_not_pass_only_where_the_pool_has_it() -> None:
    undecided = cell(0.0, undecided=2000, blind=2000)
    assert not is_broken(undecided, sizes=HIDDEN)
    assert is_broken(undecided, sizes=VISIBLE)
    assert is_broken(cell(0.0, undecided=2000, blind=100), sizes=HIDDEN)


def test_one_stale_run_that_passed_and_met_a_stale_probe_breaks_a_promise() -> None:
    assert not is_broken(cell(0.05, unmet=92, passed=92, failed=1908))
    assert is_broken(cell(0.05, unmet=92, passed=93, failed=1907))
    assert is_broken(cell(1.0, passed=1, failed=1999))
    assert not is_broken(cell(1.0, undecided=2000, blind=2000))


def whole(pool: tuple[str, str, str]) -> list[Cell]:
    return [
        cell(share, pool=pool, failed=2000 if share else 0, passed=0 if share else 2000)
        for share in (0.0, *STALE_SHARES)
    ]


def test_pools_that_nobody_counted_are_listed_and_nothing_is_said_to_hold_without_them() -> None:
    counted = whole(POOL)
    missing = uncounted(counted)
    assert len(missing) == len(WANTED) - 1
    assert "local, reading, all-36" not in missing
    page = markdown(counted, {POOL: made_pool()}, {POOL: VISIBLE})
    assert "All hold" not in page
    assert all(f"- {line}\n" in page for line in missing)


def test_all_holds_when_every_pool_was_counted_in_full() -> None:
    everything = [one for pool in WANTED for one in whole(pool)]
    sizes = dict.fromkeys(WANTED, VISIBLE)
    assert not uncounted(everything)
    assert "All hold, in all 40 pools." in markdown(everything, {}, sizes)
    fewer = [*everything[:-1], cell(1.0, pool=WANTED[-1], failed=1999)]
    assert uncounted(fewer) == ["vllm, under-load, last3-36"]


def test_the_sizes_of_noise_and_staleness_are_those_of_the_whole_pool() -> None:
    sizes = sizes_of(made_pool())
    # Every second candidate of an answer moves.
    assert READ_NATS / 2 < sizes.noise <= READ_NATS
    assert sizes.staleness == pytest.approx(STALE_NATS / 2)
    assert sizes.is_visible
