"""How the engines of one run are reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from kvrelease.config import Production, api_key
from kvrelease.engines.address import parse_address
from kvrelease.engines.base import EngineKind
from kvrelease.errors import UsageError


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How engines are reached.

    Attributes:
        urls: of the replicas; with the in-process engine, a directory of persisted blocks or nothing.
        kind: of every engine; None to ask each.
        model: the served model name; None for the only one.
        timeout_s: deadline of one call.
        key_variable: environment variable that holds the API key.
        headers: sent with every request.
    """

    urls: tuple[str, ...]
    kind: EngineKind | None
    model: str | None
    timeout_s: float
    key_variable: str | None
    headers: dict[str, str]


def access_of(
    *,
    production: Production,
    urls: Sequence[str],
    kind: EngineKind | None,
    model: str | None,
    timeout_s: float,
    key_variable: str | None,
    headers: Mapping[str, str],
    warn: Callable[[str], None],
) -> Access:
    """How engines are reached, by options and configuration; checked before a release is hashed for minutes.

    Raises:
        UsageError: no replica is named, or one twice, or not by a URL; no such key variable.
    """
    is_local = kind is EngineKind.LOCAL
    chosen = tuple(urls) or ((production.url,) if production.url and not is_local else ())
    if urls and not is_local and production.url and production.url not in urls:
        warn(
            f"users reach {production.url}, which this run does not ask: that it passes salt and body on "
            "unchanged is not proved. Run verify on that URL alone as well"
        )
    if not chosen and not is_local:
        raise UsageError(
            "no engine is named", hint="add --engine-url http://HOST:PORT, or engine-url to kvrelease.yaml"
        )
    if not is_local:
        bases = [parse_address(url).url for url in chosen]
        twice = next((base for base in bases if bases.count(base) > 1), None)
        if twice:
            raise UsageError(
                f"the replica {twice} is named twice: it would be taken for two caches", hint="name each replica once"
            )
        api_key(key_variable)
    return Access(
        urls=chosen,
        kind=kind,
        model=model or production.model,
        timeout_s=timeout_s,
        key_variable=key_variable,
        headers={**production.headers, **headers},
    )
