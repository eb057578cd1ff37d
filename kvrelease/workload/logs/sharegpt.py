"""ShareGPT conversations: every user turn is a request, with the turns before it.

Source:
    The dump that benchmarks replay (`ShareGPT_V3_unfiltered_cleaned_split.json`), and how
    `vllm/benchmarks/datasets.py` and FastChat's `fastchat/data` read it: a JSON array of
    `{"id", "conversations": [{"from", "value"}]}`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvrelease.artifacts import JsonObject
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.logs.json_format import JsonFormat
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.request import chat, logged_request, place_of, read_model
from kvrelease.workload.place import Place, kind_name, quoted

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "function_call": "assistant",
    "observation": "tool",
}


def sharegpt_requests(line: JsonObject, *, place: Place) -> Iterator[LoggedRequest]:
    """The requests of one conversation, in order.

    Raises:
        InputError: a turn that is none, or of an unknown speaker.
    """
    turns = line.get("conversations", line.get("conversation"))
    if not isinstance(turns, list):
        raise place.error(f"`conversations` is {kind_name(turns)}, expected a list of turns")
    model = read_model(line.get("model"), place=place)
    opening = line.get("system")
    messages: list[object] = [{"role": "system", "content": opening}] if isinstance(opening, str) and opening else []
    name = place_of(line.get("id"), place=place).id
    number = 0
    for position, turn in enumerate(turns, start=1):
        role, text = _turn(turn, position=position, place=place)
        messages.append({"role": role, "content": text})
        if role == "user":
            number += 1
            # The id of a conversation names each of its requests apart.
            at = place_of(f"{name}.{number}" if name is not None else None, place=place)
            yield logged_request(chat(list(messages), model=model), place=at)


def _turn(turn: object, *, position: int, place: Place) -> tuple[str, str]:
    speaker = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
    role = _ROLES.get(speaker.lower()) if isinstance(speaker, str) else None
    if not isinstance(turn, dict) or role is None:
        found = f"the speaker {quoted(speaker)}" if isinstance(speaker, str) else "no speaker"
        raise place.error(f"turn {position} has {found}", hint="known here: " + ", ".join(sorted(_ROLES)))
    text = turn.get("value", turn.get("content"))
    if not isinstance(text, str):
        raise place.error(f"the text of turn {position} is {kind_name(text)}, expected text")
    return role, text


FORMAT = JsonFormat(LogFormat.SHAREGPT, lambda line: "conversations" in line, sharegpt_requests)
