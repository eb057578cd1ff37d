"""`fingerprint --adapter`, and an adapter where a release is expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Kv
from tests.cli.shell import Releases
from tests.cli.test_bad_input import the_one_error
from tests.release.adapters import adapter_json, adapter_tensors, write_adapter


@pytest.fixture
def adapter(workdir: Path) -> Path:
    return write_adapter(workdir / "lora", adapter_tensors(layers=[0]))


def test_each_adapter_gets_a_kv_name(kv: Kv, releases: Releases, adapter: Path, workdir: Path) -> None:
    write_adapter(workdir / "v2", adapter_tensors(layers=[0], seed=1))
    found = kv("fingerprint", releases.new, "--adapter", "lora", "--adapter", "billing=v2", "--format", "json")
    assert found.code == 0
    artifact = json.loads(found.out)
    assert [one["name"] for one in artifact["adapters"]] == ["lora", "billing"]
    names = {one["kv_name"] for one in artifact["adapters"]} | {artifact["release"]["kv_name"]}
    assert len(names) == 3
    assert all(name.startswith("kv1-") for name in names)
    assert {"name", "digest", "kv_name"} <= artifact["adapters"][0].keys()


def test_the_page_names_them_and_says_what_engines_key_by(kv: Kv, releases: Releases, adapter: Path) -> None:
    """https://github.com/vllm-project/vllm/issues/42125"""
    text = kv("fingerprint", releases.new, "--adapter", "support=lora").out
    assert "support" in text
    assert "Serve every version of an adapter under a name of its own" in text


def test_an_adapter_alone_has_no_kv_name_and_says_so(kv: Kv, adapter: Path) -> None:
    found = kv("fingerprint", "lora")
    assert found.code == 0
    assert "Adapter lora" in found.out
    assert "kvrelease fingerprint BASE --adapter" in found.out
    assert "adapter without its base" in found.err


def test_an_adapter_changed_under_its_name_fails_the_diff(kv: Kv, releases: Releases, workdir: Path) -> None:
    for version in (1, 2):
        config = adapter_json(lora_alpha=16 * version)
        write_adapter(workdir / f"v{version}", adapter_tensors(layers=[0]), config=config)
        kv("fingerprint", releases.new, "--adapter", f"support=v{version}", "-o", f"{version}.json")
    found = kv("diff", "1.json", "2.json", "--fail-on", "kv")
    assert found.code == 1
    assert "support changed" in found.out
    assert "lora_alpha 16 → 32" in found.out


def test_a_directory_with_an_equals_sign_is_a_directory(kv: Kv, releases: Releases, workdir: Path) -> None:
    write_adapter(workdir / "step=9", adapter_tensors(layers=[0]))
    found = kv("fingerprint", releases.new, "--adapter", "step=9", "--format", "json")
    assert [one["name"] for one in json.loads(found.out)["adapters"]] == ["step=9"]
    absolute = kv("fingerprint", releases.new, "--adapter", f"x={workdir / 'step=9'}", "--format", "json")
    assert [one["name"] for one in json.loads(absolute.out)["adapters"]] == ["x"]


@pytest.mark.parametrize(
    ("texts", "code", "reason"),
    [
        (["=lora"], 2, "not of the form NAME=DIR"),
        (["x="], 2, "not of the form NAME=DIR"),
        (["x=lora", "x=lora"], 2, "names 'x' twice"),
        (["none"], 4, "none"),
        (["x=none"], 4, "none"),
        (["prompts.yaml"], 4, "prompts.yaml"),
        (["x=empty"], 4, "no adapter_model.safetensors"),
    ],
)
def test_what_is_no_adapter_says_why(  # noqa: PLR0917 - fixtures
    kv: Kv, releases: Releases, adapter: Path, workdir: Path, texts: list[str], code: int, reason: str
) -> None:
    (workdir / "empty").mkdir()
    options = [part for text in texts for part in ("--adapter", text)]
    assert reason in the_one_error(kv("fingerprint", releases.new, *options), code=code)


def test_an_adapter_is_no_base_and_names_no_cache(kv: Kv, adapter: Path) -> None:
    assert "is an adapter itself" in the_one_error(kv("fingerprint", "lora", "--adapter", "x=lora"), code=2)
    text = the_one_error(kv("namespace", "lora", "--engine", "vllm", "--no-ledger"), code=4)
    assert "an adapter without its base" in text


def test_a_model_is_no_adapter(kv: Kv, releases: Releases) -> None:
    text = the_one_error(kv("fingerprint", releases.new, "--adapter", f"x={releases.directory}"), code=4)
    assert "no adapter_model.safetensors" in text
