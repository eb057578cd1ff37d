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
from kvrelease.release.address import is_elsewhere, open_saved, open_source
from kvrelease.release.algorithm import EDITION, edition_of
from kvrelease.release.content import Content, read_content
from kvrelease.release.details import TextContent
from kvrelease.release.file_changes import split_config
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.fingerprinting import fingerprint_with_text
from kvrelease.release.impact import Rule, config_affects_kv
from kvrelease.release.known_tensors import KnownTensors, known_from_hashes, known_from_headers, known_from_saved
from kvrelease.release.loading import load_with_text
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.saved import require_files_beside
from kvrelease.release.side_files import split_entries
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
        ungiven: sides of which nobody said which adapters they are served with: a release itself does not say that.
    """

    old: Fingerprint
    new: Fingerprint
    texts: tuple[TextContent, TextContent] | None
    ungiven: tuple[str, ...] = ()


# A fingerprint, and its text side where it was read now.
_Read = tuple[Fingerprint, TextContent | None]


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
    """Both sides of a diff, as `loading.load_release` takes them.

    What lies beside a published fingerprint may have been replaced. Of the old side that is a use (what was there
    before, against what is there now), and a warning; of the new one it is what would be served, so it is refused.

    Args:
        old: the release before, or its saved fingerprint.
        new: the one after.
        memo: of earlier runs; None to hash everything, and to remember nothing.
        jobs: threads to hash with; None for as many as are worthwhile here.
        progress: called while hashing.
        wants_weights: the answer has to say whether the weights changed, even if that costs a download.

    Raises:
        InputError: as there, or weights beside the new side's published fingerprint were replaced.
        ServiceError: a store did not answer properly.
    """
    found = _load_both(old, new, memo=memo, jobs=jobs, progress=progress, wants_weights=wants_weights)
    require_files_beside(found.new, what=str(new))
    return found


def _load_both(
    old: str | Path,
    new: str | Path,
    *,
    memo: Memo | None,
    jobs: int | None,
    progress: Progress,
    wants_weights: bool,
) -> Pair:
    if not (is_elsewhere(old) or is_elsewhere(new)):
        return _pair(*(load_with_text(side, memo=memo, jobs=jobs, progress=progress) for side in (old, new)))
    before, after = _open(old), _open(new)
    mode, tensors = _known(before, after, wants_weights=wants_weights)
    return _pair(
        *(
            fingerprint_with_text(
                side.source,
                mode=mode,
                memo=memo,
                jobs=jobs,
                progress=progress,
                content=side.content,
                known=known,
            )
            if isinstance(side, _Unread)
            else side
            for side, known in zip((before, after), tensors, strict=True)
        )
    )


def _pair(old: _Read, new: _Read) -> Pair:
    texts = None if old[1] is None or new[1] is None else (old[1], new[1])
    sides = (("old", *old), ("new", *new))
    ungiven = tuple(age for age, found, text in sides if text is not None and not found.adapters)
    return Pair(old=old[0], new=new[0], texts=texts, ungiven=ungiven)


def _open(what: str | Path) -> _Read | _Unread:
    """What the headers of a release say; a saved fingerprint, and an adapter, which is small, are read whole."""
    if open_saved(what) is None:
        source = SteadySource(open_source(what))
        if not is_adapter(source):
            return _Unread(source=source, content=read_content(source))
    return load_with_text(what)


def _known(
    old: _Read | _Unread, new: _Read | _Unread, *, wants_weights: bool
) -> tuple[Mode, tuple[KnownTensors | None, KnownTensors | None]]:
    """What stands for the tensors of each side that need no reading; None where only reading tells."""
    if any(isinstance(side, _Unread) and side.source.origin.is_remote for side in (old, new)):
        stored = _stored(old)
        if stored is not None and stored == _stored(new):
            return Mode.FULL, (_same(old, new, files=stored), _same(new, old, files=stored))
        if not wants_weights and _configuration_decides(old, new):
            return Mode.FAST, (_headers(old), _headers(new))
    return Mode.FULL, (None, None)


def _headers(side: _Read | _Unread) -> KnownTensors | None:
    return known_from_headers(side.content.tensors) if isinstance(side, _Unread) else None


def _same(side: _Read | _Unread, other: _Read | _Unread, *, files: str) -> KnownTensors | None:
    """What the equal hashes of both sides prove of this one's tensors."""
    if not isinstance(side, _Unread):
        return None
    if isinstance(other, _Unread):
        return known_from_hashes(side.content.tensors, files=files)
    saved, _ = other
    if saved.mode is not Mode.FULL or edition_of(saved.digests.kv) != EDITION:
        return None
    return known_from_saved(side.content.tensors, saved.tensor_digests, fast=saved.fast, source=saved.release.source)


def _configuration_decides(old: _Read | _Unread, new: _Read | _Unread) -> bool:
    """Whether entries that KV depends on differ under one rule, so that old KV is invalid whatever the weights."""
    rule, entries, before = _rule(new), _entries(new), _entries(old)
    if entries is None or before is None or rule.reason is not None or _rule(old).family != rule.family:
        return False
    if not all(_says_files(side) for side in (old, new)):
        (before, _), (entries, _) = split_entries(before), split_entries(entries)
    return any(config_affects_kv(change.key, rule) for change in compare_values(before, entries))


def _says_files(side: _Read | _Unread) -> bool:
    """Whether the entries have the files beside the configuration: those of older fingerprints do not."""
    return isinstance(side, _Unread) or split_config(side[0])[1] is not None


def _stored(side: _Read | _Unread) -> str | None:
    return stored_digest(side.content.checkpoint.files) if isinstance(side, _Unread) else side[0].stored


def _rule(side: _Read | _Unread) -> Rule:
    return side.content.rule if isinstance(side, _Unread) else side[0].rule


def _entries(side: _Read | _Unread) -> JsonObject | None:
    if not isinstance(side, _Unread):
        return side[0].config
    return None if side.content.config is None else side.content.config.entries
