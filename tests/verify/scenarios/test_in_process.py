"""Scenarios on the in-process engine: shared and persistent stores, canaries, rollbacks, late writers, eight bits.

Real weights and real KV of tiny random releases; what a shared store, a second replica or a restart does is real too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvrelease.artifacts import Verdict
from kvrelease.engines.block_cache import TOKENS_ONLY, BlockCache, KeyScheme
from kvrelease.engines.block_files import BlockFiles
from kvrelease.engines.kernel_noise import KernelNoise
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.checks import CheckId
from kvrelease.verify.consistency import ProbeVerdict
from kvrelease.verify.judge import VerifyReport
from kvrelease.verify.twins import Twins
from tests.verify.deployments import namespace_of
from tests.verify.scenarios.in_process import BILLING, BLOCK, PROMPTS, RETURNS, Releases, asked, gate, request, serve
from tests.verify.scenarios.verdicts import assert_fails, assert_passes, deciding, says

# What salts of requests do not reach: a connector that keys by tokens, or one that was given the namespace.
UNSALTED_STORE = KeyScheme(honours_salt=False)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    return Releases(tmp_path_factory.mktemp("releases"))


@pytest.fixture(scope="module")
def in_eight_bits(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    return Releases(tmp_path_factory.mktemp("eight"), kv_cache_dtype="fp8_e4m3")


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(IN_MEMORY) as store:
        yield store


def stored(directory: Path) -> BlockCache:
    """The cache of a process that has just been started over a directory of blocks."""
    return BlockCache(files=BlockFiles(directory))


def test_a_restart_over_a_persistent_store(releases: Releases, tmp_path: Path) -> None:
    serve(releases.replica("old", cache=stored(tmp_path / "a")))
    stale = gate(releases.replica("new", cache=stored(tmp_path / "a")))
    # A new process may hit what an earlier one left: how many tokens it hit proves nothing, what it answers does.
    assert_fails(stale, CheckId.CONSISTENCY)
    assert "their origin is unknown: consistency decides" in says(stale, CheckId.FIRST_TOUCH)
    assert "answer from KV that this release did not make" in says(stale, CheckId.CONSISTENCY)
    assert "prefixes: billing, returns" in says(stale, CheckId.CONSISTENCY)

    for release in ("old", "new"):
        bound = KeyScheme(namespace=namespace_of(release))
        serve(releases.replica(release, cache=stored(tmp_path / "b"), key_scheme=bound))
    clean = gate(releases.replica("new", cache=stored(tmp_path / "b"), key_scheme=bound))
    assert_passes(clean)
    assert all(probe.cached_tokens for probe in clean.probes)
    assert "hit tokens are of unknown origin" in clean.reason


def test_a_canary_with_a_fifth_of_the_traffic_shares_a_store(releases: Releases) -> None:
    """https://github.com/vllm-project/vllm/pull/45767: old and new deployment on one store read each other's KV."""

    def canary(*, is_bound: bool) -> tuple[BlockCache, dict[str, str | None]]:
        store = BlockCache()
        salts = {name: namespace_of(name) if is_bound else None for name in ("old", "new")}
        replicas = {name: releases.replica(name, cache=store) for name in salts}
        for turn, prompt in enumerate(PROMPTS.prompts * 3):
            name = "new" if turn % 5 == 4 else "old"
            serve(replicas[name], [prompt], salt=salts[name])
        return store, salts

    store, _ = canary(is_bound=False)
    stale = gate(releases.replica("new", cache=store))
    assert_fails(stale, CheckId.CONSISTENCY)

    store, salts = canary(is_bound=True)
    clean = gate(releases.replica("new", cache=store), deployed=asked(salt=salts["new"]))
    assert_passes(clean)


