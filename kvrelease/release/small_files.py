"""Small files of a release, read whole: bounded, regular files only, JSON without duplicate keys."""

from __future__ import annotations

import json

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile
from kvrelease.release.canonical import encode_json
from kvrelease.release.source import SourceFile, read_range
from kvrelease.release.stand_in import refuse_pointer

# The largest config.json or index seen is a few MB (an index of 100,000 experts); 64 MiB is far from any real one and
# still bounds memory.
MAX_JSON_BYTES = 64 * 1024 * 1024
# Configurations nest 4 or 5 deep. Far below Python's recursion limit, so that no later walk can hit it.
MAX_JSON_DEPTH = 64

_BOM = b"\xef\xbb\xbf"


def read_bytes(file: SourceFile, *, limit_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The whole file, a UTF-8 byte order mark removed.

    Raises:
        NotFound: no such file.
        DamagedFile: larger than the limit, or a Git LFS pointer.
        InputError: it cannot be read.
        ServiceError: the store did not answer properly.
    """
    with file.open() as reader:
        size_bytes = reader.identity.size_bytes
        if size_bytes > limit_bytes:
            raise DamagedFile(
                f"reading {file.where}: {size_bytes} bytes, more than the {limit_bytes} such a file may have"
            )
        data = bytes(read_range(reader, 0, size_bytes))
    refuse_pointer(data, where=file.where)
    return data.removeprefix(_BOM)


def read_text(file: SourceFile, *, limit_bytes: int = MAX_JSON_BYTES) -> str:
    """The file as text, line ends as Python's text mode reads them.

    Raises:
        NotFound: no such file.
        DamagedFile: not UTF-8, too large, or a Git LFS pointer.
        InputError: it cannot be read.
    """
    try:
        text = read_bytes(file, limit_bytes=limit_bytes).decode()
    except UnicodeDecodeError as error:
        raise DamagedFile(f"reading {file.where}: not UTF-8 (byte {error.start})") from error
    return with_plain_line_ends(text)


def with_plain_line_ends(text: str) -> str:
    """The text with line ends as Python's text mode reads them, whoever saved the file."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json_object(file: SourceFile) -> JsonObject:
    """The JSON object in a file.

    The words for numbers that are none (`Infinity`, `NaN`) become texts, and so does a number that no double holds, in
    the file's own characters (`1e999`); integers beyond 64 bits become floats. All occur in files that engines accept,
    and none survives strict JSON.

    Raises:
        NotFound: no such file.
        DamagedFile: not a JSON object, a key twice in one object, nested deeper than `MAX_JSON_DEPTH`, too large.
        InputError: it cannot be read.
    """
    data = read_bytes(file)
    try:
        text = data.decode()
        value = json.loads(
            text,
            object_pairs_hook=_object_without_duplicates,
            parse_constant=str,
            parse_int=_parse_int,
            parse_float=_parse_float,
        )
        if not isinstance(value, dict):
            raise DamagedFile(f"reading {file.where}: expected a JSON object, found {type(value).__name__}")
        # An index of 100,000 tensors has two brackets: no deeper than they are many.
        if text.count("{") + text.count("[") > MAX_JSON_DEPTH and _depth(value) > MAX_JSON_DEPTH:
            raise DamagedFile(f"reading {file.where}: JSON nested deeper than {MAX_JSON_DEPTH} levels")
        if "\\u" in text:  # only an escape can say a lone surrogate, which no digest could
            encode_json(value)
    except RecursionError as error:
        raise DamagedFile(f"reading {file.where}: JSON nested deeper than {MAX_JSON_DEPTH} levels") from error
    except (ValueError, OverflowError) as error:  # json's and Unicode's errors are ValueErrors
        raise DamagedFile(f"reading {file.where}: not valid JSON: {error}") from error
    return value


def _object_without_duplicates(pairs: list[tuple[str, object]]) -> JsonObject:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {duplicate!r} occurs twice in one object")
    return result


def _parse_int(text: str) -> int | float:
    number = int(text)
    return number if -(2**63) <= number < 2**63 else float(number)


def _parse_float(text: str) -> float | str:
    number = float(text)
    return text if number in (float("inf"), float("-inf")) else number


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [child for item in level for child in _children(item) if isinstance(child, dict | list)]
    return depth


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
