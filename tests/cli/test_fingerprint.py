"""`fingerprint`: modes, the memo, and what is published beside the weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from kvrelease import artifacts
from kvrelease.release.check import ReleaseCheck
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.hashing import hash_tensors
from kvrelease.release.loading import load_release
from kvrelease.release.memo import Memo, default_directory
from kvrelease.release.mode import Mode
from kvrelease.release.safetensors import read_safetensors
from tests.cli.conftest import Kv
from tests.cli.shell import Releases, start
from tests.release.builders import config_json, local_file, tensors, write_json, write_release, write_text_side
from tests.release.hub_server import serve_hub
from tests.release.mount_tables import needs_dated_files

DEADLINE_S = 30.0


@pytest.fixture
def model(releases: Releases, workdir: Path) -> Path:
    """A copy that a test may change, named `m`."""
    shutil.copytree(releases.directory, "m")
    return Path("m")


def change_a_tensor(model: Path) -> str:
    """Every element of it, so that samples see it too."""
    weights = load_file(model / "model.safetensors")
    name = sorted(weights)[0]
    weights[name] = weights[name] + 1
    save_file(weights, model / "model.safetensors")
    return name


def fill_the_memo(model: Path) -> None:
    """As a run does once the files are older than the memo's margin."""
    directory = default_directory()
    assert directory is not None
    assert load_release(model, memo=Memo(directory, settled_ns=0)).remembered_bytes == 0


# --- modes ---


def test_mode_fast_names_no_cache_and_tells_what_it_can_miss(kv: Kv, model: Path) -> None:
    result = kv("fingerprint", "m", "--mode", "fast", "--format", "json")
    assert result.code == 0
    found = artifacts.from_json(result.out.encode(), Fingerprint, source="stdout")
    assert (found.mode, found.release.kv_name) == (Mode.FAST, None)
    assert found.bound is not None
    assert found.fast == load_release(model).fast
    text = kv("fingerprint", "m", "--mode", "fast").out
    assert "goes unseen with at most this probability" in text
    assert "kvrelease fingerprint m --mode full" in text


@pytest.mark.parametrize("argv", [["namespace", "fast.json", "--engine", "vllm"], ["prewarm"], ["record"], ["verify"]])
def test_a_fast_fingerprint_is_no_release_to_bind_to(kv: Kv, model: Path, argv: list[str]) -> None:
    kv("fingerprint", "m", "--mode", "fast", "-o", "fast.json")
    engine = ["--release", "fast.json", "--engine-url", "http://127.0.0.1:1", "--prompts", "prompts.yaml"]
    result = kv(*argv, *(engine if len(argv) == 1 else []))
    assert result.code == 4
    assert "not a full one, and only a full digest may name a cache" in result.errors[0]
    assert "next: kvrelease fingerprint" in result.err


@pytest.mark.parametrize("argv", [["namespace", "m", "--engine", "vllm"], ["prewarm"], ["record"], ["verify"]])
def test_a_release_whose_code_lies_elsewhere_is_none_to_bind_to(kv: Kv, model: Path, argv: list[str]) -> None:
    write_json(model / "config.json", config_json(auto_map={"AutoModel": "acme/code--modeling_x.X"}))
    engine = ["--release", "m", "--engine-url", "http://127.0.0.1:1", "--prompts", "prompts.yaml"]
    result = kv(*argv, *(engine if len(argv) == 1 else []))
    assert result.code == 4
    assert "config.json takes code from another repository, 'acme/code' (auto_map)" in result.errors[0]
    assert "next: copy its *.py files beside config.json" in result.err
    page = kv("fingerprint", "m")
    assert page.code == 0
    assert "there is no kv name: config.json takes code from another" in page.out
    assert "kvrelease namespace" not in page.out
    for fail_on, code in (("kv", 3), ("weights", 0)):
        assert kv("diff", "m", "m", "--fail-on", fail_on).code == code