def test_a_rollback_finds_its_own_entries_current_and_the_new_release_s_foreign(
    releases: Releases, tmp_path: Path, ledger: Ledger
) -> None:
    def rolled_back(directory: Path, *, salts: dict[str, str | None]) -> None:
        serve(releases.replica("old", cache=stored(directory)), RETURNS, salt=salts["old"])
        serve(releases.replica("new", cache=stored(directory)), PROMPTS.prompts, salt=salts["new"])

    rolled_back(tmp_path / "a", salts={"old": None, "new": None})
    stale = gate(releases.replica("old", cache=stored(tmp_path / "a")), deployed=asked("old"), ledger=ledger)
    assert_fails(stale, CheckId.CONSISTENCY)
    verdicts = {probe.id: probe.verdict for probe in stale.probes}
    assert {verdicts[prompt.id] for prompt in RETURNS} == {ProbeVerdict.CLEAN}
    assert ProbeVerdict.STALE in {verdicts[prompt.id] for prompt in BILLING}
    assert "prefixes: billing" in says(stale, CheckId.CONSISTENCY)
    assert "returns" not in says(stale, CheckId.CONSISTENCY)

    salts: dict[str, str | None] = {name: namespace_of(name) for name in ("old", "new")}
    rolled_back(tmp_path / "b", salts=salts)
    clean = gate(
        releases.replica("old", cache=stored(tmp_path / "b")), deployed=asked("old", salt=salts["old"]), ledger=ledger
    )
    assert_passes(clean)
    assert [bool(probe.cached_tokens) for probe in clean.probes].count(True) >= len(RETURNS)


def test_a_late_write_of_an_old_replica_after_the_purge(releases: Releases) -> None:
    def after_purge(*, old_writes_late: bool) -> BlockCache:
        store = BlockCache()
        draining = releases.replica("old", cache=store)
        serve(draining, RETURNS)
        store.clear()
        if old_writes_late:
            serve(draining, BILLING)
        return store

    stale = gate(releases.replica("new", cache=after_purge(old_writes_late=True)))
    assert_fails(stale, CheckId.CONSISTENCY)
    assert "prefixes: billing" in says(stale, CheckId.CONSISTENCY)
    assert "returns" not in says(stale, CheckId.CONSISTENCY)
    assert_passes(gate(releases.replica("new", cache=after_purge(old_writes_late=False))))


def test_one_bad_replica_of_three(releases: Releases, tmp_path: Path) -> None:
    dirty = BlockCache()
    serve(releases.replica("old", cache=dirty))
    places = [tmp_path / name for name in ("a", "b", "c")]
    for place in places:
        place.symlink_to(releases.root / "new")
    replicas = [
        releases.replica("new", directory=place, cache=dirty if place.name == "b" else None) for place in places
    ]
    stale = gate(*replicas)
    assert_fails(stale, CheckId.CONSISTENCY, CheckId.REPLICAS)
    assert says(stale, CheckId.REPLICAS) == f"fail: failed: {places[1]}"
    assert says(stale, CheckId.CONSISTENCY, replica=str(places[0])).startswith("pass")
    clean = gate(*(releases.replica("new", directory=place) for place in places))
    assert_passes(clean)
    assert says(clean, CheckId.REPLICAS) == "pass: all 3 pass"


def test_old_weights_still_loaded_under_the_new_label(releases: Releases, tmp_path: Path) -> None:
    label = tmp_path / "new"
    label.symlink_to(releases.root / "old")
    twins = Twins(release=releases.replica("new"), old_release=releases.replica("old"))
    stale = gate(releases.replica("old", directory=label), twins=twins)
    assert_fails(stale, CheckId.IDENTITY)
    assert "The engine runs the old weights: load the new release, then verify again" in says(stale, CheckId.IDENTITY)
    assert says(stale, CheckId.IDENTITY).endswith(f"labels (hints only): root={label}")
    assert says(stale, CheckId.CONSISTENCY).startswith("pass")
    assert_passes(gate(releases.replica("new"), twins=twins))


def test_kv_in_eight_bits(in_eight_bits: Releases) -> None:
    store = BlockCache()
    serve(in_eight_bits.replica("old", cache=store))
    stale = gate(in_eight_bits.replica("new", cache=store))
    assert_fails(stale, CheckId.CONSISTENCY)
    clean = gate(in_eight_bits.replica("new"))
    assert_passes(clean)
    # What a hit reads was rounded to eight bits, what a miss computes was not: that is noise of this engine.
    for report in (stale, clean):
        assert 1e-3 < (report.noise_floor.max or 0.0) < 0.05


