from __future__ import annotations

import json
from pathlib import Path

import pytest
from provision.command import main, targets
from provision.places import Places


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVRELEASE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_status_json_names_every_target_and_its_state(empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["cache"] == str(empty_cache)
    assert {name: entry["state"] for name, entry in document["targets"].items()} == {
        "vllm": "missing",
        "transformers4": "missing",
        "llamacpp": "missing",
        "models": "missing",
    }
    assert all(entry["install_seconds"] is None for entry in document["targets"].values())
    assert not empty_cache.exists()


def test_a_path_that_is_not_installed_says_how_to_install_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["path", "smollm2-v1.2"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "install models" in captured.err


def test_an_unknown_name_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["install", "sglang"])
    assert caught.value.code == 2


def test_recipes_are_stable_and_differ_between_targets() -> None:
    digests = [target.recipe() for target in targets()]
    assert digests == [target.recipe() for target in targets()]
    assert len(set(digests)) == len(digests)


def test_every_named_path_lies_in_the_cache_and_belongs_to_a_target(tmp_path: Path) -> None:
    places = Places(root=tmp_path)
    for owner, path in places.named().values():
        assert owner in {target.name for target in targets()}
        assert path.is_relative_to(tmp_path)


def test_the_cache_is_in_the_home_folder_unless_it_is_named() -> None:
    assert Places.from_environment({}).root == Path.home() / ".cache" / "kvrelease"
    assert Places.from_environment({"KVRELEASE_CACHE": "/data/kv"}).root == Path("/data/kv")
