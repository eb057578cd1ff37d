"""The metrics file: what a scrape reads of a run, and what it never reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvrelease.errors import ExitCode, InputError
from kvrelease.report.prometheus import write_metrics
from kvrelease.verify.judge import VerifyReport
from tests import builders

REPORT = builders.verify()
DOCS = Path(__file__).parents[2] / "docs" / "verify.md"


def samples(path: Path, report: VerifyReport | None = REPORT) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By name, labels beside release and namespace, and value of each series, as Prometheus parses them."""
    write_metrics(
        path,
        report,
        release=REPORT.release,
        namespace=REPORT.namespace,
        code=ExitCode.FAILED if report else ExitCode.SERVICE,
        ended_at=1_795_985_886.5,
        run=3,
    )
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(path.read_text(encoding="utf-8")):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("release") == REPORT.release.name
            assert labels.pop("namespace") == REPORT.namespace
            found.setdefault(sample.name.removeprefix("kvrelease_verify_"), []).append((labels, sample.value))
    return found


def test_a_run_is_told_in_full(tmp_path: Path) -> None:
    found = samples(tmp_path / "kv.prom")
    url = REPORT.probes[0].replica
    assert found["exit_code"] == [({}, 1.0)]
    assert found["runs"] == [({}, 3.0)]
    assert found["run_timestamp_seconds"] == [({}, 1_795_985_886.5)]
    assert {labels["verdict"]: value for labels, value in found["verdict"]} == {"pass": 0, "fail": 1, "inconclusive": 0}
    assert [(labels["check"], labels["verdict"]) for labels, value in found["check"] if value == 1] == [
        (str(check.id), str(check.verdict)) for check in REPORT.checks
    ]
    assert {labels["verdict"]: value for labels, value in found["probes"]} == {
        "stale": 1,
        "suspect": 1,
        "clean": 1,
        "unjudged": 0,
    }
    assert found["requests"] == [({}, 64.0)]
    assert found["prompt_tokens"] == [({}, 39660.0)]
    assert found["run_seconds"] == [({}, 3.5)]
    assert found["largest_distance_nats"][0][0] == {"replica": url}


def test_what_is_not_known_has_no_series(tmp_path: Path) -> None:
    found = samples(tmp_path / "kv.prom")
    assert REPORT.noise_floor.max is None
    assert {"noise_floor_nats", "threshold_nats"} & set(found) == set()
    (unknown,) = (probe for probe in REPORT.probes if probe.foreign_tokens is None)
    alone = samples(tmp_path / "kv.prom", builders.verify(probes=(unknown,)))
    assert {"foreign_tokens", "largest_distance_nats"} & set(alone) == set()


def test_a_run_without_an_answer_leaves_no_verdict_of_the_one_before(tmp_path: Path) -> None:
    samples(tmp_path / "kv.prom")
    found = samples(tmp_path / "kv.prom", None)
    assert set(found) == {"exit_code", "runs", "run_timestamp_seconds", "verdict"}
    assert found["exit_code"] == [({}, 5.0)]
    assert {value for _, value in found["verdict"]} == {0.0}
    assert [path.name for path in tmp_path.iterdir()] == ["kv.prom"]


def test_no_detail_no_prompt_and_no_probe_is_in_it(tmp_path: Path) -> None:
    samples(tmp_path / "kv.prom")
    text = (tmp_path / "kv.prom").read_text(encoding="utf-8")
    for secret in (*(check.detail for check in REPORT.checks), *(f'"{probe.id}"' for probe in REPORT.probes)):
        assert secret not in text


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the file before it stands"):
        samples(tmp_path / "nowhere" / "kv.prom")


def test_the_alerts_of_the_page_name_metrics_and_labels_that_are_written(tmp_path: Path) -> None:
    import yaml

    found = samples(tmp_path / "kv.prom", builders.verify(noise_floor=builders.verify().noise_floor))
    block = DOCS.read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]
    rules = yaml.safe_load(block)["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == {"StaleCacheOnCanary", "CanaryNotVerified"}
    for rule in rules:
        words = [word.partition("{") for word in rule["expr"].split() if word.startswith("kvrelease_verify_")]
        assert words
        for name, _, labels in words:
            series = found[name.removeprefix("kvrelease_verify_").rstrip(")")]
            wanted = dict(part.split("=") for part in labels.rstrip("}").split(",") if part)
            assert any(set(wanted.items()) <= {(key, f'"{value}"') for key, value in one.items()} for one, _ in series)
