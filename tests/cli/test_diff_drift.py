"""`diff --drift`: what it prints, what it cannot do, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.errors import Refused
from kvrelease.release import drift
from kvrelease.release.diff_record import Diff, KvStatus
from tests.cli.conftest import Kv
from tests.cli.shell import Releases, start
from tests.release.builders import tensors, write_json, write_release
from tests.release.hub_server import serve_hub

DEADLINE_S = 60.0
NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def pair(workdir: Path) -> tuple[Path, Path]:
    """Two releases, `old` and `new`, of which one tensor and the final norm differ."""
    old, new = tensors(1), tensors(1)
    for name in (NAME, "model.norm.weight"):
        new[name] = new[name] * 1.25
    return write_release(workdir / "old", old), write_release(workdir / "new", new, shards=2)


def test_drift_is_measured_on_request(kv: Kv, pair: tuple[Path, Path]) -> None:
    result = kv("diff", "old", "new", "--drift", "--format", "json")
    assert result.code == 0, result.err
    found = artifacts.from_json(result.out.encode(), Diff, source="stdout")
    moved = {drift.tensor: drift for drift in found.drift if drift.relative}
    assert moved.keys() == {NAME, "model.norm.weight"}
    assert moved[NAME].relative == pytest.approx(0.25)
    assert moved[NAME].cosine == pytest.approx(1.0)
    assert len(found.drift) == len(tensors(1))
    assert [layer.name for layer in found.drift_layers if layer.moved] == ["", "model.layers.1"]
    plain = artifacts.from_json(kv("diff", "old", "new", "--format", "json").out.encode(), Diff, source="stdout")
    assert (plain.drift, plain.drift_layers) == ((), ())
    assert plain.kv == found.kv


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_the_page_shows_layers_and_the_tensors_that_moved_most(kv: Kv, pair: tuple[Path, Path], form: str) -> None:
    page = kv("diff", "old", "new", "--drift", "--format", form).out.replace("\\", "")
    assert "Drift by layer" in page
    assert "Tensors that moved most" in page
    row = next(line for line in page.splitlines() if NAME in line and "0.25" in line)
    assert "100.00%" in row
    assert "outside of layers" in page


def test_a_variable_asks_for_it_too(kv: Kv, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVRELEASE_DRIFT", "1")
    assert "Drift by layer" in kv("diff", "old", "new").out


@pytest.mark.parametrize("side", ["OLD", "NEW"])
def test_a_saved_fingerprint_has_no_tensors_to_measure(kv: Kv, releases: Releases, side: str) -> None:
    sides = [releases.old, releases.directory] if side == "OLD" else [releases.directory, releases.new]
    result = kv("diff", *sides, "--drift")
    assert result.code == 2
    assert f"--drift reads the tensors of both releases, and {side} (" in result.errors[0]
    assert "is a saved fingerprint, which has digests only" in result.errors[0]
    assert f"next: give the model itself as {side}" in result.err
    assert result.out == ""


def test_without_torch_it_ends_2_before_anything_is_read(kv: Kv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = kv("diff", "nothing", "here", "--drift")
    assert result.code == 2
    assert "--drift needs the Python module 'torch'" in result.errors[0]
    assert "pip install 'kvrelease[local]'" in result.err


def test_a_release_on_the_hub_is_read_by_ranges(
    kv: Kv, pair: tuple[Path, Path], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HUB_CACHE", str(workdir / "hub"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        hub.push("acme/support", pair[1])
        result = kv("diff", "old", "hf:acme/support@main", "--drift", "--format", "json")
    assert result.code == 0, result.err
    found = artifacts.from_json(result.out.encode(), Diff, source="stdout")
    assert {drift.tensor for drift in found.drift if drift.relative} == {NAME, "model.norm.weight"}


def test_hostile_names_are_shown_as_they_are(kv: Kv, workdir: Path) -> None:
    name = "model.layers.0.[/red]\x1b[31m.weight"
    for side, factor in (("old", 1.0), ("new", 2.0)):
        write_release(workdir / side, tensors(1) | {name: tensors(1)[NAME] * factor})
    page = kv("diff", "old", "new", "--drift").out
    assert "\x1b" not in page
    assert "model.layers.0.[/red]\\x1b[31m.weight" in page


def test_ctrl_c_while_it_measures_ends_130_and_writes_the_verdict(workdir: Path) -> None:
    """Two files of holes, whose squares are zero and so are summed twice."""
    size = 2**26
    header = json.dumps({NAME: {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    for side in ("old", "new"):
        write_json(write_release(workdir / side) / "config.json", {"model_type": "other"})
        with (workdir / side / "model.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + size - 1)
            file.seek(0, os.SEEK_END)
            file.write(side.encode()[:1])
    process = start("diff", "old", "new", "--drift", "--jobs", "1", "--fail-on", "kv", "-o", "r.json")
    deadline = time.monotonic() + DEADLINE_S
    while not are_open(process.pid, [workdir / "old", workdir / "new"]):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)  # another process: nothing to wait on
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (130, "")
    assert "warning: interrupted: the result is written without what was left to do" in err
    assert "Traceback" not in err
    found = artifacts.read(workdir / "r.json", Diff)
    assert (found.kv.status, found.changed) == (KvStatus.UNKNOWN, ("release", "weights", "kv"))
    assert (found.drift, found.drift_layers, found.drift_notes) == ((), (), ())
    assert found.left_out == ("how far tensors moved was not measured: the run was cut short",)


def test_a_store_that_fails_while_it_measures_loses_no_verdict(
    kv: Kv, pair: tuple[Path, Path], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is the code, but for a gate that failed: a page says what was left out."""
    real = drift.sums_of

    def broken(*_: object, **__: object) -> object:
        monkeypatch.setattr(drift, "sums_of", real)
        raise Refused("reading old: the store answered 503", status=503)

    for options, code in (((), 5), (("--fail-on", "weights"), 1)):
        monkeypatch.setattr(drift, "sums_of", broken)
        result = kv("diff", "old", "new", "--drift", *options)
        assert (result.code, result.errors) == (code, ["error: reading old: the store answered 503"])
        assert "VALID" in result.out.splitlines()[2]
        assert "how far tensors moved was not measured: the run was cut short" in " ".join(result.out.split())
        assert "tensors in both" not in result.out


def are_open(pid: int, directories: list[Path]) -> bool:
    """Whether a process has files of all of them open at once, as only measuring does."""
    try:
        places = {descriptor.readlink().parent for descriptor in Path(f"/proc/{pid}/fd").iterdir()}
    except FileNotFoundError:
        return False
    return places >= set(directories)
