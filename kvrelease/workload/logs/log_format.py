"""The formats of traffic logs that we read."""

from __future__ import annotations

import enum


class LogFormat(enum.StrEnum):
    """What wrote a log; docs/logs.md has an example of each."""

    OPENAI = "openai"
    BATCH = "batch"
    SHAREGPT = "sharegpt"
    LITELLM = "litellm"
    OTEL = "otel"
    CSV = "csv"
    TEXT = "text"
    DOCUMENTS = "documents"
    MOONCAKE = "mooncake"
    AZURE = "azure"