def test_a_diff_with_a_fast_fingerprint_is_unknown(kv: Kv, model: Path) -> None:
    kv("fingerprint", "m", "--mode", "fast", "-o", "fast.json")
    for fail_on in ("kv", "weights", "any"):
        assert kv("diff", "fast.json", "m", "--fail-on", fail_on).code == 3
    change_a_tensor(model)
    assert kv("diff", "fast.json", "m", "--fail-on", "kv").code == 3
    assert kv("diff", "fast.json", "m", "--fail-on", "weights").code == 1


# --- the memo ---


def remembered(kv: Kv, *argv: str) -> int:
    result = kv("fingerprint", "m", *argv, "--format", "json")
    assert result.code == 0, result.err
    value = json.loads(result.out)["remembered_bytes"]
    assert isinstance(value, int)
    return value


@needs_dated_files
def test_a_run_remembers_unless_told_not_to(kv: Kv, model: Path) -> None:
    fill_the_memo(model)
    assert remembered(kv) == load_release(model).bytes
    assert remembered(kv, "--no-memo") == 0
    assert "remembered" in kv("fingerprint", "m").out
    assert kv("diff", "m", "m", "--no-memo").code == kv("diff", "m", "m").code == 0


def test_no_memo_in_a_variable_or_the_file(kv: Kv, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_the_memo(model)
    write_json(Path("kvrelease.yaml"), {"no-memo": True})
    assert remembered(kv) == 0
    Path("kvrelease.yaml").unlink()
    monkeypatch.setenv("KVRELEASE_NO_MEMO", "1")
    assert remembered(kv) == 0


def test_no_memo_leaves_nothing_behind(kv: Kv, model: Path) -> None:
    directory = default_directory()
    assert directory is not None
    remembered(kv, "--no-memo")
    assert not directory.exists()


def test_a_file_that_was_just_written_is_not_remembered(kv: Kv, model: Path) -> None:
    assert remembered(kv) == remembered(kv) == 0


@needs_dated_files
def test_a_damaged_memo_is_a_warning_and_no_more(kv: Kv, model: Path) -> None:
    fill_the_memo(model)
    directory = default_directory()
    assert directory is not None
    (entry,) = directory.glob("*.memo")
    entry.write_bytes(entry.read_bytes()[:-1])
    result = kv("fingerprint", "m", "--format", "json")
    assert (result.code, json.loads(result.out)["remembered_bytes"]) == (0, 0)
    assert "damaged" in result.err


# --- publishing ---


def test_publish_writes_the_fingerprint_beside_the_weights_and_always_hashes(kv: Kv, model: Path) -> None:
    fill_the_memo(model)
    result = kv("fingerprint", "m", "--publish", "--format", "json")
    assert result.code == 0
    assert "published: m/kvrelease.json" in result.err
    published = artifacts.read(model / "kvrelease.json", Fingerprint)
    assert published == artifacts.from_json(result.out.encode(), Fingerprint, source="stdout")
    assert published.remembered_bytes == 0
    assert [path.name for path in model.iterdir() if path.name.startswith(".")] == []
    assert load_release(model).digests == published.digests  # the new file is no part of the release
    assert kv("namespace", "m/kvrelease.json", "--engine", "vllm").code == 0


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["m", "--publish", "--mode", "fast"], "only a full one is that"),
        (["m/model.safetensors", "--publish"], "only a model directory"),
        (["m", "--publish", "--check"], "one run can do one of them"),
        (["m", "--publish", "--against", "x.json"], "one run can do one of them"),
    ],
)
def test_what_cannot_be_published_is_told_before_anything_is_hashed(
    kv: Kv, model: Path, argv: list[str], reason: str
) -> None:
    (model / "model.safetensors").write_bytes(b"damaged, if anybody looked")
    result = kv("fingerprint", *argv)
    assert result.code == 2
    assert reason in result.errors[0]
    assert not (model / "kvrelease.json").exists()


