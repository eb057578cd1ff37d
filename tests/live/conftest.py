"""What every live module needs: the installed engines, and the program run as a user runs it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
CACHE = Path(os.environ.get("KVRELEASE_CACHE") or Path.home() / ".cache" / "kvrelease")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything below this folder is live, and keeps its order: a story is told from the start."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.live)


@dataclasses.dataclass(frozen=True)
class Run:
    """One invocation of kvrelease."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.stdout)
        return document

    def expect(self, code: int) -> Run:
        assert self.code == code, f"ended {self.code}, not {code}\n{self.stdout}\n{self.stderr}"
        return self


@dataclasses.dataclass(frozen=True)
class Operator:
    """Somebody at a terminal in a working directory with a `kvrelease.yaml`."""

    directory: Path

    def configure(self, **production: str) -> None:
        """Writes kvrelease.yaml with these `production:` fields."""
        lines = ["production:", *(f"  {name}: {value}" for name, value in production.items())] if production else []
        (self.directory / "kvrelease.yaml").write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str | Path, within: Sequence[str] = ()) -> Run:
        """One command to its end; `within` is the command that runs it, such as `unshare`."""
        with self.start(*arguments, within=within) as process:
            try:
                stdout, stderr = process.communicate(timeout=900)
            except BaseException:
                process.kill()
                raise
        return Run(code=process.returncode, stdout=stdout, stderr=stderr)

    def start(self, *arguments: str | Path, within: Sequence[str] = ()) -> subprocess.Popen[str]:
        """One command, begun."""
        return subprocess.Popen(
            [*within, sys.executable, "-m", "kvrelease", *map(str, arguments), "--format", "json"],
            cwd=self.directory,
            env={**os.environ, "KVRELEASE_LEDGER": f"sqlite:///{self.directory / 'ledger.db'}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@dataclasses.dataclass(frozen=True)
class Pair:
    """The real release pair: SmolLM2-135M-Instruct, and a fine-tune of it whose returns policy changed."""

    old: Path
    new: Path
    old_gguf: Path
    new_gguf: Path


def installed_pair() -> Pair:
    """The pair that `make engines` put in place."""
    models = CACHE / "models"
    found = Pair(
        old=models / "smollm2-v1.2",
        new=models / "smollm2-v1.3",
        old_gguf=models / "smollm2-v1.2.gguf",
        new_gguf=models / "smollm2-v1.3.gguf",
    )
    missing = [str(path) for path in dataclasses.astuple(found) if not path.exists()]
    assert not missing, f"run `make engines` first; missing: {', '.join(missing)}"
    return found


@pytest.fixture(scope="session")
def pair() -> Pair:
    return installed_pair()


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return Operator(directory=tmp_path_factory.mktemp("operator"))


PROMPTS_PER_PREFIX = 4
"""A dozen of the shipped set's questions, the heaviest under each system prompt: what a CI machine affords."""


def write_dozen(path: Path) -> Path:
    """Writes that set, and returns its path."""
    document = yaml.safe_load((REPOSITORY / "prompts" / "support.yaml").read_text())
    heaviest = sorted(document["prompts"], key=lambda prompt: -prompt["weight"])
    kept: dict[str, list[dict[str, Any]]] = {}
    for prompt in heaviest:
        if len(kept.setdefault(prompt["system"], [])) < PROMPTS_PER_PREFIX:
            kept[prompt["system"]].append(prompt)
    document["prompts"] = [prompt for group in kept.values() for prompt in group]
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dozen(tmp_path_factory.mktemp("prompts") / "dozen.yaml")


def checks(report: dict[str, Any]) -> dict[str, str]:
    """Verdict by check of a verify report with one replica."""
    return {check["id"]: check["verdict"] for check in report["checks"]}


def detail(report: dict[str, Any], check: str) -> str:
    """What a check found."""
    return str(next(one["detail"] for one in report["checks"] if one["id"] == check))
