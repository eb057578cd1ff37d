"""What adapters look up in a production body: its one prompt, and whether it holds more than text."""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.engines.foreign import as_ids, as_list, as_object, is_object


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