def test_a_directory_that_cannot_be_written_is_refused(model: Path) -> None:
    """In a process of a user who is not root, to whom permissions mean something."""
    (model / "kvrelease.json").write_text("{}")
    code = (
        "import os, sys\n"
        "from kvrelease.cli.app import run\n"
        "assert run(['fingerprint', 'm', '--publish', '-o', '/dev/null']) == 0  # everything is imported\n"
        "os.chmod('m', 0o555)\n"
        "if os.getuid() == 0:\n"
        "    os.setuid(65534)\n"
        "sys.exit(run(['fingerprint', 'm', '--publish', '--no-memo']))\n"
    )
    # Not below the tests' own directory, which is closed to other users.
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        shutil.copytree(model, Path(open_to_all, "m"))
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=open_to_all, capture_output=True, text=True, check=False
        )
    assert done.returncode == 2, done.stderr
    assert "--publish m/kvrelease.json: nothing can be written to" in done.stderr
    assert "--output FILE in place of --publish" in done.stderr


NOT_UTF8 = os.fsdecode(b"m\xff")


@pytest.mark.parametrize("argv", [["--publish"], ["--format", "json"], ["-o", "r.json"]])
def test_a_name_that_no_artifact_can_hold_is_told_before_anything_is_hashed(
    kv: Kv, model: Path, argv: list[str]
) -> None:
    (model / "model.safetensors").write_bytes(b"damaged, if anybody looked")
    model.rename(NOT_UTF8)
    result = kv("fingerprint", NOT_UTF8, *argv)
    assert (result.code, "not valid UTF-8" in result.errors[0]) == (4, True)
    assert "next: rename" in result.err
    assert not Path("r.json").exists()


