from __future__ import annotations

import random
import struct

import blake3
import pytest

from kvrelease.chain import block_keys, cacheable_blocks, cacheable_tokens, common_prefix, prefix_hashes


def naive_keys(tokens: list[int], block: int, namespace: str | None, salt: str | None) -> list[bytes]:
    """A second implementation of docs/keys.md: recursive, and sharing no code."""

    def text(value: str | None) -> bytes:
        return b"\0" if value is None else b"\1" + len(value.encode()).to_bytes(8, "little") + value.encode()

    def derive(context: str, data: bytes) -> bytes:
        return blake3.blake3(data, derive_key_context=context).digest()

    if len(tokens) < block:
        return []
    whole = len(tokens) // block * block
    before = naive_keys(tokens[: whole - block], block, namespace, salt)
    root = derive("kvrelease kvkeys1 root", block.to_bytes(8, "little") + text(namespace) + text(salt))
    ids = b"".join(token.to_bytes(4, "little") for token in tokens[whole - block : whole])
    return [*before, derive("kvrelease kvkeys1 block", (before[-1] if before else root) + ids)]


def test_another_implementation_of_the_document_agrees() -> None:
    rng = random.Random(4)
    texts = (None, "", "kv1-abc", "straße")
    for _ in range(200):
        tokens = [rng.choice((0, 1, 2**32 - 1, rng.randrange(2**32))) for _ in range(rng.randint(0, 20))]
        block, namespace, salt = rng.randint(1, 6), rng.choice(texts), rng.choice(texts)
        found = block_keys(tokens, block_tokens=block, namespace=namespace, salt=salt)
        assert list(found) == naive_keys(tokens, block, namespace, salt)


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


def test_namespace_salt_and_their_absence_are_key_spaces_of_their_own() -> None:
    spaces = [(None, None), ("", None), (None, ""), ("a", None), (None, "a"), ("a", "a"), ("aa", ""), ("", "aa")]
    keys = {block_keys([1, 2], block_tokens=2, namespace=namespace, salt=salt) for namespace, salt in spaces}
    assert len(keys) == len(spaces)


@pytest.mark.parametrize("tokens", [[-1], [2**32], [1.5]])
def test_what_is_no_token_id_is_never_keyed(tokens: list[int]) -> None:
    with pytest.raises(struct.error):
        block_keys(tokens, block_tokens=1)


@pytest.mark.parametrize(
    ("prompt_tokens", "blocks"), [(0, 0), (1, 0), (15, 0), (16, 0), (17, 1), (32, 1), (33, 2), (852, 53)]
)
def test_the_block_of_the_last_token_is_never_cacheable(prompt_tokens: int, blocks: int) -> None:
    assert cacheable_blocks(prompt_tokens, 16) == blocks


@pytest.mark.parametrize(
    ("tokens", "block", "cacheable"),
    [(0, 16, 0), (1, 1, 0), (2, 1, 1), (16, 16, 0), (17, 16, 16), (32, 16, 16), (33, 16, 32), (852, 128, 768)],
)
def test_the_last_token_is_never_cacheable(tokens: int, block: int, cacheable: int) -> None:
    assert cacheable_tokens(tokens, block) == cacheable


def test_the_common_prefix_is_the_longest_one() -> None:
    rng = random.Random(4)
    for _ in range(200):
        one, other = ([rng.randrange(2) for _ in range(rng.randint(0, 9))] for _ in range(2))
        pairs = zip(one, other, strict=False)
        expected = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
        assert common_prefix(one, other) == expected
