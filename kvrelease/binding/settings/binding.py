"""What a namespace becomes on one engine: the values that go in, and the settings that come out."""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.binding.target import DEFAULT_STORE_ROOT
from kvrelease.binding.tenant_salt import bound_salt
from kvrelease.release.canonical import digest_of

SEED = "kvseed1"
"""Names how `hash_seed` is made."""


def hash_seed(namespace: str) -> int:
    """The root of block hashes that a namespace stands for: what `PYTHONHASHSEED` is set to, 0 to 2^32 - 1.

    All processes of a release have the same one, and so has an indexer that follows their events. It is the first
    32 bits, big endian, of the `kvseed1` digest of the namespace (`release.canonical.digest_of`): Python takes no more,
    and refuses to start with less than a number. Two namespaces share a seed by a chance of 2^-32; no promise rests on
    it alone.

    Source: CPython 3.11, Python/preconfig.c (an integer in [0; 4294967295]).
    """
    return int(digest_of(SEED, (namespace.encode(),))[:8], 16)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be bound.

    Attributes:
        namespace: of the release.
        tenant_salt: a tenant's own salt, which is combined with the namespace; None without one.
        model: the name that users ask for; None where nobody says.
        store_root: directory below which each namespace has one of its own, for each kind of engine.
    """

    namespace: str
    tenant_salt: str | None = None
    model: str | None = None
    store_root: str = DEFAULT_STORE_ROOT

    @property
    def salt(self) -> str:
        """The namespace, with the tenant's own salt where there is one: at most 128 of letters, digits, `-` and `.`."""
        return bound_salt(self.namespace, self.tenant_salt)

    def directory(self, engine: str) -> str:
        """The namespace's own directory for one kind of engine."""
        return f"{self.store_root.rstrip('/')}/{engine}/{self.namespace}"


class BindingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to set so that every cache key an engine lets us reach carries the namespace.

    Attributes:
        env: environment variables of the engine process.
        flags: arguments of the engine's command line.
        body: fields of every request's body.
        directories: persistent stores: setting → a directory of the namespace's own; only for stores that are in use.
        prefixes: stores that name entries by text: setting → what sets the namespace's entries apart; likewise.
        beside: settings of what stands beside the engine and follows its keys, such as a router's index.
        limits: what these settings cannot reach, one sentence each.
    """

    env: dict[str, str] = {}
    flags: tuple[str, ...] = ()
    body: JsonObject = {}
    directories: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    beside: dict[str, str] = {}
    limits: tuple[str, ...] = ()
