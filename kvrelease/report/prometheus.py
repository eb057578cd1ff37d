"""A run of the release gate as a Prometheus text file, for the node exporter's textfile collector.

Source: https://prometheus.io/docs/instrumenting/exposition_formats, written by prometheus-client, to a temporary file
beside it that then takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from kvrelease.artifacts import ReleaseRef, Verdict
from kvrelease.binding.observe import known_total
from kvrelease.errors import ExitCode, InputError
from kvrelease.verify.consistency import ProbeJudgement, ProbeVerdict
from kvrelease.verify.judge import VerifyReport
from kvrelease.verify.suspicion import threshold_nats

_OF = ("release", "namespace")


class _Page:
    """The metrics of one release in one namespace. What is not known has no series."""

    def __init__(self, release: ReleaseRef, namespace: str) -> None:
        self.registry = CollectorRegistry()
        self._of = (release.name, namespace)
        self._gauges: dict[str, Gauge] = {}

    def add(self, name: str, meaning: str, value: float | None, **labels: str) -> None:
        if value is None:
            return
        if name not in self._gauges:
            full = f"kvrelease_verify_{name}"
            self._gauges[name] = Gauge(full, meaning, (*_OF, *labels), registry=self.registry)
        self._gauges[name].labels(*self._of, *labels.values()).set(value)


def write_metrics(
    path: Path,
    report: VerifyReport | None,
    *,
    release: ReleaseRef,
    namespace: str,
    code: ExitCode,
    ended_at: float,
    run: int = 1,
) -> None:
    """Puts one run's metrics at `path`, so that a scrape sees the run before it or this one, never a part.

    Args:
        path: of the file, which others read.
        report: of the run; None where no engine could be asked.
        release: that is said to be served.
        namespace: of that release.
        code: that the run ends with.
        ended_at: Unix time in seconds.
        run: counted from 1.

    Raises:
        InputError: it cannot be written.
    """
    page = _Page(release, namespace)
    page.add("exit_code", "what the last run ended with (0 pass, 1 fail, 3 inconclusive, 5 no proper answer)", code)
    page.add("run_timestamp_seconds", "when the last run ended", ended_at)
    page.add("runs", "runs since the watch began", run)
    for verdict in Verdict:
        is_so = report is not None and report.verdict is verdict
        page.add("verdict", "1 for the verdict of the last run; no 1 where there is none", is_so, verdict=str(verdict))
    if report is not None:
        _add_report(page, report)
    try:
        write_to_textfile(str(path), page.registry)
    except OSError as error:
        raise InputError(
            f"writing {path}: {error.strerror or error}; the file before it stands",
            hint="name another --metrics-file, or make room",
        ) from error


def _add_report(page: _Page, report: VerifyReport) -> None:
    for check in report.checks:
        page.add(
            "check",
            "1 for the outcome of each check; replica is empty where a check is over all",
            1,
            replica=check.replica or "",
            check=str(check.id),
            verdict=str(check.verdict),
        )
    for replica in dict.fromkeys(probe.replica for probe in report.probes):
        _add_replica(page, replica, [probe for probe in report.probes if probe.replica == replica])
    floor = report.noise_floor
    page.add("noise_floor_nats", "largest distance between clean answers", floor.max)
    page.add("noise_floor_pairs", "clean pairs that the noise floor was measured on", floor.pairs)
    threshold = None if floor.max is None else threshold_nats(floor)
    page.add("threshold_nats", "distance above which a probe is suspect", threshold)
    page.add(
        "stale_share_upper",
        "the share of stale requests that the run does not exclude, on the worst replica",
        report.stale.upper,
    )
    page.add("requests", "requests that the run sent", report.cost.requests)
    page.add("retries", "requests that the run sent again", report.cost.retries)
    page.add("prompt_tokens", "prompt tokens of those requests, where told", report.cost.tokens)
    page.add("run_seconds", "how long the run took", report.cost.seconds)


def _add_replica(page: _Page, replica: str, probes: Sequence[ProbeJudgement]) -> None:
    for verdict in ProbeVerdict:
        count = sum(probe.verdict is verdict for probe in probes)
        page.add("probes", "probes of the run, by what they showed", count, replica=replica, verdict=str(verdict))
    distances = [probe.distance for probe in probes if probe.distance is not None]
    page.add(
        "largest_distance_nats",
        "largest distance of a production answer from its clean twin",
        max(distances, default=None),
        replica=replica,
    )
    page.add(
        "foreign_tokens",
        "cached tokens of the probes that this release did not compute",
        known_total([probe.foreign_tokens for probe in probes]),
        replica=replica,
    )
