"""A slot file of v1.2 restored into v1.3, and a clean start, on real llama.cpp with one slot."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.live.conftest import Operator, Pair, Run, checks
from tests.live.servers import llamacpp_server

CLAIM = ("--stale-below", "0.25")
ONE_SLOT = ("-np", "1", "--metrics")


class Story:
    """What happened, step by step."""

    restored: Run
    restored_tokens: int
    prewarmed: Run
    clean: Run


@pytest.fixture(scope="module")
def story(pair: Pair, operator: Operator, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    told = Story()
    asked = ("--prompts", prompts)
    directory = tmp_path_factory.mktemp("llamacpp")
    slots = directory / "slots"
    slots.mkdir()
    operator.configure()
    with llamacpp_server(pair.old_gguf, extra_args=ONE_SLOT, slot_dir=slots, log_path=directory / "old.log") as old:
        baseline = operator.run("record", "--release", pair.old, "--engine-url", old.url, *asked).expect(0)
        saved = httpx.post(f"{old.url}/slots/0?action=save", json={"filename": "support.bin"}, timeout=60)
        assert saved.status_code == 200, saved.text
    (operator.directory / "baseline.json").write_text(baseline.stdout)

    release = ("--release", pair.new)
    both = (*release, "--old-release", pair.old, "--baseline", "baseline.json")
    with llamacpp_server(pair.new_gguf, extra_args=ONE_SLOT, slot_dir=slots, log_path=directory / "new.log") as new:
        restored = httpx.post(f"{new.url}/slots/0?action=restore", json={"filename": "support.bin"}, timeout=60)
        assert restored.status_code == 200, restored.text
        told.restored_tokens = restored.json()["n_restored"]
        told.restored = operator.run("verify", *both, "--engine-url", new.url, *asked, *CLAIM)
    with llamacpp_server(pair.new_gguf, extra_args=ONE_SLOT, log_path=directory / "clean.log") as clean:
        engine = ("--engine-url", clean.url)
        told.prewarmed = operator.run("prewarm", *release, *engine, *asked)
        told.clean = operator.run("verify", *both, *engine, *asked, *CLAIM)
    return told


def test_the_engine_restores_the_old_releases_slot_without_a_word(story: Story) -> None:
    assert story.restored_tokens > 600


def test_a_restored_slot_of_the_old_release_fails_the_gate(story: Story) -> None:
    report = story.restored.expect(1).json
    found = checks(report)
    assert found["first-touch"] == "fail"
    assert found["consistency"] == "fail"
    assert any(probe["verdict"] == "stale" and probe["foreign_tokens"] > 600 for probe in report["probes"])


def test_a_clean_start_prewarms(story: Story) -> None:
    replica = story.prewarmed.expect(0).json["replicas"][0]
    assert replica["foreign_tokens"] == 0
    assert replica["hit_rate_after"] >= 0.9


def test_a_clean_start_passes_the_gate(story: Story) -> None:
    report = story.clean.expect(0).json
    assert checks(report)["identity"] == "pass"
    assert report["stale"]["count"] == 0
    assert report["power"]["status"] == "sufficient"
