"""Options of `fingerprint` together: modes, memo, publishing and checking, on adapters, GGUF files and far places."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.release.adapted import fingerprint_adapter_with_text, with_adapters
from kvrelease.release.address import open_source
from kvrelease.release.check import ReleaseCheck
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.release.memo import Memo, default_directory
from kvrelease.release.mode import Mode
from tests.cli.conftest import Kv
from tests.cli.shell import Releases, Result
from tests.release.adapters import adapter_tensors, write_adapter
from tests.release.gguf_writer import Tensor, small_model, small_tensors, text, write_gguf
from tests.release.hub_server import Hub, serve_hub
from tests.release.mount_tables import DATED
from tests.release.s3_server import S3Server, serve_s3

Changed = Callable[[], object]


@pytest.fixture
def model(releases: Releases, workdir: Path) -> Path:
    """A copy that a test may change, named `m`."""
    shutil.copytree(releases.directory, "m")
    return Path("m")


@pytest.fixture
def adapter(workdir: Path) -> Path:
    return write_adapter(workdir / "lora", adapter_tensors(layers=[0]))


@pytest.fixture
def gguf(workdir: Path) -> Path:
    """A directory of one model."""
    (workdir / "g").mkdir()
    return write_gguf(workdir / "g" / "support.gguf").relative_to(workdir).parent


@pytest.fixture
def memo() -> Memo:
    """The user's memo, which takes files however new they are."""
    directory = default_directory()
    assert directory is not None
    return Memo(directory, settled_ns=0, mounts=DATED)


def flipped(tensor: Tensor) -> Tensor:
    return tensor._replace(data=bytes([tensor.data[0] ^ 1]) + tensor.data[1:])


def fingerprint_of(result: Result) -> Fingerprint:
    assert result.code == 0
    return artifacts.from_json(result.out.encode(), Fingerprint, source="stdout")


def check_of(result: Result) -> ReleaseCheck:
    return artifacts.from_json(result.out.encode(), ReleaseCheck, source="stdout")


# --- adapters ---


def test_a_fast_base_reads_its_adapters_whole_and_names_no_cache(kv: Kv, model: Path, adapter: Path) -> None:
    argv = ("fingerprint", "m", "--adapter", "lora", "--format", "json")
    fast, full = fingerprint_of(kv(*argv, "--mode", "fast")), fingerprint_of(kv(*argv))
    assert (fast.mode, full.mode) == (Mode.FAST, Mode.FULL)
    ((sampled,), (whole,)) = (fast.adapters, full.adapters)
    assert sampled.content == whole.content
    assert (sampled.kv_name, fast.release.kv_name) == (None, None)
    assert whole.kv_name is not None
    assert sampled.digest.startswith("kvfp1-fast/llama.1+adapter:")
    assert fast.digests.release.startswith("kvfp1-fast:")
    assert fast.digests.release != load_release(model, mode=Mode.FAST).digests.release
    assert fast.fast == full.fast == load_release(model).fast
    page = kv("fingerprint", "m", "--adapter", "lora", "--mode", "fast").out
    assert "Serve every version of an adapter" in page
    assert "goes unseen with at most this probability" in page


def test_an_adapter_alone_is_read_whole_and_says_so(kv: Kv, adapter: Path) -> None:
    found = fingerprint_of(kv("fingerprint", "lora", "--mode", "fast", "--format", "json"))
    assert (found.mode, found.bound) == (Mode.FULL, None)
    assert found.fast is not None
    assert found.digests == load_release("lora").digests


def test_the_memo_knows_adapters(model: Path, adapter: Path, memo: Memo) -> None:
    base, sources = load_release(model, memo=memo), {"lora": open_source(adapter)}
    (first,) = with_adapters(base, sources, memo=memo).adapters
    (second,) = with_adapters(base, sources, memo=memo).adapters
    assert (first.remembered_bytes, second.remembered_bytes) == (0, second.bytes)
    assert (first.digest, first.content) == (second.digest, second.content)
    alone, _ = fingerprint_adapter_with_text(open_source(adapter), memo=memo)
    assert alone.remembered_bytes == alone.bytes
    assert alone.fast == load_release(adapter).fast


def test_publishing_hashes_adapters_whatever_the_memo_says(kv: Kv, model: Path, adapter: Path, memo: Memo) -> None:
    with_adapters(load_release(model, memo=memo), {"lora": open_source(adapter)}, memo=memo)
    kept = fingerprint_of(kv("fingerprint", "m", "--adapter", "lora", "--format", "json"))
    assert kept.adapters[0].remembered_bytes > 0
    published = fingerprint_of(kv("fingerprint", "m", "--adapter", "lora", "--publish", "--format", "json"))
    assert (published.remembered_bytes, published.adapters[0].remembered_bytes) == (0, 0)
    assert artifacts.read(model / "kvrelease.json", Fingerprint) == published


