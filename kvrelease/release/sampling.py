"""Which bytes of a tensor the fast digest reads, and what it can therefore miss. Pure; docs/fingerprint.md to the byte.

The place of a sample depends on the tensor's name, dtype, shape and size alone, so that every run reads the same bytes
and a change shows as another digest. Four quarters with one sample each see every change of half a tensor in one piece.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections import Counter
from collections.abc import Iterable

import msgspec
from blake3 import blake3

from kvrelease.release.algorithm import FAST_ALGORITHM
from kvrelease.release.canonical import frame
from kvrelease.release.impact import EMBEDDINGS, OUTPUT_LAYER

BLOCK_BYTES = 1024
SAMPLES = 4
# Up to here the samples are the whole tensor.
WHOLE_BYTES = SAMPLES * BLOCK_BYTES

# An output layer that may be a copy of the embeddings is sampled where they are: whether it is one shows then, too.
_PLACED_AS = {OUTPUT_LAYER: EMBEDDINGS}
_SEED = struct.Struct("<4Q")
# Releases have a few dozen combinations of dtype, shape and size.
_SAMPLERS_KEPT = 4096
# The shares that an artifact states; a tenth of a tensor is a few experts of many, a ten thousandth a row.
_STATED_SHARES = (0.0001, 0.001, 0.01, 0.1, 0.5)


class Unseen(msgspec.Struct, frozen=True, kw_only=True):
    """How likely a change of one tensor goes unseen, at most.

    Attributes:
        share: of the tensor's bytes that the change covers, above 0 and at most 1.
        contiguous: where they lie in one piece.
        scattered: where each element changes by chance, independently, with this share.
    """

    share: float
    contiguous: float
    scattered: float


class DetectionBound(msgspec.Struct, frozen=True, kw_only=True):
    """What a fast digest of a release can miss.

    Attributes:
        samples: of each tensor that is not read whole.
        sample_bytes: of one sample.
        tensors_whole: tensors of which every byte is read.
        tensors_sampled: the others.
        bytes_read: of tensors.
        unseen: chances for the worst tensor, by share; empty where every tensor is read whole.
    """

    samples: int = SAMPLES
    sample_bytes: int = BLOCK_BYTES
    tensors_whole: int
    tensors_sampled: int
    bytes_read: int
    unseen: tuple[Unseen, ...]


class Sampler:
    """Where the samples of tensors of one dtype, shape and size lie, and their digest. Get one from `sampler_of`."""

    __slots__ = ("_digest_head", "_quarters", "_seed_head", "_size_bytes")

    def __init__(self, dtype: str, shape: tuple[int, ...], size_bytes: int) -> None:
        axes = b"".join(axis.to_bytes(8, "little") for axis in shape)
        self._seed_head = frame(f"{FAST_ALGORITHM} positions".encode(), dtype.encode(), axes)
        self._digest_head = frame(f"{FAST_ALGORITHM} payload".encode(), dtype.encode(), axes)
        self._digest_head += size_bytes.to_bytes(8, "little")
        self._size_bytes = size_bytes
        blocks = -(-size_bytes // BLOCK_BYTES)
        borders = [quarter * blocks // SAMPLES for quarter in range(SAMPLES + 1)]
        begins = [begin * BLOCK_BYTES for begin in borders[1:SAMPLES]]
        self._quarters = (*begins, *(end - begin for begin, end in itertools.pairwise(borders)))

    def offsets(self, name: str, *, base: int = 0) -> tuple[int, ...]:
        """Where the samples of a tensor of this name begin, ascending.

        Each is `BLOCK_BYTES` long, the tensor's last block as long as what is left; of a tensor of at most
        `WHOLE_BYTES` they are all of it.

        Args:
            name: of the tensor.
            base: where the tensor itself begins.
        """
        if self._size_bytes <= WHOLE_BYTES:
            return tuple(range(base, base + self._size_bytes, BLOCK_BYTES))
        raw = _PLACED_AS.get(name, name).encode()
        one, two, three, four = _SEED.unpack(blake3(self._seed_head + len(raw).to_bytes(8, "little") + raw).digest())
        second_begin, third_begin, fourth_begin, first, second, third, fourth = self._quarters
        return (
            base + one % first * BLOCK_BYTES,
            base + second_begin + two % second * BLOCK_BYTES,
            base + third_begin + three % third * BLOCK_BYTES,
            base + fourth_begin + four % fourth * BLOCK_BYTES,
        )

    def digest(self, *samples: bytes | bytearray | memoryview) -> str:
        """The hex digest of a tensor's samples, in the order of their places."""
        return blake3(b"".join((self._digest_head, *samples))).digest().hex()


