"""What the ledger remembers, as values."""

from __future__ import annotations

import datetime
import re
from urllib.parse import urlsplit

import msgspec

from kvrelease.artifacts import Verdict

MAX_NAMESPACE_CHARS = 64  # half of vLLM's limit for a salt, the smallest we know


def namespace_text(kv_name: str, *, runtime: str, epoch: int) -> str:
    """`<kv name>-<runtime>-e<epoch>`: at most 64 of `[a-z0-9-]`, safe in every engine's salt, tag and path."""
    text = f"{kv_name}-{runtime}-e{epoch}"
    assert len(text) <= MAX_NAMESPACE_CHARS, text
    assert all(character in "abcdefghijklmnopqrstuvwxyz0123456789-" for character in text), text
    return text


_NAMESPACE = re.compile(r"kv\d+-[a-z0-9]+-[a-z0-9]+-e\d+")


def is_namespace_text(text: str) -> bool:
    """Whether a text is what `namespace_text` makes, of whatever release."""
    return len(text) <= MAX_NAMESPACE_CHARS and _NAMESPACE.fullmatch(text) is not None


class NamespaceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One namespace that was ever made.

    Attributes:
        namespace: the text that goes into cache keys.
        kv_name: of the release.
        runtime: the 8 characters of the runtime digest, or `undeclared`.
        epoch: 0 for the first; bumped when a name was poisoned.
        created: when, UTC.
        made_by: the command that first needed it.
    """

    namespace: str
    kv_name: str
    runtime: str
    epoch: int
    created: datetime.datetime
    made_by: str


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One command that touched an engine or a name.

    Attributes:
        at: when it ended, UTC.
        command: `namespace`, `prewarm`, `record` or `verify`.
        release_name: short name of the release.
        version: the operator's label, None when nobody gave one.
        kv_name: of the release; None when it was never fully digested.
        namespace: of the release, None when it has none.
        key_space: the name of the one that requests asked in, never a secret; None for unsalted.
        replica: URL of the engine, None for commands without one.
        process: the engine process (`EngineIdentity.process`), None when it could not be told.
        verdict: None for commands that judge nothing.
        reason: one sentence.
    """

    at: datetime.datetime
    command: str
    release_name: str
    version: str | None = None
    kv_name: str | None = None
    namespace: str | None = None
    key_space: str | None = None
    replica: str | None = None
    process: str | None = None
    verdict: Verdict | None = None
    reason: str = ""


class CacheOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries of one engine process are spoken of: made by what, under which keys.

    Attributes:
        replica: URL of the engine.
        process: the engine process.
        key_space: its name, with the adapter where there is one (`binding.attribution.origin_space`), never a secret;
            None for neither.
        namespace: names the weights and the runtime that made them.
    """

    replica: str
    process: str
    key_space: str | None
    namespace: str


def may_be_one_engine(url: str, other: str, *, process: str) -> bool:
    """Whether two URLs at which the same process answered may be two spellings of one engine's.

    A start that an engine tells of itself (to 10 ms or finer) is one engine's, whatever leads to it: another name, a
    forwarded port. A process of the operating system may be a forwarder, which leads to another engine at each port.

    Args:
        url: one of them.
        other: the other one.
        process: `EngineIdentity.process`, of both.
    """
    return not process.startswith(_OF_THE_SYSTEM) or urlsplit(url).port == urlsplit(other).port


_OF_THE_SYSTEM = "pid:"
