"""What share of changes `full` and `fast` see: `python -m benchmarks.detection [TRIALS]` prints a table.

A small sharded model with fused expert matrices is changed on disk, one seeded change at a time, and fingerprinted
again by both modes as a user would; then the bytes are put back. `fast` is compared with the chance that its stated
bound leaves it: it may not see less than that, beyond chance. The bound speaks of places that depend on names, so the
tensors have other names in every trial.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from scipy.stats import poisson_binom

from benchmarks.shapes import Tensor, write_model
from kvrelease.release.address import open_source
from kvrelease.release.checkpoint import read_checkpoint
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from kvrelease.release.sampling import unseen_anywhere, unseen_contiguous
from kvrelease.release.weights import StoredTensor

TRIALS = 200
EXPERTS = 8
LAYERS = 4
TAG = "t00000000"
# A bound that holds is still fallen short of once in so many tables.
ALPHA = 0.001


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Byte ranges that get other bytes, and the highest chance that the samples of all of them miss it."""

    ranges: tuple[tuple[StoredTensor, int, int], ...]
    is_bit: bool = False
    unseen: float


Draw = Callable[[Sequence[StoredTensor], random.Random], Change]


def main(arguments: list[str]) -> None:
    """Prints one row per kind of change; ends 1 where `full` missed one or `fast` sees less than its bound says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description=__doc__)
    parser.add_argument("trials", type=int, nargs="?", default=TRIALS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kvrelease-detection-") as place:
        model = write_model(Path(place) / "model", _tensors(), shards=3, config=_config(), seed=options.seed)
        tensors = _stored(model)
        total = sum(tensor.size_bytes for tensor in tensors)
        print(
            f"{len(tensors)} tensors, {total / 1e6:.1f} MB in 3 shards, {options.trials} trials, seed {options.seed}\n"
        )
        heads = ("change", "`full` sees", "`fast` sees", "its bound: at least", "agrees")
        print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        is_right = True
        for name, draw in KINDS.items():
            row, agrees = _row(name, draw, model, trials=options.trials, seed=options.seed)
            print(f"| {' | '.join(row)} |", flush=True)
            is_right = is_right and agrees
    sys.exit(0 if is_right else 1)


def _row(name: str, draw: Draw, model: Path, *, trials: int, seed: int) -> tuple[tuple[str, ...], bool]:
    seen = dict.fromkeys(Mode, 0)
    chances = []
    for trial in range(trials):
        generator = random.Random(f"{seed} {name} {trial}")  # noqa: S311 - drawn to be repeated, no secret
        _rename(model, tag=generator.randrange(16**8))
        before = {mode: load_release(model, mode=mode) for mode in Mode}
        change = draw(_stored(model), generator)
        with _changed(change, generator):
            for mode in Mode:
                seen[mode] += load_release(model, mode=mode).digests.weights != before[mode].digests.weights
        chances.append(1 - change.unseen)
    expected = sum(chances) / trials
    # As few as were seen, or fewer, by chance alone, had every change been seen just as often as the bound says.
    is_short = float(poisson_binom.cdf(seen[Mode.FAST], chances)) < ALPHA
    agrees = seen[Mode.FULL] == trials and not is_short
    shares = [f"{seen[mode] / trials:.1%}" for mode in Mode]
    return (name, *shares, f"{expected:.2%}", "yes" if agrees else "NO"), agrees


def _stored(model: Path) -> list[StoredTensor]:
    return [tensor for file in read_checkpoint(open_source(model)).files for tensor in file.tensors]


def _rename(model: Path, *, tag: int) -> None:
    """Gives every tensor another name of the same length, in the index and in the headers."""
    for path in model.iterdir():
        with path.open("r+b") as file:
            head = file.read(8)
            header = file.read(int.from_bytes(head, "little")) if path.suffix == ".safetensors" else b""
            text = header or head + file.read()
            file.seek(len(head) if header else 0)
            file.write(re.sub(rb"t[0-9a-f]{8}", b"t%08x" % tag, text))


class _changed:  # noqa: N801 - reads as what it is: `with _changed(…)`
    """Other bytes in some ranges, and the old ones back afterwards."""

    def __init__(self, change: Change, generator: random.Random) -> None:
        self._change, self._generator = change, generator
        self._before: list[tuple[str, int, bytes]] = []

    def __enter__(self) -> None:
        for tensor, begin, end in self._change.ranges:
            offset = tensor.offset + begin
            with Path(tensor.where).open("r+b") as file:
                file.seek(offset)
                old = file.read(end - begin)
                self._before.append((tensor.where, offset, old))
                file.seek(offset)
                file.write(self._other(old))

    def _other(self, old: bytes) -> bytes:
        if self._change.is_bit:
            return bytes([old[0] ^ 1 << self._generator.randrange(8)])
        # Every element changes: in its low byte, as a fine-tune changes it, by an odd number.
        new = bytearray(old)
        new[::2] = bytes(byte ^ (1 + 2 * self._generator.randrange(128)) for byte in old[::2])
        return bytes(new)

    def __exit__(self, *_: object) -> None:
        for where, offset, old in self._before:
            with Path(where).open("r+b") as file:
                file.seek(offset)
                file.write(old)


def _piece(tensor: StoredTensor, begin: int, end: int, *, is_bit: bool = False) -> Change:
    return Change(
        ranges=((tensor, begin, end),), is_bit=is_bit, unseen=unseen_contiguous(tensor.size_bytes, end - begin)
    )


def _matrices(tensors: Iterable[StoredTensor]) -> list[StoredTensor]:
    return [tensor for tensor in tensors if len(tensor.shape) > 1]


def _bit(tensors: Sequence[StoredTensor], generator: random.Random) -> Change:
    tensor = _by_size(tensors, generator)
    byte = generator.randrange(tensor.size_bytes)
    return _piece(tensor, byte, byte + 1, is_bit=True)


def _element(tensors: Sequence[StoredTensor], generator: random.Random) -> Change:
    tensor = _by_size(tensors, generator)
    element = generator.randrange(tensor.size_bytes // 2)
    return _piece(tensor, 2 * element, 2 * element + 2)


def _row_of(tensors: Sequence[StoredTensor], generator: random.Random) -> Change:
    tensor = generator.choice(_matrices(tensors))
    row_bytes = tensor.shape[-1] * 2
    row = generator.randrange(tensor.size_bytes // row_bytes)
    return _piece(tensor, row * row_bytes, (row + 1) * row_bytes)


def _column_of(tensors: Sequence[StoredTensor], generator: random.Random) -> Change:
    """An element of every row: not in one piece, and in nearly every block."""
    tensor = generator.choice([one for one in tensors if len(one.shape) == 2])
    rows, columns = tensor.shape
    column = generator.randrange(columns)
    places = [2 * (row * columns + column) for row in range(rows)]
    blocks = len({place // 1024 for place in places})
    return Change(
        ranges=tuple((tensor, place, place + 2) for place in places),
        unseen=unseen_anywhere(tensor.size_bytes, blocks),
    )


def _expert(tensors: Sequence[StoredTensor], generator: random.Random) -> Change:
    tensor = generator.choice([one for one in tensors if len(one.shape) == 3])
    size = tensor.size_bytes // EXPERTS
    expert = generator.randrange(EXPERTS)
    return _piece(tensor, expert * size, (expert + 1) * size)


def _tensor(tensors: Sequence[StoredTensor], generator: random.Random) -> Change:
    tensor = generator.choice(tensors)
    return _piece(tensor, 0, tensor.size_bytes)


def _layer(tensors: Sequence[StoredTensor], generator: random.Random) -> Change:
    layer = generator.randrange(LAYERS)
    changed = [tensor for tensor in tensors if f".layers.{layer}." in tensor.name]
    return Change(ranges=tuple((tensor, 0, tensor.size_bytes) for tensor in changed), unseen=0.0)


KINDS: dict[str, Draw] = {
    "one bit": _bit,
    "one element": _element,
    "one row": _row_of,
    "one column": _column_of,
    "one expert of 8, fused": _expert,
    "one tensor": _tensor,
    "one layer": _layer,
}


def _by_size(tensors: Sequence[StoredTensor], generator: random.Random) -> StoredTensor:
    """A tensor, each as likely as it is large: where a bit that flips on its own would be."""
    (tensor,) = generator.choices(tensors, weights=[tensor.size_bytes for tensor in tensors])
    return tensor


def _tensors() -> list[Tensor]:
    """Four layers with attention and eight fused experts each, about 6 MB."""
    hidden, inner, vocabulary = 128, 192, 1000
    found = [
        Tensor(f"model.{TAG}.embed_tokens.weight", "BF16", (vocabulary, hidden)),
        Tensor(f"model.{TAG}.norm.weight", "BF16", (hidden,)),
        Tensor(f"model.{TAG}.lm_head.weight", "BF16", (vocabulary, hidden)),
    ]
    for layer in range(LAYERS):
        prefix = f"model.{TAG}.layers.{layer}"
        found += [Tensor(f"{prefix}.{norm}.weight", "BF16", (hidden,)) for norm in ("input_layernorm", "post_norm")]
        found += [
            Tensor(f"{prefix}.self_attn.{part}.weight", "BF16", (hidden, hidden)) for part in ("q", "k", "v", "o")
        ]
        found.append(Tensor(f"{prefix}.mlp.experts.gate_up_proj", "BF16", (EXPERTS, 2 * inner, hidden)))
        found.append(Tensor(f"{prefix}.mlp.experts.down_proj", "BF16", (EXPERTS, hidden, inner)))
    return found


def _config() -> str:
    return json.dumps({"model_type": "mixture", "num_hidden_layers": LAYERS})


if __name__ == "__main__":
    main(sys.argv[1:])
