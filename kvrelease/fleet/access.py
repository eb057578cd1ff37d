"""How the engines of one run are reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from kvrelease.config import Production, api_key
from kvrelease.engines.address import parse_address
from kvrelease.engines.base import EngineKind
from kvrelease.engines.retry import BACKOFF_S
from kvrelease.errors import UsageError
from kvrelease.fleet.listed import ListedReplica, distinct, listed_replica
from kvrelease.fleet.ranks import OFF


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How engines are reached.

    Attributes:
        replicas: as they were named, each once; empty with the in-process engine.
        stores: with the in-process engine, directories of persisted blocks.
        kind: of every engine; None to ask each.
        model: the served model name; None for the only one.
        timeout_s: deadline of one call.
        key_variable: environment variable that holds the API key.
        headers: sent with every request, by names in lower case.
        concurrency: most requests in flight on one replica; None where nobody says.
        ranks: data-parallel ranks to ask one by one: 1 for the engine as a whole, None for those that it tells apart.
        wait_s: how long replicas may take to become ready; None for those that are.
        backoff_s: first wait between two attempts of one call.
    """

    replicas: tuple[ListedReplica, ...]
    stores: tuple[str, ...] = ()
    kind: EngineKind | None
    model: str | None
    timeout_s: float
    key_variable: str | None
    headers: dict[str, str]
    concurrency: int | None = None
    ranks: int | None = OFF
    wait_s: float | None = None
    backoff_s: float = BACKOFF_S


def access_of(
    *,
    production: Production,
    urls: Sequence[str],
    listed: Sequence[ListedReplica] = (),
    kind: EngineKind | None,
    model: str | None,
    timeout_s: float,
    key_variable: str | None,
    headers: Mapping[str, str],
    concurrency: int | None = None,
    ranks: int | None = OFF,
    wait_s: float | None = None,
    warn: Callable[[str], None],
) -> Access:
    """How engines are reached, by options and configuration; checked before a release is hashed for minutes.

    Raises:
        UsageError: no replica is named, or not by a URL, or one twice with different headers; no such key variable.
    """
    is_local = kind is EngineKind.LOCAL
    named = () if is_local else (*map(listed_replica, urls), *listed)
    users = production.url
    if named and users and not _is_among(users, named):
        warn(
            f"users reach {users}, which this run does not ask: that it passes salt and body on "
            "unchanged is not proved. Run verify on that URL alone as well"
        )
    if not named and users and not is_local:
        named = (listed_replica(users),)
    if not named and not is_local:
        raise UsageError(
            "no engine is named",
            hint="add --engine-url http://HOST:PORT or --replicas FILE, or engine-url to kvrelease.yaml",
        )
    replicas, repeated = distinct(named)
    for url in repeated:
        warn(f"the replica {url} is named twice: it has one cache, and is asked once")
    if is_local and listed:
        warn("--engine local runs in this process, and asks no server: --replicas is not used")
    if not is_local:
        api_key(key_variable)
    return Access(
        replicas=replicas,
        stores=tuple(urls) if is_local else (),
        kind=kind,
        model=model or production.model,
        timeout_s=timeout_s,
        key_variable=key_variable,
        headers=one_of_each(production.headers, headers),
        concurrency=concurrency,
        ranks=ranks,
        wait_s=wait_s,
    )


def one_of_each(*headers: Mapping[str, str]) -> dict[str, str]:
    """Headers by their names in lower case; of two of one name, however it is spelt, the later one holds."""
    return {name.lower(): value for some in headers for name, value in some.items()}


def _is_among(url: str, replicas: Iterable[ListedReplica]) -> bool:
    base = parse_address(url).url
    return any(replica.address.url == base and not replica.is_name for replica in replicas)
