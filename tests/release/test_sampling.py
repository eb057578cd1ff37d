"""Where the fast digest looks, and that it misses no more than it says."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest
from scipy.stats import chisquare

from kvrelease.release.sampling import (
    BLOCK_BYTES,
    SAMPLES,
    WHOLE_BYTES,
    DetectionBound,
    detection_bound,
    sampler_of,
    unseen_anywhere,
    unseen_contiguous,
    unseen_scattered,
)
from tests.release import naive

SPECIFICATION = Path(__file__).parents[2] / "docs" / "fingerprint.md"


def quarters(blocks: int) -> list[int]:
    borders = [quarter * blocks // SAMPLES for quarter in range(SAMPLES + 1)]
    return [end - begin for begin, end in itertools.pairwise(borders)]


def miss(blocks: int, changed: set[int]) -> float:
    """The exact chance that no sample meets a changed block."""
    chance, begin = 1.0, 0
    for size in quarters(blocks):
        chance *= 1 - sum(begin <= block < begin + size for block in changed) / size
        begin += size
    return chance


@pytest.mark.parametrize("size", [0, 1, 1024, 4095, 4096, 4097, 5120, 5121, 7 * 1024, 8 * 1024 + 1, 10**9 + 7])
def test_places_are_those_of_the_specification(size: int) -> None:
    sampler = sampler_of("U8", (size,), size)
    for name in ("a", "model.layers.3.mlp.up_proj.weight", "é", "lm_head.weight"):
        expected = naive.places(name, "U8", [size], size)
        ranges = [(begin, min(BLOCK_BYTES, size - begin)) for begin in sampler.offsets(name)]
        if size <= WHOLE_BYTES:
            assert sum(length for _, length in ranges) == size
        else:
            assert ranges == expected
            assert len(ranges) == SAMPLES


def test_vectors_of_the_specification() -> None:
    """A change here is a change of the algorithm, and needs another algorithm name."""
    number = r"[0-9, ]+"
    row = rf"^\| `([^`]+)` \| (\w+) \| \[({number})\] \| ({number}) \| `([0-9a-f]{{64}})` \|$"
    vectors = re.findall(row, SPECIFICATION.read_text(), re.MULTILINE)
    assert len(vectors) == 4
    for name, dtype, axes, offsets, payload in vectors:
        shape = tuple(int(axis) for axis in axes.split(","))
        size = math.prod(shape) * {"U8": 1, "BF16": 2, "F32": 4}[dtype]
        data = bytes(index % 251 for index in range(size))
        sampler = sampler_of(dtype, shape, size)
        assert sampler.offsets(name) == tuple(int(offset) for offset in offsets.split(","))
        samples = b"".join(data[offset : offset + BLOCK_BYTES] for offset in sampler.offsets(name))
        assert sampler.digest(samples) == payload


def test_name_dtype_shape_and_size_all_move_the_samples() -> None:
    size = 2**30
    places = {
        sampler_of("BF16", (2**15, 2**14), size).offsets("a"),
        sampler_of("BF16", (2**15, 2**14), size).offsets("b"),
        sampler_of("F16", (2**15, 2**14), size).offsets("a"),
        sampler_of("BF16", (2**14, 2**15), size).offsets("a"),
        # Of a dtype that is not known the size is what the file says.
        sampler_of("BF16", (2**15, 2**14), size + 2**20).offsets("a"),
    }
    assert len(places) == 5


def test_an_output_layer_is_sampled_where_the_embeddings_are() -> None:
    sampler = sampler_of("BF16", (32000, 4096), 32000 * 4096 * 2)
    assert sampler.offsets("lm_head.weight") == sampler.offsets("model.embed_tokens.weight")


def test_every_block_of_a_quarter_is_as_likely() -> None:
    blocks = 46  # quarters of 11, 12, 11 and 12
    sampler = sampler_of("U8", (blocks * BLOCK_BYTES,), blocks * BLOCK_BYTES)
    counts = [0] * blocks
    for number in range(20_000):
        for offset in sampler.offsets(f"model.layers.{number}.weight"):
            counts[offset // BLOCK_BYTES] += 1
    begin = 0
    for size in quarters(blocks):
        assert chisquare(counts[begin : begin + size]).pvalue > 0.001
        assert sum(counts[begin : begin + size]) == 20_000
        begin += size


@pytest.mark.parametrize("blocks", range(5, 41))
def test_no_piece_goes_unseen_more_often_than_stated(blocks: int) -> None:
    size = blocks * BLOCK_BYTES
    for length in range(1, blocks + 1):
        worst = max(miss(blocks, set(range(begin, begin + length))) for begin in range(blocks - length + 1))
        # The shortest piece that touches so many blocks for certain.
        stated = unseen_contiguous(size, (length - 1) * BLOCK_BYTES + 1)
        assert worst <= stated + 1e-12
    assert unseen_contiguous(size, size) == 0.0


def test_the_bound_of_a_piece_is_tight_for_large_tensors() -> None:
    blocks = 4000
    worst = max(miss(blocks, set(range(begin, begin + 400))) for begin in range(blocks - 400))
    assert worst == pytest.approx(unseen_contiguous(blocks * BLOCK_BYTES, 400 * BLOCK_BYTES), abs=1e-9)
    assert worst == pytest.approx((1 - 2 * 0.1) ** 2)


def test_half_a_tensor_in_one_piece_is_always_seen() -> None:
    for blocks in (8, 100, 1000):
        assert unseen_contiguous(blocks * BLOCK_BYTES, blocks * BLOCK_BYTES // 2) == 0.0


@pytest.mark.parametrize("blocks", range(5, 12))
def test_no_pattern_goes_unseen_more_often_than_stated(blocks: int) -> None:
    size = blocks * BLOCK_BYTES
    for count in range(1, blocks + 1):
        worst = max(miss(blocks, set(changed)) for changed in itertools.combinations(range(blocks), count))
        assert worst <= unseen_anywhere(size, count) + 1e-12


@pytest.mark.parametrize("last_bytes", [2, 100, 1022, BLOCK_BYTES])
def test_scattered_changes_are_seen_as_often_as_stated(last_bytes: int) -> None:
    """Exact: whatever its name puts into the samples, no tensor of two-byte elements misses more than is stated."""
    size, share = 40 * BLOCK_BYTES + last_bytes, 1 / 2000
    elements = size // 2
    sampler = sampler_of("BF16", (elements,), size)
    read = {
        sum(min(BLOCK_BYTES, size - begin) // 2 for begin in sampler.offsets(f"t{number}")) for number in range(200)
    }
    # With or without the last block, which is short unless the size is one of whole blocks.
    assert read == {SAMPLES * BLOCK_BYTES // 2, ((SAMPLES - 1) * BLOCK_BYTES + last_bytes) // 2}
    assert unseen_scattered(size, elements, share) == pytest.approx((1 - share) ** min(read), rel=1e-12)


def test_what_is_read_whole_can_miss_nothing() -> None:
    assert unseen_contiguous(WHOLE_BYTES, 1) == unseen_scattered(WHOLE_BYTES, 2048, 1e-9) == 0.0
    assert unseen_anywhere(WHOLE_BYTES, 1) == 0.0
    assert detection_bound([((4,), 16), ((2048,), 4096)]) == DetectionBound(
        tensors_whole=2, tensors_sampled=0, bytes_read=4112, unseen=()
    )


def test_the_bound_of_a_release_is_that_of_its_worst_tensor() -> None:
    small, large = ((3000,), 6000), ((2**20,), 2**21)
    bound = detection_bound([small, large, small])
    assert (bound.tensors_sampled, bound.bytes_read) == (3, 3 * WHOLE_BYTES)
    for unseen in bound.unseen:
        alone = [detection_bound([tensor]).unseen for tensor in (small, large)]
        same = [next(one for one in each if one.share == unseen.share) for each in alone]
        assert unseen.contiguous == max(one.contiguous for one in same)
        assert unseen.scattered == max(one.scattered for one in same)
    shares = [unseen.share for unseen in bound.unseen]
    assert shares == sorted(shares)


def test_a_dtype_without_elements_counts_eight_bytes_each() -> None:
    assert unseen_scattered(8192, 0, 0.01) == unseen_scattered(8192, 1024, 0.01)
