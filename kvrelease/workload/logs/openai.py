"""OpenAI chat and completions bodies, one a line, and batch files of them.

Source:
    https://platform.openai.com/docs/api-reference/batch/request-input (batch files); vLLM reads the same, its
    `vllm/entrypoints/openai/run_batch.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvrelease.artifacts import JsonObject
from kvrelease.workload.entry import read_weight
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.logs.json_format import JsonFormat
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.request import logged_request, place_of, read_time
from kvrelease.workload.place import Place, quoted

# What a line may hold beside the body's own fields; nothing of it is sent.
_BESIDE = frozenset({"id", "weight", "timestamp"})
BATCH_ROUTES = ("/chat/completions", "/completions")


def openai_requests(line: JsonObject, *, place: Place) -> Iterator[LoggedRequest]:
    """The request of a line: a body, with `id`, `weight` and `timestamp` beside its own fields, or under `body`.

    Raises:
        InputError: it is neither, or the body is not acceptable.
    """
    body: object = line.get("body", line.get("request"))
    if body is None:
        body = {name: value for name, value in line.items() if name not in _BESIDE}
    yield logged_request(
        body,
        place=place_of(line.get("id"), place=place),
        at_s=read_time(line.get("timestamp"), place=place, field="timestamp"),
        weight=read_weight(line.get("weight", 1), place=place),
    )


def batch_requests(line: JsonObject, *, place: Place) -> Iterator[LoggedRequest]:
    """The request of a line of a batch file: `custom_id`, `method`, `url` and `body`.

    Raises:
        InputError: a route other than chat and completions, or a body that is not acceptable.
    """
    place = place_of(line.get("custom_id"), place=place)
    url = line.get("url")
    if url is not None and not (isinstance(url, str) and url.rstrip("/").endswith(BATCH_ROUTES)):
        raise place.error(f"the request is for {quoted(url)}, which is neither chat nor completions")
    if "body" not in line:
        raise place.error("the request has no `body`")
    yield logged_request(line["body"], place=place)


def _is_body(line: JsonObject) -> bool:
    return _is_wrapped(line) or any(key in line for key in ("messages", "prompt"))


def _is_wrapped(line: JsonObject) -> bool:
    """The body stands apart, so nothing that stands beside it is sent."""
    return any(key in line for key in ("body", "request"))


BATCH = JsonFormat(LogFormat.BATCH, lambda line: "custom_id" in line and "body" in line, batch_requests, _is_wrapped)
BODIES = JsonFormat(LogFormat.OPENAI, _is_body, openai_requests, _is_wrapped)