@functools.lru_cache(maxsize=_SAMPLERS_KEPT)
def sampler_of(dtype: str, shape: tuple[int, ...], size_bytes: int) -> Sampler:
    """The sampler of a kind of tensor."""
    return Sampler(dtype, shape, size_bytes)


def unseen_contiguous(size_bytes: int, changed_bytes: int) -> float:
    """The highest chance that a change of so many bytes in one piece meets no sample, wherever it begins.

    A piece of *b* bytes touches at least ⌈b ∕ 1024⌉ = *m* blocks. Where it reaches over one border of two quarters of
    at most *N* blocks each, *m* = *a* + *c*, the chance is (1 − a∕N)(1 − c∕N), at most (1 − m∕2N)². Within one quarter
    it is lower; a quarter that is covered is seen.
    """
    if size_bytes <= WHOLE_BYTES:
        return 0.0
    touched = -(-changed_bytes // BLOCK_BYTES)
    return max(0.0, 1.0 - touched / (2 * _largest_quarter(size_bytes))) ** 2


def unseen_anywhere(size_bytes: int, changed_blocks: int) -> float:
    """The highest chance that a change of so many blocks meets no sample, whatever its pattern.

    With *m* blocks of a quarter of *N* changed, its sample misses with 1 − m∕N; the product over the quarters is
    highest where they are equal.
    """
    if size_bytes <= WHOLE_BYTES:
        return 0.0
    return max(0.0, 1.0 - changed_blocks / (SAMPLES * _largest_quarter(size_bytes))) ** SAMPLES


def unseen_scattered(size_bytes: int, elements: int, share: float) -> float:
    """The highest chance that none of the sampled elements changed, where each does with `share`, independently.

    Args:
        size_bytes: of the tensor.
        elements: of the tensor; 0 where the shape does not tell, then they count as 8 bytes each.
        share: between 0 and 1.
    """
    if size_bytes <= WHOLE_BYTES:
        return 0.0
    last_block = size_bytes % BLOCK_BYTES or BLOCK_BYTES
    read = (SAMPLES - 1) * BLOCK_BYTES + last_block
    return (1.0 - share) ** int(read * (elements or size_bytes / 8) / size_bytes)


def _largest_quarter(size_bytes: int) -> int:
    """Blocks in the largest of the four."""
    return math.ceil(math.ceil(size_bytes / BLOCK_BYTES) / SAMPLES)


def detection_bound(tensors: Iterable[tuple[tuple[int, ...], int]]) -> DetectionBound:
    """What a fast digest can miss of tensors of these shapes and sizes in bytes.

    The chances are taken over the pseudo-random places, which do not depend on the content: they hold for every change
    that was made without regard to them. Somebody who wants to hide a change can avoid them.
    """
    counts = Counter(tensors)
    sampled = {tensor: count for tensor, count in counts.items() if tensor[1] > WHOLE_BYTES}
    whole = {tensor: count for tensor, count in counts.items() if tensor[1] <= WHOLE_BYTES}
    return DetectionBound(
        tensors_whole=sum(whole.values()),
        tensors_sampled=sum(sampled.values()),
        bytes_read=sum(size * count for (_, size), count in whole.items()) + sum(sampled.values()) * WHOLE_BYTES,
        unseen=tuple(
            Unseen(
                share=share,
                contiguous=max(unseen_contiguous(size, math.ceil(size * share)) for _, size in sampled),
                scattered=max(unseen_scattered(size, math.prod(shape), share) for shape, size in sampled),
            )
            for share in _STATED_SHARES
            if sampled
        ),
    )