def test_a_directory_of_a_name_that_no_artifact_can_hold_has_another_where_one_stands_in_it(
    kv: Kv, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.rename(NOT_UTF8)
    monkeypatch.chdir(NOT_UTF8)
    assert kv("fingerprint", ".", "--publish").code == 4
    assert kv("fingerprint", ".", "--publish", "--name", "support").code == 0


def test_a_published_fingerprint_that_is_a_link_is_replaced_not_what_it_leads_to(kv: Kv, model: Path) -> None:
    """As in the Hub's cache, whose blobs are named after their content, of a repository that has such a file."""
    blob = Path("blob")
    blob.write_text("what the repository says")
    (model / "kvrelease.json").symlink_to(blob.absolute())
    assert kv("fingerprint", "m", "--publish").code == 0
    assert blob.read_text() == "what the repository says"
    assert not (model / "kvrelease.json").is_symlink()
    assert artifacts.read(model / "kvrelease.json", Fingerprint).digests == load_release(model).digests
    assert kv("fingerprint", "m", "--check").code == 0


# --- checking ---


def test_an_unchanged_release_passes_its_check(kv: Kv, model: Path) -> None:
    kv("fingerprint", "m", "--publish")
    for argv in (["--check"], ["--check", "--mode", "fast"], ["--against", "m/kvrelease.json"]):
        result = kv("fingerprint", "m", *argv, "--format", "json")
        assert result.code == 0, result.err
        check = artifacts.from_json(result.out.encode(), ReleaseCheck, source="stdout")
        assert (check.verdict, check.changed) == ("pass", ())
    assert "no change was seen; a change of a tenth" in kv("fingerprint", "m", "--check", "--mode", "fast").out


@pytest.mark.parametrize("mode", ["full", "fast"])
def test_a_changed_release_fails_its_check_and_is_told_in_what(kv: Kv, model: Path, mode: str) -> None:
    kv("fingerprint", "m", "--publish")
    name = change_a_tensor(model)
    write_json(model / "generation_config.json", {"temperature": 0.123})
    result = kv("fingerprint", "m", "--check", "--mode", mode)
    assert result.code == 1
    assert "generation" in result.out
    assert ("weights" if mode == "full" else "samples") in result.out
    assert (name in result.out) == (mode == "full")


def rot(model: Path, memo: Memo) -> None:
    """One bit flips on the device: no time and no size says so, and the memo holds what was there before."""
    path = model / "model.safetensors"
    before = read_safetensors(local_file(path))
    payloads = hash_tensors([before], jobs=1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    after = read_safetensors(local_file(path))
    assert after.identity.changed_ns is not None
    memo.remember(after, payloads, seen_ns=after.identity.changed_ns)


@needs_dated_files
@pytest.mark.parametrize("against", [["--check"], ["--against", "m/kvrelease.json"]])
def test_a_full_check_reads_every_byte_whatever_is_remembered(kv: Kv, model: Path, against: list[str]) -> None:
    kv("fingerprint", "m", "--publish")
    directory = default_directory()
    assert directory is not None
    rot(model, Memo(directory, settled_ns=0))
    assert remembered(kv) > 0
    result = kv("fingerprint", "m", *against)
    assert (result.code, "weights changed" in result.out) == (1, True)


def test_a_check_against_another_release_or_a_fast_fingerprint(kv: Kv, model: Path, releases: Releases) -> None:
    assert kv("fingerprint", "m", "--against", releases.old).code == 1
    assert kv("fingerprint", "m", "--against", releases.new).code == 0
    kv("fingerprint", "m", "--mode", "fast", "-o", "fast.json")
    assert kv("fingerprint", "m", "--against", "fast.json").code == 3
    assert kv("fingerprint", "m", "--against", "fast.json", "--mode", "fast").code == 0


def test_nothing_published_or_something_else_ends_4(kv: Kv, model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"damaged, if anybody looked")
    result = kv("fingerprint", "m", "--check")
    assert result.code == 4
    assert "reading m/kvrelease.json: No such file" in result.errors[0]
    assert "next: kvrelease fingerprint m --publish" in result.err
    write_json(model / "kvrelease.json", {"kind": "kvrelease/diff", "schema": 1})
    assert kv("fingerprint", "m", "--check").code == 4
    for against in ("m", "notes.txt"):
        assert kv("fingerprint", "m", "--against", against).code == 2


def test_the_hubs_own_hashes_answer_a_fast_check_without_a_tensor_being_read(
    kv: Kv, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_text_side(write_release(workdir / "source", shards=2))
    address = "hf:acme/support"
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HUB_CACHE", str(workdir / "hub"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        hub.push("acme/support", source)
        assert kv("fingerprint", address, "-o", "saved.json").code == 0
        hub.requests.clear()
        result = kv("fingerprint", address, "--against", "saved.json", "--mode", "fast")
        assert result.code == 0, result.err
        assert "states the hashes of the very weight files that were published; no tensor was read" in result.out
        assert "'main' can move to another commit at any time" in result.err
        assert "'main' can move to another commit at any time" in result.out
        assert hub.asked("elsewhere") == 2  # the front of each shard, once
        write_json(source / "generation_config.json", {"temperature": 0.123})
        hub.push("acme/support", source)
        result = kv("fingerprint", address, "--against", "saved.json", "--mode", "fast")
        assert (result.code, "generation changed" in result.out) == (1, True)
        write_release(source, {name: array + 1 for name, array in tensors().items()}, shards=2)
        hub.push("acme/support", source)
        result = kv("fingerprint", address, "--against", "saved.json", "--mode", "fast")
        assert (result.code, "samples" in result.out) == (1, True)
        assert kv("fingerprint", address, "--check").code == 2


# --- interrupted ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_hashing_stops_at_once_when_told_to(workdir: Path, number: signal.Signals) -> None:
    """A gigabyte of holes, so that the signal comes while threads hash."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [2**30], "data_offsets": [0, 2**30]}}).encode()
    with Path("large.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2**30)
    process = start("fingerprint", "large.safetensors", "--no-memo", "--jobs", "2")
    deadline = time.monotonic() + DEADLINE_S
    while not is_open(process.pid, "large.safetensors"):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)  # another process: nothing to wait on
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (130, "")
    assert "interrupted" in err
    assert "Traceback" not in err


def is_open(pid: int, name: str) -> bool:
    """Whether hashing threads run on an open file of that name."""
    try:
        links = [str(descriptor.readlink()) for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except FileNotFoundError:
        return False
    return threads > 1 and any(link.endswith(name) for link in links)
