"""Prompt sets as YAML: people write them, so shared openings are written once and named.

```yaml
name: support            # optional, default: the file's name
description: …           # optional, for people
defaults:                # optional: body fields of every prompt
  temperature: 0
systems:                 # optional: system messages by name
  returns-desk: You work at …
openings:                # optional: what prompts begin with: text (completions) or a list of messages (chat)
  examples: |-
    Review: …
prompts:
  - {id: opened-item, weight: 40, system: returns-desk, user: May I return an opened kettle?}
  - {opening: examples, prompt: "Review: Arrived broken.", salt: tenant-7}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.workload.body import as_object
from kvrelease.workload.entry import Entry, read_id, read_label, read_weight
from kvrelease.workload.key_space import read_salt, take_salt
from kvrelease.workload.place import Place, did_you_mean, kind_name, quoted
from kvrelease.workload.yaml_text import YamlDocument, parse_yaml

_TOP_KEYS = frozenset({"name", "description", "defaults", "systems", "openings", "prompts"})
_ENTRY_KEYS = frozenset({"id", "weight", "prefix", "salt", "system", "opening", "user", "messages", "prompt", "body"})
# Names become labels (`system:NAME`), and share their bound with them.
MAX_NAME_CHARACTERS = 48
# Shared openings are written once and sent with every prompt: this bounds what a small file can grow to.
MAX_EXPANDED_CHARACTERS = 256 * 1024 * 1024


T = TypeVar("T")


class YamlSet(msgspec.Struct, frozen=True, kw_only=True):
    """What a YAML file says.

    Attributes:
        name: None when the file gives none.
        entries: in the file's order.
    """

    name: str | None
    entries: list[Entry]


class _Shared(msgspec.Struct, frozen=True, kw_only=True):
    defaults: JsonObject
    systems: dict[str, str]
    openings: dict[str, str | list[object]]


def read_yaml(text: str, *, source: str) -> YamlSet:
    """The entries of a YAML text.

    Raises:
        PromptSetError: not YAML, or not of the form above.
    """
    place = Place(source=source)
    document = parse_yaml(text, place=place)
    top = document.value
    if top is None:
        raise place.error("the file is empty", hint="begin with `prompts:` and a list of prompts")
    if not isinstance(top, dict):
        raise place.error(
            f"the file is {kind_name(top)}, expected a map with `prompts:`",
            hint="begin with `prompts:`; a file with one JSON body a line needs the suffix .jsonl",
        )
    _refuse_unknown(top, _TOP_KEYS, place=place, what="the file")
    if "prompts" not in top:
        raise place.error("it has no `prompts:` list")
    items = top["prompts"]
    if items is not None and not isinstance(items, list):
        raise place.error(f"`prompts` is {kind_name(items)}, expected a list")
    shared = _Shared(
        defaults=_read_defaults(top.get("defaults"), place=place),
        systems=_read_systems(top.get("systems"), place=place),
        openings=_read_openings(top.get("openings"), place=place),
    )
    return YamlSet(
        name=_read_name(top.get("name"), place=place), entries=_read_entries(document, items or [], shared, place)
    )


def _read_entries(document: YamlDocument, items: list[object], shared: _Shared, place: Place) -> list[Entry]:
    entries = []
    expanded = 0
    for number, item in enumerate(items, start=1):
        entry_place = Place(source=place.source, line=document.entry_lines[number - 1], entry=number)
        entry, opening_characters = _read_entry(item, shared=shared, place=entry_place)
        expanded += opening_characters
        if expanded > MAX_EXPANDED_CHARACTERS:
            raise entry_place.error(
                f"with its shared openings written out the set exceeds {MAX_EXPANDED_CHARACTERS} characters",
                hint="split the set, or shorten the openings",
            )
        entries.append(entry)
    return entries


def _read_entry(item: object, *, shared: _Shared, place: Place) -> tuple[Entry, int]:
    """One entry, and how many characters its shared opening adds."""
    if not isinstance(item, dict):
        raise place.error(f"it is {kind_name(item)}, expected a map", hint="for example `- {system: NAME, user: TEXT}`")
    prompt_id = read_id(item.get("id"), place=place)
    place = msgspec.structs.replace(place, id=prompt_id)
    _refuse_unknown(item, _ENTRY_KEYS, place=place, what="it")
    fields = as_object(item.get("body") or {}, place=place, path="body")
    own = _own_prompt(item, fields, place=place)
    label, opening = _shared_opening(item, shared, place=place)
    if opening:
        own = _join(opening, own, place=place)
    prefix = read_label(item.get("prefix"), place=place)
    whole = {**shared.defaults, **fields, **own}
    body, salt = take_salt(whole, place=place, beside=read_salt(item.get("salt"), place=place))
    entry = Entry(
        place=place,
        id=prompt_id,
        weight=read_weight(item.get("weight", 1), place=place),
        body=body,
        prefix=prefix if prefix is not None else label,
        salt=salt,
    )
    return entry, sum(len(str(part)) for part in opening)


def _own_prompt(item: Mapping[str, object], fields: JsonObject, *, place: Place) -> JsonObject:
    """`{"messages": …}` or `{"prompt": …}`, from whichever one way the entry uses."""
    ways = [key for key in ("user", "messages", "prompt") if key in item]
    ways += [f"body.{key}" for key in ("messages", "prompt") if key in fields]
    if len(ways) > 1:
        raise place.error(f"it gives its prompt in {len(ways)} ways: {', '.join(ways)}", hint="keep one of them")
    if not ways:
        raise place.error(
            "it has neither `user` nor `messages` (chat) nor `prompt` (completions)",
            hint="add `user: TEXT` beside `system: NAME`, or `messages:`, or `prompt:`",
        )
    match ways[0]:
        case "user":
            return {"messages": [{"role": "user", "content": _text(item["user"], what="`user`", place=place)}]}
        case "messages" | "prompt" as key:
            return as_object({key: item[key]}, place=place, path="it")
        case way:
            field = way.removeprefix("body.")
            return {field: fields[field]}


def _shared_opening(
    item: Mapping[str, object], shared: _Shared, *, place: Place
) -> tuple[str | None, str | list[object]]:
    """The label and the text or messages that an entry borrows; None and nothing when it borrows none."""
    if "system" in item and "opening" in item:
        raise place.error(
            "it has both `system` and `opening`", hint="write the system message into the opening's messages"
        )
    if "system" in item:
        name, text = _look_up(item["system"], shared.systems, key="system", place=place)
        return f"system:{name}", [{"role": "system", "content": text}]
    if "opening" in item:
        name, opening = _look_up(item["opening"], shared.openings, key="opening", place=place)
        return f"opening:{name}", opening
    return None, ""


def _look_up(name: object, known: Mapping[str, T], *, key: str, place: Place) -> tuple[str, T]:
    if isinstance(name, str) and name in known:
        return name, known[name]
    found = quoted(name) if isinstance(name, str) else kind_name(name)
    raise place.error(
        f"`{key}` is {found}, which `{key}s:` does not define",
        hint=did_you_mean(name, known) or f"define it once, under `{key}s:` at the top of the file",
    )


def _join(opening: str | list[object], own: JsonObject, *, place: Place) -> JsonObject:
    """The opening before the entry's own prompt; both must be of one kind."""
    match opening, own.get("prompt", own.get("messages")):
        case str(), str(text) if "prompt" in own:
            return {"prompt": opening + text}
        case list(), list(messages) if "messages" in own:
            if messages and isinstance(messages[0], dict) and messages[0].get("role") in ("system", "developer"):
                raise place.error("a shared opening precedes its own system message", hint="keep one of the two")
            return {"messages": [*opening, *messages]}
        case _:
            kind = "text, for `prompt:`" if isinstance(opening, str) else "messages, for `user:` or `messages:`"
            raise place.error(f"its shared opening is {kind}, and its own prompt is of the other kind")


