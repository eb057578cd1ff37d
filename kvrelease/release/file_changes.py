"""Which files beside the weights differ: code that configurations bring, and preprocessors. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.release.checkpoint import FileRole, listed
from kvrelease.release.comparison import Sameness
from kvrelease.release.details import Details, code_places
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.model_config import CONFIG_NAME

# Keys of config.json that only models of images, video or sound have. Source: transformers 5.24.0, models/*/
# configuration_*.py; llava's first checkpoints (`mm_vision_tower`).
_MULTIMODAL_KEYS = (
    "vision_config",
    "audio_config",
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "audio_token_id",
    "audio_token_index",
    "mm_vision_tower",
    "speech_config",
)


class FileChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Names of files, sorted."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(sorted((*self.added, *self.removed, *self.changed)))


def compare_files(old: Mapping[str, str], new: Mapping[str, str]) -> FileChanges:
    """Which files differ.

    Args:
        old: file name → digest.
        new: likewise.
    """
    return FileChanges(
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(sorted(name for name in old.keys() & new.keys() if old[name] != new[name])),
    )


def changed_files(old: Fingerprint, new: Fingerprint) -> tuple[FileChanges, FileChanges]:
    """Files of code, and of preprocessors, that differ; none where a side does not say."""
    if old.details is None or new.details is None:
        return FileChanges(), FileChanges()
    return (
        compare_files(old.details.code, new.details.code),
        compare_files(old.details.preprocessor, new.details.preprocessor),
    )


def compare_beside(old: Fingerprint, new: Fingerprint) -> dict[str, Sameness]:
    """What is known of code and preprocessors, by the names under which `diff` tells them.

    An older artifact does not say them: then a part that the release may have is unknown.
    """
    if old.details is not None and new.details is not None:
        code, processor = (found.names for found in changed_files(old, new))
        elsewhere = (*old.details.code_elsewhere, *new.details.code_elsewhere)
        return {
            "code": Sameness.CHANGED if code else Sameness.UNKNOWN if elsewhere else Sameness.SAME,
            "preprocessor": Sameness.CHANGED if processor else Sameness.SAME,
        }
    sides = (old, new)
    has_code = any("auto_map" in (side.config or {}) for side in sides)
    # The config digest covers the code of config.json, of other repositories not.
    is_same_code = old.digests.config == new.digests.config and not any(code_elsewhere(side) for side in sides)
    return {
        "code": Sameness.UNKNOWN if has_code and not is_same_code else Sameness.SAME,
        "preprocessor": Sameness.UNKNOWN if any(is_multimodal(side) for side in sides) else Sameness.SAME,
    }


def code_elsewhere(side: Fingerprint) -> tuple[str, ...]:
    """Other repositories that `config.json` takes code from."""
    return tuple(sorted(set(code_places(side.config or {}))))


def is_multimodal(side: Fingerprint) -> bool:
    """Whether a configuration says that the model takes images, video or sound."""
    entries = side.config or {}
    return any(entries.get(key) is not None for key in _MULTIMODAL_KEYS)


def invalidating_files(old: Fingerprint, new: Fingerprint, code: FileChanges, preprocessor: FileChanges) -> list[str]:
    """Reasons why files beside the weights make old KV invalid."""
    reasons = []
    if code.names and any(CONFIG_NAME in _code_of(side.details) for side in (old, new)):
        reasons.append(
            f"the model's own code changed (trust_remote_code): {_described(code)}; it may compute anything, so every "
            "layer is invalid"
        )
    if preprocessor.names and any(is_multimodal(side) for side in (old, new)):
        reasons.append(
            f"the preprocessor changed: {_described(preprocessor)}; the same image, video or sound becomes other "
            "inputs, and engines key their KV by what was sent: every layer is invalid"
        )
    return reasons


def unread_files(old: Fingerprint, new: Fingerprint) -> list[str]:
    """Reasons why files that were not read keep the verdict open although everything else is the same."""
    reasons = list(dict.fromkeys((*new.unread, *old.unread)))
    unsaid = [side for side in (old, new) if side.details is None]
    if unsaid and any(is_multimodal(side) for side in (old, new)):
        reasons.append(
            "the model takes images, video or sound, and a saved fingerprint from before kvrelease kept them does not "
            f"say what its preprocessor was: fingerprint {unsaid[0].release.source} again"
        )
    return reasons


def file_notes(old: Fingerprint, new: Fingerprint, code: FileChanges) -> list[str]:
    """Changes of files that leave KV alone."""
    notes = []
    users = sorted({name for side in (old, new) for name in _code_of(side.details)} - {CONFIG_NAME})
    if code.names and not any(CONFIG_NAME in _code_of(side.details) for side in (old, new)):
        notes.append(
            f"note: code that {listed(users)} brings changed: {_described(code)}; the same text may become other ids"
        )
    places = sorted({place for side in (old, new) for place in _elsewhere(side.details)})
    own = {place for side in (old, new) for place in code_elsewhere(side)}
    if unread := [place for place in places if place not in own]:
        notes.append(f"note: code from {listed(unread)} was not read: whether it changed is not known")
    return notes


def extra_notes(old: Fingerprint, new: Fingerprint) -> list[str]:
    """Weight files beside a release that no engine is meant to load: they are in no digest, and not compared."""
    notes = []
    for name, side in (("old", old), ("new", new)):
        extra = [file.path for file in side.files if file.role is FileRole.EXTRA]
        if extra:
            notes.append(
                f"note: weight files beside the {name} release that are not part of it were not compared: "
                f"{listed(extra)}; an engine that loads every file of a directory loads them"
            )
    return notes


def _described(found: FileChanges) -> str:
    kinds: Sequence[tuple[str, tuple[str, ...]]] = (
        ("changed", found.changed),
        ("added", found.added),
        ("removed", found.removed),
    )
    return ", ".join(f"{listed(names)} {kind}" for kind, names in kinds if names)


def _elsewhere(details: Details | None) -> tuple[str, ...]:
    return () if details is None else details.code_elsewhere


def _code_of(details: Details | None) -> tuple[str, ...]:
    return () if details is None else details.code_of
