"""What both file formats have in common: ids, weights, labels, and putting the entries together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import PromptSetError
from kvrelease.workload.body import check_body
from kvrelease.workload.place import Place, kind_name, quoted
from kvrelease.workload.prompt_set import Prompt, PromptSet, body_digest

# Of prompt sets that people write; other files hold one request a line.
YAML_SUFFIXES = (".yaml", ".yml")

MAX_ID_CHARACTERS = 128  # ids are shown in tables and JUnit names
MAX_LABEL_CHARACTERS = 64
MAX_WEIGHT = 1e15  # keeps sums of weights finite and exact enough; request counts are far below


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One checked entry of a file, before ids are given to those without.

    Attributes:
        place: where it stands.
        id: None when the file gives none.
        weight: > 0.
        body: pure JSON, checked by `check_body`.
        prefix: label of the shared prefix, None when the file gives none.
        salt: the tenant's own, apart from the body; None without one.
    """

    place: Place
    id: str | None
    weight: float
    body: JsonObject
    prefix: str | None
    salt: str | None = None


class DistinctIds:
    """Ids of which no two are equal: one that is taken already gets a number."""

    def __init__(self) -> None:
        """Begins with none."""
        self._numbers: dict[str, int] = {}

    def of(self, name: str) -> str:
        """`name`, or `name.2`, `name.3`, … where it was given before."""
        number, found = self._numbers.get(name, 1), name
        while found in self._numbers:
            number += 1
            found = f"{name}.{number}"
        self._numbers[name] = number
        self._numbers.setdefault(found, 1)
        return found


def read_id(value: object, *, place: Place) -> str | None:
    """The id of an entry; a whole number is taken as its digits; None stays None.

    Raises:
        PromptSetError: not printable text without spaces, or too long.
    """
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise place.error(f"`id` is {kind_name(value)}, expected text")
    if not value or len(value) > MAX_ID_CHARACTERS or not value.isprintable() or " " in value:
        raise place.error(
            f"the id {quoted(value)} is not 1 to {MAX_ID_CHARACTERS} printable characters without spaces",
            hint="use letters, digits, dots, dashes",
        )
    return value


def read_weight(value: object, *, place: Place) -> float:
    """The traffic weight of an entry.

    Raises:
        PromptSetError: not a number, NaN, zero, negative or absurdly large.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.error(f"`weight` is {kind_name(value)}, expected a number above 0")
    # Compared before conversion: an integer of 400 digits has no float.
    if not value <= MAX_WEIGHT or not value > 0 or not math.isfinite(value):
        shown = "too large" if value > MAX_WEIGHT else format(value, "g")
        raise place.error(
            f"`weight` is {shown}, expected a number above 0 and at most {MAX_WEIGHT:g}",
            hint="a weight is a share of traffic, such as requests per day; leave out prompts that nobody sends",
        )
    return float(value)


def read_label(value: object, *, place: Place) -> str | None:
    """The label of an entry's shared prefix; None stays None.

    Raises:
        PromptSetError: not printable text, or too long.
    """
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_LABEL_CHARACTERS or not value.isprintable():
        found = quoted(value) if isinstance(value, str) else kind_name(value)
        raise place.error(f"`prefix` is {found}, expected 1 to {MAX_LABEL_CHARACTERS} printable characters")
    return value


def assemble(entries: Sequence[Entry], *, name: str, source: str) -> PromptSet:
    """The prompt set of a file's entries.

    An entry without an id is named after its body (`p-` and eight hex characters), so that adding or moving others
    does not rename it; equal bodies get `.2`, `.3`, … in the file's order.

    Raises:
        PromptSetError: no entries, two with the same id, or a body that is not acceptable.
    """
    if not entries:
        raise PromptSetError(
            f"reading the prompt set {source}: it holds no prompts",
            hint="add at least one under `prompts:`"
            if source.lower().endswith(YAML_SUFFIXES)
            else "it takes one request body a line",
        )
    places: dict[str, Place] = {}
    for entry in entries:
        if entry.id is None:
            continue
        first = places.setdefault(entry.id, entry.place)
        if first is not entry.place:
            raise entry.place.error(
                f"the id {quoted(entry.id)} is taken already, by {_spot(first)}", hint="ids must be unique in a set"
            )
    taken = set(places)
    prompts = tuple(
        Prompt(
            id=entry.id if entry.id is not None else _free_id(entry.body, taken=taken),
            weight=entry.weight,
            kind=check_body(entry.body, place=entry.place),
            body=entry.body,
            prefix=entry.prefix,
            salt=entry.salt,
        )
        for entry in entries
    )
    return PromptSet(name=name, prompts=prompts, source=source)


def _spot(place: Place) -> str:
    return f"line {place.line}" if place.entry is None else f"prompt {place.entry} (line {place.line})"


def _free_id(body: JsonObject, *, taken: set[str]) -> str:
    """An id that nobody has; it is added to `taken`."""
    stem = candidate = f"p-{body_digest(body)}"
    number = 1
    while candidate in taken:
        number += 1
        candidate = f"{stem}.{number}"
    taken.add(candidate)
    return candidate
