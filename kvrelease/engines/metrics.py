"""Numbers from a Prometheus text page: sums over labels, under any of a counter's historic names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from kvrelease.errors import UnexpectedReply


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the page."""

    name: str
    labels: dict[str, str]
    value: float


class Metrics:
    """The samples of one scrape, by name. A name that is missing is None, never zero."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples: dict[str, list[Sample]] = {}
        for sample in samples:
            self._samples.setdefault(sample.name, []).append(sample)

    def total(self, *names: str, only: Mapping[str, str] | None = None) -> float | None:
        """The sum over all labels of the first of these names that is there, with or without `_total`.

        One engine process shows one series per data-parallel rank or internal engine; they add up. NaN is not known.

        Args:
            names: of one counter, latest first.
            only: labels that a series must have; None for all series. Where none has them, the sum is not known.
        """
        for name in names:
            for spelling in (name, f"{name}_total"):
                if spelling in self._samples:
                    chosen = [sample.value for sample in self._samples[spelling] if _has(sample, only or {})]
                    value = math.fsum(chosen) if chosen else math.nan
                    return None if math.isnan(value) else value
        return None

    def numbers_of(self, label: str, *names: str) -> tuple[int, ...]:
        """The whole numbers that a label has in these metrics, ascending, each once."""
        found = {
            sample.labels.get(label, "")
            for name in names
            for spelling in (name, f"{name}_total")
            for sample in self._samples.get(spelling, ())
        }
        return tuple(sorted(int(text) for text in found if text.isdecimal()))

    def totals_by(self, label: str, name: str, *, only: Mapping[str, str] | None = None) -> dict[str, float]:
        """The sums of one counter by what a label says; empty when it is missing, or one of them is not known."""
        found: dict[str, float] = {}
        for sample in self.samples(name):
            if label in sample.labels and _has(sample, only or {}):
                found[sample.labels[label]] = found.get(sample.labels[label], 0.0) + sample.value
        return {} if any(math.isnan(value) for value in found.values()) else found

    def samples(self, name: str) -> tuple[Sample, ...]:
        """Each series of one metric, with or without `_total`; none when it is missing."""
        return tuple(self._samples.get(name) or self._samples.get(f"{name}_total") or ())

    def labels(self, name: str) -> tuple[dict[str, str], ...]:
        """The labels of each series of an info metric, such as `vllm:cache_config_info`."""
        return tuple(sample.labels for sample in self._samples.get(name, ()))


def _has(sample: Sample, labels: Mapping[str, str]) -> bool:
    return all(sample.labels.get(name) == value for name, value in labels.items())


def parse_metrics(text: str, *, source: str) -> Metrics:
    """The samples of a page.

    Args:
        text: Prometheus text exposition format.
        source: names the page in messages.

    Raises:
        UnexpectedReply: not that format (an HTML page, JSON).

    Source: https://prometheus.io/docs/instrumenting/exposition_formats, read by prometheus-client's parser.
    """
    try:
        return Metrics(
            Sample(name=sample.name, labels=dict(sample.labels), value=float(sample.value))
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        )
    except (ValueError, KeyError, IndexError) as error:
        raise UnexpectedReply(
            f"reading {source}: not a Prometheus text page",
            hint="point the engine URL at the engine itself, not at a page in front of it",
        ) from error