def _read_defaults(value: object, *, place: Place) -> JsonObject:
    defaults = as_object(value, place=place, path="defaults") if value is not None else {}
    for key in ("messages", "prompt", "id", "weight"):
        if key in defaults:
            raise place.error(f"`defaults` has {key!r}, which belongs to each prompt")
    return defaults


def _read_systems(value: object, *, place: Place) -> dict[str, str]:
    named = as_object(value, place=place, path="systems") if value is not None else {}
    return {
        _check_name(name, what="systems", place=place): _text(text, what=f"systems.{name[:40]}", place=place)
        for name, text in named.items()
    }


def _read_openings(value: object, *, place: Place) -> dict[str, str | list[object]]:
    named = as_object(value, place=place, path="openings") if value is not None else {}
    openings: dict[str, str | list[object]] = {}
    for name, opening in named.items():
        _check_name(name, what="openings", place=place)
        if isinstance(opening, list) and opening:
            openings[name] = opening  # its messages are checked with every prompt that begins with them
        else:
            openings[name] = _text(opening, what=f"openings.{name[:40]}", place=place)
    return openings


def _read_name(value: object, *, place: Place) -> str | None:
    if value is None:
        return None
    return _check_name(value, what="`name`", place=place)


def _check_name(name: object, *, what: str, place: Place) -> str:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARACTERS or " " in name:
        found = quoted(name) if isinstance(name, str) else kind_name(name)
        raise place.error(
            f"the name {found} in {what} is not 1 to {MAX_NAME_CHARACTERS} printable characters without spaces"
        )
    return name


def _text(value: object, *, what: str, place: Place) -> str:
    if isinstance(value, str) and value.strip():
        return str(as_object({"text": value}, place=place, path=what)["text"])
    found = "empty" if isinstance(value, str) else kind_name(value)
    raise place.error(f"{what} is {found}, expected text", hint="put words such as yes, no and 12:30 in quotes")


def _refuse_unknown(value: Mapping[object, object], known: frozenset[str], *, place: Place, what: str) -> None:
    for key in value:
        if key in known:
            continue
        hint = did_you_mean(key, known)
        if what == "it" and hint is not None and not hint.startswith("did"):
            hint += "; other fields of the request (temperature, tools, …) go under `body:`"
        raise place.error(f"{what} has the unknown key {quoted(key)}", hint=hint)
