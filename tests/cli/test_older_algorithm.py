"""Fingerprints that were saved before `kvfp1` was frozen: told, never compared, and no name of a cache."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvrelease.errors import UnsupportedRelease
from kvrelease.keys import compute_model_fingerprint
from kvrelease.release.loading import load_release
from tests.cli.conftest import Kv
from tests.release.adapters import adapter_tensors, write_adapter
from tests.release.test_digests import vector_release

SAVED = Path(__file__).parents[1] / "release" / "recorded" / "kvrelease-0.1.0" / "kvfp0.json"


@pytest.fixture
def model(workdir: Path) -> Path:
    """The very release that the saved fingerprint is of."""
    vector_release(workdir / "vector")
    shutil.copy(SAVED, "old.json")
    return Path("vector")


def test_a_diff_is_unknown_in_both_directions_and_says_what_to_do(kv: Kv, model: Path) -> None:
    for sides in (("old.json", "vector"), ("vector", "old.json")):
        found = kv("diff", *sides, "--fail-on", "kv", "--format", "json")
        assert found.code == 3
        diff = json.loads(found.out)
        assert (diff["kv"]["status"], diff["changed"], diff["config"]) == ("unknown", [], [])
        assert set(diff["unknown"]) == {"release", "weights", "kv", "config", "generation", "preprocessor"}
        nothing = {key: list[str]() for key in ("added", "removed", "changed", "renamed", "relaid")}
        assert diff["tensors"] == {**nothing, "compared": "names"}
        assert "of different algorithms, kvfp" in diff["kv"]["reasons"][0]
        assert "fingerprint the older one again" in diff["summary"]


def test_two_of_them_are_compared_with_each_other(kv: Kv, model: Path) -> None:
    for part, code in (("weights", 0), ("config", 0), ("preprocessor", 3), ("kv", 3)):  # files beside were not read
        assert kv("diff", "old.json", "old.json", "--fail-on", part).code == code


@pytest.mark.parametrize("mode", ["full", "fast"])
def test_a_check_against_one_is_inconclusive(kv: Kv, model: Path, mode: str) -> None:
    found = kv("fingerprint", "vector", "--against", "old.json", "--mode", mode)
    assert found.code == 3
    assert "publish it again" in " ".join(found.out.split())


@pytest.mark.parametrize("argv", [["namespace", "old.json", "--engine", "vllm"], ["prewarm"], ["record"], ["verify"]])
def test_no_cache_is_named_after_one(kv: Kv, model: Path, argv: list[str]) -> None:
    engine = ["--release", "old.json", "--engine-url", "http://127.0.0.1:1", "--prompts", "prompts.yaml"]
    result = kv(*argv, *(engine if len(argv) == 1 else []))
    assert result.code == 4
    assert "with digests of kvfp0; this version makes kvfp1" in result.errors[0]
    assert "next: fingerprint the release again: kvrelease fingerprint vector" in result.err


def test_no_adapter_is_put_on_one(kv: Kv, model: Path, workdir: Path) -> None:
    write_adapter(workdir / "lora", adapter_tensors(layers=[0]))
    found = kv("fingerprint", "old.json", "--adapter", "lora")
    assert found.code == 4
    assert "fingerprint the release again" in found.err


def test_no_key_is_made_of_one(model: Path) -> None:
    with pytest.raises(UnsupportedRelease, match="kvfp0"):
        compute_model_fingerprint("old.json")
    assert compute_model_fingerprint("vector") != load_release("old.json").release.kv_name
