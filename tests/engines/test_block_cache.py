"""Keys of blocks, and what a cache keeps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvrelease.engines.block_cache import TOKENS_ONLY, BlockCache, KeyScheme
from kvrelease.engines.block_files import BlockFiles
from kvrelease.engines.blocks import Block, BlockShape

SHAPE = BlockShape(layers=1, kv_heads=1, tokens=2, head_dim=4, dtype="float32")
BLOCK_BYTES = 2 * SHAPE.half_bytes
KEYS = tuple(bytes([index]) * 32 for index in range(1, 7))


def block(fill: int, shape: BlockShape = SHAPE) -> Block:
    return Block(shape=shape, keys=bytes([fill]) * shape.half_bytes, values=bytes([fill + 100]) * shape.half_bytes)


def put(cache: BlockCache, keys: Sequence[bytes], *, fill: int = 1, shape: BlockShape = SHAPE) -> list[int]:
    """Stores a prompt, and tells which of its blocks were asked for."""
    made: list[int] = []

    def make(index: int) -> Block:
        made.append(index)
        return block(fill + index, shape)

    cache.store(keys, shape, make)
    return made


def test_a_key_depends_on_every_token_before_it_and_on_none_after() -> None:
    keys = TOKENS_ONLY.block_keys(range(10), block_tokens=2)
    assert len(set(keys)) == len(keys) == 5
    last_changed = TOKENS_ONLY.block_keys([*range(9), 99], block_tokens=2)
    assert last_changed[:4] == keys[:4]
    assert last_changed[4] != keys[4]
    first_changed = TOKENS_ONLY.block_keys([99, *range(1, 10)], block_tokens=2)
    assert not set(first_changed) & set(keys)


def test_an_incomplete_block_has_no_key() -> None:
    assert TOKENS_ONLY.block_keys([1, 2, 3], block_tokens=4) == ()
    assert len(TOKENS_ONLY.block_keys([1, 2, 3, 4, 5], block_tokens=4)) == 1


def test_namespace_salt_and_block_size_each_make_another_key_space() -> None:
    spaces = [
        (KeyScheme(), None, 2),
        (KeyScheme(), None, 4),
        (KeyScheme(), "", 2),
        (KeyScheme(), "a", 2),
        (KeyScheme(namespace="a"), None, 2),
        (KeyScheme(namespace=""), None, 2),
        (KeyScheme(namespace="a"), "a", 2),
        (KeyScheme(namespace="aa"), "", 2),
    ]
    keys = {scheme.block_keys(range(4), block_tokens=tokens, salt=salt)[0] for scheme, salt, tokens in spaces}
    assert len(keys) == len(spaces)


def test_a_scheme_that_ignores_salts_gives_salted_requests_the_common_keys() -> None:
    scheme = KeyScheme(honours_salt=False)
    assert scheme.block_keys([1, 2], block_tokens=2, salt="x") == TOKENS_ONLY.block_keys([1, 2], block_tokens=2)


def test_keys_stay_what_they_were_so_that_persisted_blocks_are_found_again() -> None:
    keys = KeyScheme(namespace="kv1-abc").block_keys([1, 2, 3, 4], block_tokens=2, salt="s")
    assert [key.hex() for key in keys] == [
        "6dc1a883f3ca13aaf919c1fa649290cb26a28b67d84580953a5bd3aee6454dce",
        "a2cd319a6566584bae0fc687261f7f77ff4343cef6d7cd0721af404fd770b0c6",
    ]


def test_only_an_unbroken_run_from_the_start_is_a_prefix() -> None:
    cache = BlockCache()
    put(cache, KEYS[:3])
    assert len(cache.prefix(KEYS, SHAPE).blocks) == 3
    assert cache.prefix((KEYS[5], *KEYS), SHAPE).blocks == ()
    assert cache.prefix((), SHAPE).blocks == ()


def test_the_first_block_inserted_stays() -> None:
    cache = BlockCache()
    assert put(cache, KEYS[:2], fill=1) == [0, 1]
    assert put(cache, KEYS[:3], fill=50) == [2]
    assert cache.prefix(KEYS, SHAPE).blocks == (block(1), block(2), block(52))


def test_memory_stays_below_its_bound_and_the_least_recent_prompt_goes_first() -> None:
    cache = BlockCache(max_bytes=4 * BLOCK_BYTES)
    put(cache, KEYS[:2])
    put(cache, KEYS[2:4])
    assert len(cache.prefix(KEYS[:2], SHAPE).blocks) == 2  # now the most recent
    put(cache, KEYS[4:6])
    assert len(cache.prefix(KEYS[:2], SHAPE).blocks) == 2
    assert cache.prefix(KEYS[2:4], SHAPE).blocks == ()
    assert (cache.usage().blocks, cache.usage().size_bytes, cache.usage().evicted) == (4, 4 * BLOCK_BYTES, 2)


def test_a_prompt_larger_than_memory_keeps_its_beginning() -> None:
    cache = BlockCache(max_bytes=3 * BLOCK_BYTES)
    put(cache, KEYS)
    assert len(cache.prefix(KEYS, SHAPE).blocks) == 3


def test_a_cache_without_room_keeps_nothing() -> None:
    cache = BlockCache(max_bytes=0)
    put(cache, KEYS)
    assert cache.prefix(KEYS, SHAPE).blocks == ()
    assert cache.usage().size_bytes == 0


@pytest.mark.parametrize(
    "other",
    [
        BlockShape(layers=2, kv_heads=1, tokens=2, head_dim=4, dtype="float32"),
        BlockShape(layers=1, kv_heads=2, tokens=2, head_dim=2, dtype="float32"),
        BlockShape(layers=1, kv_heads=1, tokens=4, head_dim=4, dtype="bfloat16"),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_persisted", [False, True])
def test_a_block_of_another_shape_is_a_counted_miss_and_is_replaced(
    other: BlockShape, is_persisted: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def cache_again() -> BlockCache:
        return BlockCache(files=BlockFiles(tmp_path)) if is_persisted else cache

    cache = BlockCache(files=BlockFiles(tmp_path) if is_persisted else None)
    put(cache, KEYS[:1], shape=other)
    reader = cache_again()
    with caplog.at_level(logging.WARNING):
        assert reader.prefix(KEYS, SHAPE).blocks == ()
        assert reader.prefix(KEYS, SHAPE).blocks == ()
    assert reader.usage().unusable == 1
    assert len(caplog.records) == 1
    assert put(reader, KEYS[:1], fill=9) == [0]
    assert cache_again().prefix(KEYS, SHAPE).blocks == (block(9),)


def test_blocks_outlive_the_cache_that_wrote_them(tmp_path: Path) -> None:
    put(BlockCache(files=BlockFiles(tmp_path)), KEYS[:3])
    again = BlockCache(files=BlockFiles(tmp_path))
    first, second = again.prefix(KEYS, SHAPE), again.prefix(KEYS, SHAPE)
    assert first.blocks == second.blocks == (block(1), block(2), block(3))
    assert (first.from_files, second.from_files) == (3, 0)


def test_a_persisted_block_is_found_after_memory_let_it_go(tmp_path: Path) -> None:
    cache = BlockCache(max_bytes=BLOCK_BYTES, files=BlockFiles(tmp_path))
    put(cache, KEYS[:3])
    assert len(cache.prefix(KEYS, SHAPE).blocks) == 3
    assert cache.usage().size_bytes <= BLOCK_BYTES


def test_the_first_block_persisted_stays_even_for_a_process_that_has_not_read_it(tmp_path: Path) -> None:
    put(BlockCache(files=BlockFiles(tmp_path)), KEYS[:1], fill=1)
    other = BlockCache(files=BlockFiles(tmp_path))
    assert put(other, KEYS[:2], fill=50) == [1]
    assert other.prefix(KEYS, SHAPE).blocks == (block(1), block(51))


def test_a_damaged_file_is_a_counted_miss_and_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = BlockFiles(tmp_path)
    put(BlockCache(files=files), KEYS[:2])
    files.path(KEYS[0]).write_bytes(b"no block")
    cache = BlockCache(files=files)
    with caplog.at_level(logging.WARNING):
        assert cache.prefix(KEYS, SHAPE).blocks == ()
        assert put(cache, KEYS[:2], fill=9) == [0]
    assert cache.usage().unusable == len(caplog.records) == 1
    assert cache.prefix(KEYS, SHAPE).blocks == (block(9), block(2))


def test_clearing_tells_whether_anything_is_left(tmp_path: Path) -> None:
    memory, persisted = BlockCache(), BlockCache(files=BlockFiles(tmp_path))
    assert persisted.clear()
    for cache in (memory, persisted):
        put(cache, KEYS)
    assert memory.clear()
    assert not persisted.clear()
    assert memory.usage().blocks == persisted.usage().blocks == 0
    assert memory.usage().size_bytes == persisted.usage().size_bytes == 0
    assert memory.prefix(KEYS, SHAPE).blocks == ()
    assert len(persisted.prefix(KEYS, SHAPE).blocks) == len(KEYS)


def test_a_cache_knows_whether_one_engine_made_all_that_is_in_it(tmp_path: Path) -> None:
    cache, persisted = BlockCache(), BlockCache(files=BlockFiles(tmp_path))
    for one in (cache, persisted):
        one.attach()
    assert (cache.has_single_writer, cache.is_shared, persisted.has_single_writer) == (True, False, False)
    cache.attach()
    assert (cache.has_single_writer, cache.is_shared) == (False, True)
    cache.detach()
    assert (cache.has_single_writer, cache.is_shared) == (False, False)
