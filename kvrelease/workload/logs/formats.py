"""Every format of logs with its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvrelease.workload.logs import litellm, mooncake, openai, otel, sharegpt
from kvrelease.workload.logs.csv_file import azure_requests, csv_requests
from kvrelease.workload.logs.json_format import Step
from kvrelease.workload.logs.lines import LogFile
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.plain_text import text_documents, text_lines

# The first that recognises a record has it: OpenAI's bodies have the fewest marks of their own, so they come last.
JSON_FORMATS = (otel.FORMAT, sharegpt.FORMAT, openai.BATCH, mooncake.FORMAT, litellm.FORMAT, openai.BODIES)
TEXT_FORMATS: dict[LogFormat, Callable[[LogFile], Iterator[Step]]] = {
    LogFormat.CSV: csv_requests,
    LogFormat.AZURE: azure_requests,
    LogFormat.TEXT: text_lines,
    LogFormat.DOCUMENTS: text_documents,
}
