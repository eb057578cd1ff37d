from __future__ import annotations

import random
import struct

import blake3
import pytest

from kvrelease.workload.chain import prefix_hashes


def test_the_chain_is_what_its_description_says() -> None:
    def digest(data: bytes) -> bytes:
        return blake3.blake3(data).digest()[:16]

    first = digest(digest(b"kvchain1 2") + struct.pack("<III", 2, 7, 8))
    second = digest(first + struct.pack("<III", 2, 9, 70_000))
    assert prefix_hashes([7, 8, 9, 70_000, 5], 2) == (first, second)


def test_hashes_agree_exactly_as_far_as_tokens_do() -> None:
    rng = random.Random(4)
    for _ in range(200):
        block = rng.randint(1, 4)
        common = [rng.randrange(3) for _ in range(rng.randint(0, 12))]
        one, other = common + [8] * rng.randint(0, 9), common + [9] * rng.randint(0, 9)
        shared = len(set(prefix_hashes(one, block)) & set(prefix_hashes(other, block)))
        assert shared == len(common) // block if len(one) // block and len(other) // block else shared == 0


@pytest.mark.parametrize(("tokens", "hashes"), [(0, 0), (15, 0), (16, 1), (17, 1), (32, 2)])
def test_only_full_blocks_have_a_hash(tokens: int, hashes: int) -> None:
    assert len(prefix_hashes([1] * tokens, 16)) == hashes


def test_equal_blocks_at_other_places_or_of_other_size_differ() -> None:
    hashes = prefix_hashes([1] * 32, 16)
    assert len({*hashes, *prefix_hashes([1] * 32, 8), *prefix_hashes([1] * 32, 32)}) == 2 + 4 + 1
    assert {len(value) for value in hashes} == {16}
