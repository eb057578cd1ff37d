"""Replicas as people name them: URLs, names that stand for many addresses, and files of either."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.config import parse_yaml
from kvrelease.engines.address import Address, parse_address
from kvrelease.errors import InputError, NotFound, UsageError

# Before a URL: every address of its name is a replica.
DNS = "dns+"
# A list of 10,000 replicas with a token in the headers of each is about 2 MB.
MAX_FILE_BYTES = 8 * 1024 * 1024
_STRUCTURED = (".yaml", ".yml", ".json")
_KEYS = ("url", "rank", "headers")
_BETWEEN = re.compile(r"[,;\s]+")
# More ranks than any engine has: a larger number is a typing error.
MAX_RANK = 4095


class ListedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of what people name.

    Attributes:
        address: of the replica, or of the name.
        is_name: every address of the host is a replica.
        rank: data-parallel rank to pin requests to; None for all that the engine has.
        headers: sent to this replica besides those of the run.
    """

    address: Address
    is_name: bool = False
    rank: int | None = None
    headers: dict[str, str] = {}


def listed_replica(text: str, *, rank: int | None = None, headers: dict[str, str] | None = None) -> ListedReplica:
    """The entry in a URL, with or without `dns+` before it.

    Raises:
        UsageError: it is no URL of an engine, or several; their text is not repeated, it may hold credentials.
    """
    if _holds_several(text.strip()):
        raise UsageError(
            "several engines' URLs stand in one text, and each is named for itself",
            hint="repeat --engine-url for each (spaces between them in KVRELEASE_ENGINE_URL), or write one a line for "
            "--replicas",
        )
    is_name = text.strip().lower().startswith(DNS)
    address = parse_address(text.strip()[len(DNS) :] if is_name else text)
    return ListedReplica(address=address, is_name=is_name, rank=rank, headers=headers or {})


def _holds_several(text: str) -> bool:
    """Whether it is a list as other programs take it: `a:8000,b:8000`, `http://a, http://b`."""
    parts = [part for part in _BETWEEN.split(text) if part]
    # A comma behind the host may belong to a path.
    is_behind_host = len(parts) > 1 and "/" in parts[0].rpartition("://")[2]
    return len(parts) > 1 and (not is_behind_host or any("://" in part for part in parts[1:]))


def read_replicas(path: Path) -> tuple[ListedReplica, ...]:
    """The entries of a file: text with one URL a line and `#` comments, or a YAML or JSON list.

    An entry of a list is a URL, or an object with `url` and, if wanted, `rank` and `headers`.

    Raises:
        NotFound: no such file.
        InputError: it cannot be read, or names nothing.
        UsageError: an entry is none; its headers are not repeated.
    """
    text = _text_of(path)
    if path.suffix.lower() in _STRUCTURED:
        document = parse_yaml(text, source=str(path))
        if not isinstance(document, list):
            raise UsageError(
                f"reading {path}: a list of replicas was expected",
                hint="write one `- http://HOST:PORT` a line, or objects with url, rank and headers",
            )
        found = [_entry(item, where=f"reading {path}: entry {number}") for number, item in enumerate(document, 1)]
    else:
        lines = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
        found = [_url(line, where=f"reading {path}, line {number}") for number, line in lines if line]
    if not found:
        raise InputError(f"reading {path}: it names no replica", hint="write one http://HOST:PORT a line")
    return tuple(found)


def distinct(replicas: Iterable[ListedReplica]) -> tuple[tuple[ListedReplica, ...], tuple[str, ...]]:
    """The replicas without repetitions, in their order, and the URLs that were repeated.

    Raises:
        UsageError: one is named with different headers: which are right cannot be told.
    """
    kept: dict[tuple[str, bool, int | None], ListedReplica] = {}
    repeated: list[str] = []
    for replica in replicas:
        key = (replica.address.url, replica.is_name, replica.rank)
        first = kept.setdefault(key, replica)
        if first is replica:
            continue
        if first.headers != replica.headers:
            raise UsageError(
                f"the replica {replica.address.url} is named twice, with different headers",
                hint="name each replica once",
            )
        repeated.append(replica.address.url)
    return tuple(kept.values()), tuple(repeated)


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"reading {path}: larger than {MAX_FILE_BYTES} bytes, which no list of replicas is")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise NotFound(f"reading {path}: no such file", hint="--replicas takes a file of URLs") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"reading {path}: {error}") from error


def _url(text: str, *, where: str, rank: int | None = None, headers: dict[str, str] | None = None) -> ListedReplica:
    try:
        return listed_replica(text, rank=rank, headers=headers)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", hint=error.hint) from error


def _entry(item: object, *, where: str) -> ListedReplica:
    if isinstance(item, str):
        return _url(item, where=where)
    if not isinstance(item, dict) or not isinstance(item.get("url"), str):
        raise UsageError(f"{where} is no replica", hint="write a URL, or an object with url, rank and headers")
    unknown: Sequence[object] = [key for key in item if key not in _KEYS]
    if unknown:
        raise UsageError(f"{where} has an unknown key", hint=f"known keys: {', '.join(_KEYS)}")
    return _url(item["url"], where=where, rank=_rank(item, where=where), headers=_headers(item, where=where))


def _rank(item: JsonObject, *, where: str) -> int | None:
    rank = item.get("rank")
    if rank is None:
        return None
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank <= MAX_RANK:
        raise UsageError(f"{where}: rank is a whole number from 0 to {MAX_RANK}")
    return rank


def _headers(item: JsonObject, *, where: str) -> dict[str, str]:
    headers = item.get("headers", {})
    if not isinstance(headers, dict) or not all(
        isinstance(name, str) and isinstance(value, str) for name, value in headers.items()
    ):
        raise UsageError(f"{where}: headers are texts by name (not shown here)", hint='put values in quotes: "1"')
    return {str(name): str(value) for name, value in headers.items()}
