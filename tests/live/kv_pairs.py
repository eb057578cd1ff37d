"""What kvrelease says of real upgrades of SmolLM2-135M, beside the K and V that each of them really makes.

python -m tests.live.kv_pairs       prints the table that docs/ has under `HEADING`
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.live.conftest import CACHE, Operator
from tests.live.kv_oracle import Difference, Kv, adapted, as_stored, computed, difference, in_float32, prompt_ids
from tests.live.upgrades import (
    NORM_RATE,
    Make,
    copy_of,
    fine_tune,
    save_again,
    save_by_transformers_4,
    train_lora,
    turn_rotary_base,
)

HEADING = "## Measured on SmolLM2-135M"
COLUMNS = (
    *("new release, or adapter", "kvrelease on the old KV", "first layer touched: predicted", "measured"),
    *("layers that differ", "largest difference: as stored", "in float32"),
)
OLD, NEW = CACHE / "models" / "smollm2-v1.2", CACHE / "models" / "smollm2-v1.3"
LAYERS = 30

_LAST = LAYERS - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Upgrade:
    """One way from an old release to a new one.

    Attributes:
        name: in the table.
        make: writes the new release.
        answer: what `diff` owes: `valid` or `invalid`.
        first: the first layer whose K or V it changes; None where it changes none.
        tensors: names of the tensors that it may change, a pattern; None where it changes none.
        old: the release that it begins with.
    """

    name: str
    make: Make
    answer: str
    first: int | None
    tensors: str | None = None
    old: Path = OLD


def _tuned(name: str, tensors: str, *, first: int | None, rate: float | None = None) -> Upgrade:
    make = fine_tune(tensors) if rate is None else fine_tune(tensors, rate=rate)
    answer = "valid" if first is None else "invalid"
    return Upgrade(name=f"fine-tune of {name}", make=make, answer=answer, first=first, tensors=tensors)


def _rounded(name: str, *, old: Path) -> Upgrade:
    make = save_again(dtype="float16")
    return Upgrade(name=name, make=make, answer="invalid", first=0, tensors=r"model\.", old=old)


UPGRADES = (
    Upgrade(
        name="v1.3: 36 steps on all but the embeddings",
        make=copy_of(NEW),
        answer="invalid",
        first=0,
        tensors=r"model\.",
    ),
    _tuned("all layers", r"model\.layers\.", first=0),
    _tuned("layers 27 to 29", r"model\.layers\.(27|28|29)\.", first=27),
    _tuned("the embeddings, which are tied", r"model\.embed_tokens\.", first=0),
    _tuned("layer 12's `k_proj`", r"model\.layers\.12\.self_attn\.k_proj\.", first=12),
    _tuned("layer 12's MLP", r"model\.layers\.12\.mlp\.", first=13),
    _tuned("the last layer's MLP", rf"model\.layers\.{_LAST}\.mlp\.", first=None),
    _tuned("the last layer's `q_proj`", rf"model\.layers\.{_LAST}\.self_attn\.q_proj\.", first=None),
    _tuned("the final norm", r"model\.norm\.", first=None, rate=NORM_RATE),
    Upgrade(name="`rope_theta` × 5", make=turn_rotary_base, answer="invalid", first=0),
    _rounded("v1.2 as float16", old=OLD),
    _rounded("v1.3 as float16", old=NEW),
    Upgrade(name="saved again by transformers 5.24.0", make=save_again(), answer="valid", first=None),
    Upgrade(name="the same in 6 shards", make=save_again(shard="50MB"), answer="valid", first=None),
    Upgrade(
        name="saved again by transformers 4.55.4, from a configuration of its own",
        make=save_by_transformers_4(from_its_own=True),
        answer="valid",
        first=None,
    ),
)
LOSSY_SAVE = Upgrade(
    name="saved again by transformers 4.55.4, which lost `rope_parameters`",
    make=save_by_transformers_4(from_its_own=False),
    answer="invalid",
    first=None,
)
"""Its configuration contradicts itself. transformers 5 reads the right value; that every engine does, nobody knows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What the tool said of the KV of a pair, and what is true.

    Attributes:
        name: in the table.
        answer: `valid`, `invalid`, or `another name`: one release serves both, and engines are told to keep them apart.
        predicted: the first layer whose old KV must not be read, by that answer; None where all may be.
        stored: how K and V differ, each computed in the dtype of its weights; None for adapters, which have none.
        exact: how they differ in float32.
        answers_differ: whether the next token's logits do.
    """

    name: str
    answer: str
    predicted: int | None
    stored: Difference | None
    exact: Difference
    answers_differ: bool

    @property
    def measured(self) -> Difference:
        """What decides: what engines would compute."""
        return self.exact if self.stored is None else self.stored

    def cells(self) -> tuple[str, ...]:
        """Of its row in the table."""
        return (
            *(self.name, self.answer),
            *("none" if layer is None else str(layer) for layer in (self.predicted, self.measured.first)),
            f"{len(self.measured.layers)} of {LAYERS}",
            "" if self.stored is None else f"{self.stored.largest:.2g}",
            f"{self.exact.largest:.2g}",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Upgraded:
    """An upgrade that was made.

    Attributes:
        finding: on its KV.
        diff: the artifact.
        stderr: of the command that made it.
        files: of the new release.
        config: of the new release.
    """

    finding: Finding
    diff: dict[str, Any]
    stderr: str
    files: tuple[str, ...]
    config: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adapters:
    """LoRA adapters that the old release is served with.

    Attributes:
        findings: on the KV that base and adapter make together.
        added: artifact of the diff that adds them.
        replaced: artifact of the diff that puts another one under the name of one of them.
        warnings: of the fingerprint.
    """

    findings: tuple[Finding, ...]
    added: dict[str, Any]
    replaced: dict[str, Any]
    warnings: tuple[str, ...]


class Laboratory:
    """Upgrades releases, asks kvrelease as a user does, and computes K and V; each once."""

    def __init__(self, directory: Path) -> None:
        missing = [str(path) for path in (OLD, NEW) if not path.exists()]
        assert not missing, f"run `make engines` first; missing: {', '.join(missing)}"
        self._directory = directory
        self._operator = Operator(directory=directory)
        self._upgraded: dict[str, Upgraded] = {}
        self._olds: dict[Path, tuple[Kv, Kv]] = {}

    def upgraded(self, upgrade: Upgrade) -> Upgraded:
        """One upgrade; what it wrote is deleted again."""
        if upgrade.name not in self._upgraded:
            new = self._directory / "new"
            upgrade.make(upgrade.old, new)
            code = 0 if upgrade.answer == "valid" else 1
            run = self._operator.run("diff", upgrade.old, new, "--fail-on", "kv").expect(code)
            exact, stored = in_float32(new, self._ids), as_stored(new, self._ids)
            was_exact, was_stored = self._of(upgrade.old)
            files = tuple(sorted(path.name for path in new.iterdir()))
            config = json.loads((new / "config.json").read_text())
            shutil.rmtree(new)
            kv = run.json["kv"]
            finding = _finding(
                upgrade.name, kv["status"], kv["first_invalid_layer"], (was_exact, exact), (was_stored, stored)
            )
            self._upgraded[upgrade.name] = Upgraded(
                finding=finding, diff=run.json, stderr=run.stderr, files=files, config=config
            )
        return self._upgraded[upgrade.name]

    @cached_property
    def adapters(self) -> Adapters:
        """Three adapters of the old release, and one of them trained on another text."""
        makes = {
            "support": train_lora(r"self_attn\.[qv]_proj"),
            "late": train_lora(r"self_attn\.[ko]_proj", layers=range(20, LAYERS)),
            "output": train_lora(r"mlp\.down_proj", layers=[_LAST]),
            "anew": train_lora(r"self_attn\.[qv]_proj", first_conversation=1),
        }
        folders = {name: self._directory / name for name in makes}
        for name, make in makes.items():
            make(OLD, folders[name])
        # W + B A is no bf16 matrix, so both sides are computed in float32.
        kv = {name: computed(adapted(OLD, folder), self._ids) for name, folder in folders.items()}
        kv["base"], _ = self._of(OLD)

        served = {name: folders[name] for name in ("support", "late", "output")}
        self._fingerprint("base.json", {})
        before = self._fingerprint("before.json", served)
        self._fingerprint("after.json", {**served, "support": folders["anew"]})
        replaced = self._operator.run("diff", "before.json", "after.json", "--fail-on", "kv").expect(1).json
        names = {adapter["name"]: adapter["kv_name"] for adapter in before["adapters"]}
        names["base"] = before["release"]["kv_name"]

        def beside(text: str, old: str, new: str) -> Finding:
            has_own = names[old] != names[new]
            answer = "another name" if has_own else "valid"
            return _finding(text, answer, 0 if has_own else None, (kv[old], kv[new]))

        anew = "the first LoRA trained on another text, under its name"
        return Adapters(
            findings=(
                beside("LoRA on `q_proj` and `v_proj`, beside its base", "base", "support"),
                beside("LoRA on `k_proj` and `o_proj` of layers 20 to 29, beside its base", "base", "late"),
                beside("LoRA on the last layer's MLP, beside its base", "base", "output"),
                beside("the second LoRA beside the first", "support", "late"),
                _finding(
                    *(anew, replaced["kv"]["status"], replaced["kv"]["first_invalid_layer"]),
                    (kv["support"], kv["anew"]),
                ),
            ),
            added=self._operator.run("diff", "base.json", "before.json", "--fail-on", "kv").expect(0).json,
            replaced=replaced,
            warnings=tuple(before["warnings"]),
        )

    def findings(self) -> tuple[Finding, ...]:
        """Of all upgrades and adapters, in the order of the table."""
        upgraded = [self.upgraded(upgrade).finding for upgrade in (*UPGRADES, LOSSY_SAVE)]
        return (*upgraded, *self.adapters.findings)

    @cached_property
    def _ids(self) -> Any:
        return prompt_ids(OLD)

    def _of(self, release: Path) -> tuple[Kv, Kv]:
        """What an old release computes, in float32 and as stored."""
        if release not in self._olds:
            self._olds[release] = (in_float32(release, self._ids), as_stored(release, self._ids))
        return self._olds[release]

    def _fingerprint(self, output: str, adapters: Mapping[str, Path]) -> dict[str, Any]:
        given = [f"--adapter={name}={folder}" for name, folder in adapters.items()]
        run = self._operator.run("fingerprint", OLD, *given).expect(0)
        (self._directory / output).write_text(run.stdout)
        return run.json


def _finding(
    name: str, answer: str, predicted: int | None, exact: tuple[Kv, Kv], stored: tuple[Kv, Kv] | None = None
) -> Finding:
    return Finding(
        name=name,
        answer=answer,
        predicted=predicted,
        stored=None if stored is None else difference(*stored),
        exact=difference(*exact),
        answers_differ=any(bool((old.logits != new.logits).any()) for old, new in (stored or exact, exact)),
    )


@contextmanager
def laboratory(directory: Path) -> Iterator[Laboratory]:
    """A laboratory that computes on one thread.

    The order of additions is then the same everywhere, and beside other work threads that wait for each other cost ten
    times as much.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield Laboratory(directory)
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """Print the table, and each row on stderr as soon as it is measured."""
    with tempfile.TemporaryDirectory(prefix="kvrelease-pairs-") as directory, laboratory(Path(directory)) as open_one:
        for upgrade in UPGRADES:
            sys.stderr.write(f"{open_one.upgraded(upgrade).finding.cells()}\n")
        rows = [COLUMNS, ("---",) * len(COLUMNS), *(found.cells() for found in open_one.findings())]
    sys.stdout.write("".join(f"| {' | '.join(row)} |\n" for row in rows))


if __name__ == "__main__":
    main()
