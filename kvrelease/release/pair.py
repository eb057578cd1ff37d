"""Two releases to compare, read no further than the answer needs.

On this machine reading is cheap, and every byte is read. A release on the Hub or in an object store is a download: it
is not made where the place's own hashes prove that the weights are those of the other side, nor where the configuration
alone makes old KV invalid.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.progress import Progress, silent
from kvrelease.release.adapter import is_adapter
from kvrelease.release.address import HUB_PREFIX, open_saved, open_source
from kvrelease.release.algorithm import FAMILY, family_of
from kvrelease.release.content import Content, read_content
from kvrelease.release.details import TextContent
from kvrelease.release.fingerprint import Fingerprint, fingerprint_with_text, load_release, load_with_text
from kvrelease.release.impact import Rule, config_affects_kv
from kvrelease.release.known_tensors import KnownTensors, known_from_hashes, known_from_headers, known_from_saved
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.source import Source
from kvrelease.release.steady import SteadySource
from kvrelease.release.stored import stored_digest
from kvrelease.release.text_changes import compare_values


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides.

    Attributes:
        old: the release before.
        new: the one after.
        texts: what the text side of both consists of; None where a side was saved.
    """

    old: Fingerprint
    new: Fingerprint
    texts: tuple[TextContent, TextContent] | None


class _Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A release whose headers and small files were read, and none of its tensors."""

    source: Source
    content: Content


def load_pair(
    old: str | Path,
    new: str | Path,
    *,
    memo: Memo | None = None,
    jobs: int | None = None,
    progress: Progress = silent,
    wants_weights: bool = True,
) -> Pair:
    """Both sides of a diff, as `fingerprint.load_release` takes them.

    Args:
        old: the release before, or its saved fingerprint.
        new: the one after.
        memo: of earlier runs; None to hash everything, and to remember nothing.
        jobs: threads to hash with; None for as many as are worthwhile here.
        progress: called while hashing.
        wants_weights: the answer has to say whether the weights changed, even if that costs a download.

    Raises:
        InputError: as there.
        ServiceError: a store did not answer properly.
    """
    if _is_elsewhere(old) or _is_elsewhere(new):
        before, after = _open(old), _open(new)
        known = None if before is None or after is None else _known(before, after, wants_weights=wants_weights)
        if before is not None and after is not None and known is not None:
            mode, tensors = known
            return _pair(
                _finished(before, tensors[0], mode=mode, memo=memo), _finished(after, tensors[1], mode=mode, memo=memo)
            )
    return _pair(
        load_with_text(old, memo=memo, jobs=jobs, progress=progress),
        load_with_text(new, memo=memo, jobs=jobs, progress=progress),
    )


def _pair(old: tuple[Fingerprint, TextContent | None], new: tuple[Fingerprint, TextContent | None]) -> Pair:
    texts = None if old[1] is None or new[1] is None else (old[1], new[1])
    return Pair(old=old[0], new=new[0], texts=texts)


def _is_elsewhere(what: str | Path) -> bool:
    return str(what).startswith(HUB_PREFIX) or "://" in str(what)


def _open(what: str | Path) -> Fingerprint | _Unread | None:
    """A saved fingerprint, or what the headers of a release say; None of an adapter, which is small."""
    if open_saved(what) is not None:
        return load_release(what)
    source = SteadySource(open_source(what))
    return None if is_adapter(source) else _Unread(source=source, content=read_content(source))


def _known(
    old: Fingerprint | _Unread, new: Fingerprint | _Unread, *, wants_weights: bool
) -> tuple[Mode, tuple[KnownTensors | None, KnownTensors | None]] | None:
    """What stands for the tensors of each side, so that none has to be read; None where only reading tells."""
    if not any(isinstance(side, _Unread) and side.source.origin.is_remote for side in (old, new)):
        return None
    stored = _stored(old)
    if stored is not None and stored == _stored(new):
        pair = (_same(old, new, files=stored), _same(new, old, files=stored))
        is_told = all(
            known is not None or isinstance(side, Fingerprint) for side, known in zip((old, new), pair, strict=True)
        )
        return (Mode.FULL, pair) if is_told else None
    if wants_weights or not _configuration_decides(old, new):
        return None
    first, second = (
        known_from_headers(side.content.tensors) if isinstance(side, _Unread) else None for side in (old, new)
    )
    return Mode.FAST, (first, second)


def _same(side: Fingerprint | _Unread, other: Fingerprint | _Unread, *, files: str) -> KnownTensors | None:
    """What the equal hashes of both sides prove of this one's tensors."""
    if isinstance(side, Fingerprint):
        return None
    if isinstance(other, _Unread):
        return known_from_hashes(side.content.tensors, files=files)
    if other.mode is not Mode.FULL or family_of(other.digests.kv) != FAMILY:
        return None
    return known_from_saved(side.content.tensors, other.tensor_digests, fast=other.fast, source=other.release.source)


def _configuration_decides(old: Fingerprint | _Unread, new: Fingerprint | _Unread) -> bool:
    """Whether entries that KV depends on differ under one rule, so that old KV is invalid whatever the weights."""
    rule, entries, before = _rule(new), _entries(new), _entries(old)
    if entries is None or before is None or rule.reason is not None or _rule(old).name != rule.name:
        return False
    return any(config_affects_kv(change.key, rule) for change in compare_values(before, entries))


def _stored(side: Fingerprint | _Unread) -> str | None:
    return side.stored if isinstance(side, Fingerprint) else stored_digest(side.content.checkpoint.files)


def _rule(side: Fingerprint | _Unread) -> Rule:
    return side.rule if isinstance(side, Fingerprint) else side.content.rule


def _entries(side: Fingerprint | _Unread) -> JsonObject | None:
    if isinstance(side, Fingerprint):
        return side.config
    return None if side.content.config is None else side.content.config.entries


def _finished(
    side: Fingerprint | _Unread, known: KnownTensors | None, *, mode: Mode, memo: Memo | None
) -> tuple[Fingerprint, TextContent | None]:
    if isinstance(side, Fingerprint):
        return side, None
    return fingerprint_with_text(side.source, mode=mode, known=known, memo=memo)