@pytest.mark.parametrize("mode", ["full", "fast"])
def test_a_check_looks_at_the_published_adapters(kv: Kv, model: Path, workdir: Path, mode: str) -> None:
    for version in (1, 2):
        write_adapter(workdir / f"v{version}", adapter_tensors(layers=[0], seed=version))
    kv("fingerprint", "m", "--adapter", "support=v1", "--publish")

    def check(*adapters: str) -> Result:
        options = [part for text in adapters for part in ("--adapter", text)]
        return kv("fingerprint", "m", "--check", "--mode", mode, *options, "--format", "json")

    assert check("support=v1").code == 0
    other = check("support=v2")
    assert (other.code, check_of(other).changed) == (1, ("adapter 'support'",))
    more = check("support=v1", "billing=v2")
    assert (more.code, check_of(more).changed) == (1, ("adapter 'billing'",))
    none = check()
    assert (none.code, check_of(none).unknown) == (3, ("adapter 'support'",))
    assert "add --adapter NAME=DIR for each" in check_of(none).reason


def test_an_adapter_alone_can_be_published_and_checked(kv: Kv, adapter: Path, workdir: Path) -> None:
    assert kv("fingerprint", "lora", "--publish").code == 0
    shutil.copytree(adapter, "moved")
    assert kv("fingerprint", "moved", "--check").code == 0
    write_adapter(workdir / "moved", adapter_tensors(layers=[0], seed=7))
    assert kv("fingerprint", "moved", "--check").code == 1


def test_an_adapter_alone_is_the_same_after_it_was_moved(kv: Kv, adapter: Path, workdir: Path) -> None:
    shutil.copytree(adapter, "moved")
    same = json.loads(kv("diff", "lora", "moved", "--format", "json").out)
    assert (same["changed"], same["adapters"]) == ([], {"added": [], "removed": [], "changed": []})
    write_adapter(workdir / "moved", adapter_tensors(layers=[0], seed=7))
    other = json.loads(kv("diff", "lora", "moved", "--format", "json").out)
    assert (other["changed"], other["adapters"]["changed"]) == (["release", "weights", "kv"], ["moved"])


def test_a_diff_of_a_fast_and_a_full_fingerprint_tells_adapters_that_differ(kv: Kv, model: Path, workdir: Path) -> None:
    for version in (1, 2):
        write_adapter(workdir / f"v{version}", adapter_tensors(layers=[0], seed=version))
    kv("fingerprint", "m", "--adapter", "support=v1", "-o", "full.json")
    for version, changed, status, base in ((1, [], "unknown", None), (2, ["support"], "invalid", "unknown")):
        kv("fingerprint", "m", "--adapter", f"support=v{version}", "--mode", "fast", "-o", "fast.json")
        diff = json.loads(kv("diff", "full.json", "fast.json", "--format", "json").out)
        assert (diff["kv"]["status"], diff["kv"]["base"]) == (status, base)
        assert diff["kv"]["adapters"] == diff["adapters"]["changed"] == changed
        assert ("release" in diff["changed"]) == bool(changed)


# --- GGUF ---


def test_gguf_in_both_modes_has_one_fast_digest(kv: Kv, gguf: Path) -> None:
    fast = fingerprint_of(kv("fingerprint", gguf, "--mode", "fast", "--format", "json"))
    full = fingerprint_of(kv("fingerprint", gguf, "--format", "json"))
    assert fast.fast == full.fast == fast.digests.weights
    assert (fast.release.kv_name, fast.format, fast.labels) == (None, full.format, full.labels)
    assert fast.bound is not None
    assert (fast.digests.config, fast.digests.tokenizer) == (full.digests.config, full.digests.tokenizer)


@pytest.mark.parametrize("mode", ["full", "fast"])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: write_gguf(Path("g/support.gguf"), small_model(tokenizer__chat_template=text("{{ x }}"))), "template"),
        (
            lambda: write_gguf(Path("g/support.gguf"), tensors=[*small_tensors()[:-1], flipped(small_tensors()[-1])]),
            None,
        ),
    ],
    ids=["template", "a bit of a small tensor"],
)
def test_a_published_gguf_directory_is_checked(
    kv: Kv, gguf: Path, mode: str, change: Changed, named: str | None
) -> None:
    assert kv("fingerprint", gguf, "--publish").code == 0
    check = ("fingerprint", gguf, "--check", "--mode", mode, "--format", "json")
    assert kv(*check).code == 0
    change()
    found = kv(*check)
    assert found.code == 1
    expected = (named,) if named else ("samples",) if mode == "fast" else ("weights", "kv")
    assert check_of(found).changed == expected


def test_one_gguf_file_is_checked_with_what_lies_beside_it(kv: Kv, gguf: Path) -> None:
    kv("fingerprint", gguf, "--publish")
    assert kv("fingerprint", gguf / "support.gguf", "--check").code == 0
    os.chdir(gguf)
    assert kv("fingerprint", "support.gguf", "--check", "--mode", "fast").code == 0


