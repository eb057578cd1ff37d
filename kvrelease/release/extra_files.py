"""Weight files beside a release that its model does not load: only their names and sizes are known. Pure.

No digest covers them. They change no KV of the model, but a release with other ones is another release on disk: an
engine that loads every file of a directory loads them, and a draft model or a projector may be one of them.
"""

from __future__ import annotations

from kvrelease.printable import listed
from kvrelease.release.comparison import Sameness
from kvrelease.release.file_changes import FileChange, compare_files, files_listed, weights_unread
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.release_file import FileRole

# How the place of a release ends that is one file: what lies beside it was not asked about.
_ONE_FILE = (".safetensors", ".gguf")


def changed_extra(old: Fingerprint, new: Fingerprint) -> tuple[FileChange, ...]:
    """Those that differ by name or size; none where a side is one file, or the two are of two formats."""
    if _is_one_file(old) or _is_one_file(new) or old.format is not new.format:
        return ()
    return compare_files(_extra(old), _extra(new))


def compare_extra(old: Fingerprint, new: Fingerprint) -> Sameness:
    """Whether they are the same: equal names and sizes prove nothing, since their bytes are not read."""
    if changed_extra(old, new):
        return Sameness.CHANGED
    return Sameness.UNKNOWN if _extra(old) or _extra(new) else Sameness.SAME


def extra_notes(old: Fingerprint, new: Fingerprint) -> list[str]:
    """What is said of them: that they were not compared, and which differ even so."""
    notes = [
        f"weight files beside the {name} release that are not part of it were not compared: {listed(list(extra))}; an "
        "engine that loads every file of a directory loads them"
        for name, side in (("old", old), ("new", new))
        if (extra := _extra(side))
    ]
    if changes := changed_extra(old, new):
        notes.append(f"weight files that are not part of the release differ by name or size: {files_listed(changes)}")
    return notes


def _is_one_file(side: Fingerprint) -> bool:
    return side.release.source.endswith(_ONE_FILE)


def _extra(side: Fingerprint) -> dict[str, int]:
    """Path → bytes, of one side; not those that some engine loads in place of the weights, which are not known then."""
    if _is_one_file(side):
        return {}
    told = weights_unread(side)
    extra = {file.path: file.bytes for file in side.files if file.role is FileRole.EXTRA}
    return {path: size for path, size in extra.items() if not any(text.startswith(f"{path} lies") for text in told)}
