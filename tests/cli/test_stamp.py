"""`kvrelease stores stamp`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.stores.stamp import DIRECTORY_STAMP, Stamp
from tests.builders import NAMESPACE, OLD_KV
from tests.cli.conftest import Kv
from tests.cli.shell import Releases

OTHER = f"{OLD_KV}-undeclared-e0"
REASON = "the first pod [bold]wrote it"


@pytest.fixture
def store(workdir: Path) -> Path:
    (workdir / "kv").mkdir()
    return workdir / "kv"


def test_a_release_stamps_the_namespace_that_every_command_uses(kv: Kv, releases: Releases, store: Path) -> None:
    result = kv("stores", "stamp", store, "--release", releases.new, "--format", "json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    assert (told["kind"], told["action"]) == ("kvrelease/stores-stamp", "written")
    made = json.loads(kv("namespace", releases.new, "--engine", "vllm", "--format", "json").out)
    found = artifacts.read(store / DIRECTORY_STAMP, Stamp)
    assert found.namespace == told["stamp"]["namespace"] == made["namespace"]
    assert found.release is not None
    assert found.release.kv_name == made["kv_name"]
    again = kv("stores", "stamp", store, "--release", releases.new, "--format", "json")
    assert (again.code, json.loads(again.out)["action"]) == (0, "unchanged")


def test_check_answers_yes_no_and_not_known_and_writes_nothing(kv: Kv, store: Path) -> None:
    asked = ("stores", "stamp", store, "--check", "--format", "json", "--namespace")
    unstamped = kv(*asked, NAMESPACE)
    assert (unstamped.code, json.loads(unstamped.out)["verdict"]) == (3, "inconclusive")
    assert list(store.iterdir()) == []
    kv("stores", "stamp", store, "--namespace", NAMESPACE)
    for namespace, code, verdict in ((NAMESPACE, 0, "pass"), (OTHER, 1, "fail")):
        result = kv(*asked, namespace)
        assert (result.code, json.loads(result.out)["verdict"]) == (code, verdict)


def test_a_page_says_whose_it_is_and_why(kv: Kv, store: Path) -> None:
    (store / "entry").write_text("kv")
    page = kv(
        "stores", "stamp", store, "--namespace", NAMESPACE, "--adopt-existing", "the first pod [bold]wrote it"
    ).out
    for part in (f"Stamp of {store}", NAMESPACE, REASON, "written"):
        assert part in page
    assert "It has no stamp" not in page


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ((), 2, "neither of --release and --namespace"),
        (("--release", "x", "--namespace", NAMESPACE), 2, "both of"),
        (("--namespace", "release"), 2, "no namespace of a release"),
        (("--namespace", NAMESPACE, "--adopt-existing", " "), 2, "--adopt-existing is empty"),
        (("--namespace", NAMESPACE, "--check", "--replace"), 2, "--check writes nothing"),
        (("--namespace", NAMESPACE), 4, "has entries, and no stamp"),
    ],
)
def test_what_is_refused_is_told_in_one_error(
    kv: Kv, store: Path, more: tuple[str, ...], code: int, words: str
) -> None:
    (store / "entry").write_text("kv")
    result = kv("stores", "stamp", store, *more)
    assert (result.code, result.out, len(result.errors)) == (code, "", 1)
    assert words in result.err
    assert list(store.iterdir()) == [store / "entry"]


def test_configuration_and_variables_do_not_choose_whose_a_store_is(
    kv: Kv, releases: Releases, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("kvrelease.yaml").write_text(json.dumps({"release": str(releases.new), "namespace": "team"}))
    monkeypatch.setenv("KVRELEASE_RELEASE", str(releases.new))
    result = kv("stores", "stamp", store)
    assert (result.code, list(store.iterdir())) == (2, [])
