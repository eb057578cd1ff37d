"""Code that a configuration names (`auto_map`), and where it lies. Pure.

Source: transformers 5.24.0, dynamic_module_utils.py (`get_class_from_dynamic_module`): `module.Class` is a file beside
the configuration, `org/name--module.Class` one of another repository, at whatever its main branch is by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from kvrelease.artifacts import JsonObject
from kvrelease.printable import listed
from kvrelease.release.model_config import CONFIG_NAME
from kvrelease.release.side_files import split_entries

KEY = "auto_map"
_ELSEWHERE = "--"


def names_code(settings: JsonObject) -> bool:
    """Whether a configuration names code of its own, at whatever depth."""
    return any(True for _ in _maps(settings))


def code_elsewhere(settings: JsonObject) -> tuple[str, ...]:
    """The repositories, other than the release, from which a configuration takes code; sorted."""
    texts = {text for value in _maps(settings) for text in _texts(value)}
    return tuple(sorted({text.partition(_ELSEWHERE)[0] for text in texts if _ELSEWHERE in text}))


def unread_code(entries: JsonObject, code: Collection[str] | None) -> tuple[str, ...]:
    """A sentence for each file whose code lies in another repository, or is absent: what decides KV was not read.

    Args:
        entries: of a configuration, and of the files beside it by their names.
        code: names of the files of code that were read; None where that is not said.
    """
    own, beside = split_entries(entries)
    stated = ((CONFIG_NAME, own), *beside.items())
    elsewhere = tuple(
        f"{name} takes code from another repository, {listed(places)} (auto_map): what it computes decides KV, can "
        f"change at any time, and is no part of the release; copy its *.py files beside {CONFIG_NAME}, and name them "
        "in auto_map without what stands before '--'"
        for name, settings in stated
        if isinstance(settings, dict) and (places := code_elsewhere(settings))
    )
    absent = tuple(
        f"{name} names code that is not beside it, {listed(files)} (auto_map): what it computes decides KV, and nobody "
        "read it; copy it beside the configuration, or take auto_map out where nobody trusts that code"
        for name, settings in stated
        if code is not None and isinstance(settings, dict) and (files := _absent_code(settings, code))
    )
    return (*elsewhere, *absent)


def _absent_code(settings: JsonObject, code: Collection[str]) -> list[str]:
    """Files that class references mean, and that are not there; a tokenizer's do not decide KV."""
    texts = {text for value in _maps(settings) for text in _texts(_without_tokenizers(value))}
    files = {f"{text.rpartition('.')[0]}.py" for text in texts if _ELSEWHERE not in text}
    return sorted(files - set(code))


def _without_tokenizers(value: object) -> object:
    return {key: item for key, item in value.items() if key != "AutoTokenizer"} if isinstance(value, dict) else value


def unread_tokenizer(places: Sequence[str]) -> str:
    """A sentence about a tokenizer whose code lies in other repositories; KV belongs to token ids all the same."""
    return (
        f"tokenizer_config.json takes code from another repository, {listed(places)} (auto_map), which the tokenizer's "
        "digest does not cover"
    )


def _maps(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == KEY:
                yield item
            else:
                yield from _maps(item)
    elif isinstance(value, list):
        for item in value:
            yield from _maps(item)


def _texts(value: object) -> Iterator[str]:
    """Every text of an `auto_map`: class references, or lists of them (a slow and a fast tokenizer)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