def test_stale_from_a_block_on(releases: Releases, tmp_path: Path) -> None:
    """A purge that was cut short took the first blocks of each prompt, and left what follows them."""

    def purged(directory: Path, *, is_whole: bool) -> BlockCache:
        writer = releases.replica("old", cache=stored(directory))
        serve(writer)
        for prompt in PROMPTS.prompts:
            token_ids = asyncio.run(writer.tokenize(request(prompt)))
            keys = TOKENS_ONLY.block_keys(token_ids, block_tokens=BLOCK)
            for key in keys if is_whole else keys[:1]:
                BlockFiles(directory).path(key).unlink(missing_ok=True)
        return stored(directory)

    stale = gate(releases.replica("new", cache=purged(tmp_path / "a", is_whole=False)))
    assert_fails(stale, CheckId.CONSISTENCY)
    # The first prompt of each desk missed, wrote the first block anew, and met the rest when it was asked again.
    assert {probe.prefix for probe in stale.probes if probe.verdict is ProbeVerdict.STALE} == {"returns", "billing"}
    assert_passes(gate(releases.replica("new", cache=purged(tmp_path / "b", is_whole=True))))


def test_degenerate_output_from_a_store(releases: Releases, tmp_path: Path) -> None:
    """Values that no format of KV holds: what a scale that was lost on the way leaves behind.

    https://github.com/raullenchai/Rapid-MLX/pull/2202: a persisted cache of another build makes a new one answer
    `!!!!`, and an empty cache is fine.
    """
    serve(releases.replica("new", cache=stored(tmp_path / "a")))
    files = BlockFiles(tmp_path / "a")
    shape = releases.replica("new").shape
    for path in list(files.directory.iterdir()):
        key = bytes.fromhex(path.stem)
        block = files.read(key, shape)
        assert block is not None
        nan = np.full(len(block.values) // 4, np.nan, np.float32).tobytes()
        files.write(key, msgspec.structs.replace(block, values=nan))
    stale = gate(releases.replica("new", cache=stored(tmp_path / "a")))
    assert CheckId.DEGENERATE in deciding(stale)
    assert stale.verdict is Verdict.FAIL
    assert "4 of 4 answers are degenerate: " in says(stale, CheckId.DEGENERATE)
    assert "a missing or NaN log-probability" in says(stale, CheckId.DEGENERATE)

    serve(releases.replica("new", cache=stored(tmp_path / "b")))
    clean = gate(releases.replica("new", cache=stored(tmp_path / "b")))
    assert_passes(clean)
    assert says(clean, CheckId.DEGENERATE) == "pass: 4 answers are alive"


def test_a_store_that_ignores_salts(releases: Releases) -> None:
    def salted(*, served_before: str) -> VerifyReport:
        store = BlockCache()
        serve(releases.replica(served_before, cache=store, key_scheme=UNSALTED_STORE), salt=namespace_of(served_before))
        canary = releases.replica("new", cache=store, key_scheme=UNSALTED_STORE)
        return gate(canary, deployed=asked(salt="release"))

    stale = salted(served_before="old")
    assert_fails(stale, CheckId.BINDING, CheckId.CONSISTENCY)
    assert "ignores the salt" in says(stale, CheckId.BINDING)
    assert "reference legs by bypass" in says(stale, CheckId.BYPASS)
    # Nothing stale is there, and the next release would find it all the same: production is said to be bound.
    clean = salted(served_before="new")
    assert_fails(clean, CheckId.BINDING)
    assert says(clean, CheckId.CONSISTENCY).startswith("pass")


def test_kernel_noise_of_a_bounded_size(releases: Releases) -> None:
    def after_traffic(*, of: str, noise: KernelNoise) -> VerifyReport:
        store = BlockCache()
        serve(releases.replica(of, cache=store, noise=noise))
        return gate(releases.replica("new", cache=store, noise=noise))

    # What a prefill in another batch leaves in an entry, and what each pass adds, as docs/statistics.md measured them.
    noise = KernelNoise(written=0.002, read=0.001, seed=7)
    clean = after_traffic(of="new", noise=noise)
    assert clean.verdict is not Verdict.FAIL
    assert says(clean, CheckId.CONSISTENCY).startswith("pass")
    assert 1e-4 < (clean.noise_floor.max or 0.0) < 0.02
    assert_fails(after_traffic(of="old", noise=noise), CheckId.CONSISTENCY)
