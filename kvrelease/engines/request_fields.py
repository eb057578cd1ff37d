"""What adapters look up in a request: its one prompt, whether it holds more than text, whether it names a slot."""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import Request
from kvrelease.engines.foreign import as_ids, as_list, as_object, is_object
from kvrelease.errors import UsageError


def single_prompt(prompt: object) -> str | tuple[int, ...] | None:
    """The one prompt of a completions body, a text or token ids; None for several, embeddings, or an empty list."""
    if isinstance(prompt, str):
        return prompt
    if ids := as_ids(prompt):
        return ids
    items = as_list(prompt)
    return single_prompt(items[0]) if len(items) == 1 and not is_object(items[0]) else None


def has_media(body: JsonObject) -> bool:
    """Whether a chat body holds anything but text: images, sound, video, files."""
    parts = [
        part
        for message in map(as_object, as_list(body.get("messages")))
        for part in as_list(message.get("content"))
        if is_object(part)
    ]
    return any(part.get("type") not in ("text", "input_text") for part in parts)


def refuse_slot(request: Request, *, url: str) -> None:
    """Raises where a request names a slot, and the engine has none.

    An adapter whose engine has slots says it in the body, and passes the request on without.

    Raises:
        UsageError: it names one.
    """
    if request.slot is not None:
        raise UsageError(
            f"the engine at {url} has no slots, so no request can name one", hint="only llama.cpp has slots"
        )