def test_the_memo_knows_tensors_of_gguf_and_no_metadata(gguf: Path, memo: Memo) -> None:
    first = load_release(gguf, memo=memo)
    assert load_release(gguf, memo=memo).remembered_bytes == first.bytes
    write_gguf(gguf / "support.gguf", small_model(tokenizer__chat_template=text("{{ x }}")))
    edited = load_release(gguf, memo=memo)
    assert (edited.remembered_bytes, edited.digests.weights) == (0, first.digests.weights)
    assert edited.digests.template != first.digests.template


def test_an_adapter_on_a_gguf_base_has_a_name_and_no_false_alarm(kv: Kv, gguf: Path, adapter: Path) -> None:
    result = kv("fingerprint", gguf, "--adapter", "lora", "--format", "json")
    (found,) = fingerprint_of(result).adapters
    assert found.digest.startswith("kvfp1-full/all.1+adapter:")
    assert found.kv_name is not None
    assert "whether it fits the base cannot be told: gguf" in result.err
    assert "does not have" not in result.err


def test_an_adapter_in_another_form_is_refused_with_what_to_do(kv: Kv, model: Path, gguf: Path) -> None:
    result = kv("fingerprint", "m", "--adapter", gguf / "support.gguf")
    assert result.code == 4
    assert "adapters of no other form are read" in result.err
    assert "next: give the directory that PEFT wrote" in result.err


# --- far places ---


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch, workdir: Path) -> Iterator[Hub]:
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HUB_CACHE", str(workdir / "hub-cache"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield hub


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    with serve_s3(monkeypatch, tmp_path) as server:
        yield server


def test_gguf_on_the_hub_in_both_modes(kv: Kv, gguf: Path, far: Hub) -> None:
    commit = far.push("acme/support", gguf)
    here = load_release(gguf)
    fast = fingerprint_of(kv("fingerprint", f"hf:acme/support@{commit}", "--mode", "fast", "--format", "json"))
    full = fingerprint_of(kv("fingerprint", f"hf:acme/support@{commit}/support.gguf", "--format", "json"))
    assert fast.fast == here.fast
    assert (full.digests, full.release.kv_name) == (here.digests, here.release.kv_name)
    assert full.release.version == commit


def test_a_cached_snapshot_without_its_gguf_file_is_not_taken_for_whole(gguf: Path, far: Hub, workdir: Path) -> None:
    commit = far.push("acme/support", gguf)
    (workdir / "hub-cache" / "models--acme--support" / "snapshots" / commit).mkdir(parents=True)
    assert load_release(f"hf:acme/support@{commit}").digests == load_release(gguf).digests


def test_an_adapter_on_the_hub(kv: Kv, model: Path, adapter: Path, far: Hub) -> None:
    commit = far.push("acme/lora", adapter)
    found = fingerprint_of(kv("fingerprint", "m", "--adapter", f"support=hf:acme/lora@{commit}", "--format", "json"))
    (near,) = with_adapters(load_release(model), {"support": open_source(adapter)}).adapters
    assert (found.adapters[0].digest, found.adapters[0].kv_name) == (near.digest, near.kv_name)
    assert found.adapters[0].source == f"hf:acme/lora@{commit}"


def test_what_the_hub_states_does_not_stand_for_published_adapters(
    kv: Kv, model: Path, adapter: Path, far: Hub
) -> None:
    commit = far.push("acme/support", model)
    address = f"hf:acme/support@{commit}"
    kv("fingerprint", address, "--adapter", "support=lora", "-o", "published.json")
    check = ("fingerprint", address, "--against", "published.json", "--mode", "fast", "--format", "json")
    without = kv(*check)
    assert (without.code, check_of(without).unknown) == (3, ("adapter 'support'",))
    assert kv(*check, "--adapter", "support=lora").code == 0


def test_a_gguf_file_in_an_object_store_is_checked_with_what_lies_beside_it(kv: Kv, gguf: Path, s3: S3Server) -> None:
    kv("fingerprint", gguf, "--publish")
    address = s3.upload(gguf, "v1")
    for what in (address, f"{address}/", f"{address}/support.gguf"):
        for mode in ("full", "fast"):
            assert kv("fingerprint", what, "--check", "--mode", mode).code == 0
    assert kv("fingerprint", f"{address}/support.gguf").code == 0


def test_base_and_adapter_in_an_object_store(kv: Kv, model: Path, adapter: Path, s3: S3Server) -> None:
    base, lora = s3.upload(model, "base"), s3.upload(adapter, "lora")
    far = fingerprint_of(kv("fingerprint", base, "--adapter", f"support={lora}", "--format", "json"))
    near = fingerprint_of(kv("fingerprint", "m", "--adapter", "support=lora", "--format", "json"))
    assert far.digests == near.digests
    assert far.adapters[0].kv_name == near.adapters[0].kv_name
