"""Which files beside the weights differ: code that configurations bring, and the JSON that KV depends on. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.printable import listed
from kvrelease.release.auto_map import names_code, unread_code
from kvrelease.release.canonical import same_value
from kvrelease.release.comparison import Sameness, compare_parts
from kvrelease.release.content import Format
from kvrelease.release.elsewhere import weights_elsewhere
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE, ALL_RULE, with_heads
from kvrelease.release.kinds import takes_other_inputs
from kvrelease.release.side_files import PREPROCESSORS, split_entries
from kvrelease.release.text_changes import ValueChange, compare_nested, values_shown
from kvrelease.release.tokenizer_beside import compare_beside


class FileEdit(enum.StrEnum):
    """What became of a file."""

    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """One file that differs.

    Attributes:
        name: of the file.
        edit: what became of it.
        values: what inside it differs, where both are JSON objects that the fingerprints keep.
    """

    name: str
    edit: FileEdit
    values: tuple[ValueChange, ...] = ()

    @property
    def described(self) -> str:
        """In a few words."""
        inside = f" ({values_shown(self.values)})" if self.values else ""
        return f"{self.name} {'changed' if self.edit is FileEdit.CHANGED else f'was {self.edit}'}{inside}"


def compare_files(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[FileChange, ...]:
    """Which files differ, sorted by name.

    Args:
        old: file name → its JSON object, or the digest of its bytes.
        new: likewise.
    """
    changes = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if name not in old or name not in new:
            changes.append(FileChange(name=name, edit=FileEdit.REMOVED if name in old else FileEdit.ADDED))
        elif not same_value(before, after):
            values = compare_nested(before, after) if isinstance(before, dict) and isinstance(after, dict) else ()
            changes.append(FileChange(name=name, edit=FileEdit.CHANGED, values=values))
    return tuple(changes)


def split_config(side: Fingerprint) -> tuple[JsonObject, JsonObject | None]:
    """The entries of the configuration itself, and those of the files beside it.

    The latter are None in a fingerprint that was saved before such files counted: then it does not say them.
    """
    entries = side.config or {}
    if side.format is not Format.SAFETENSORS or side.config is None or side.rule.name == ADAPTER_RULE:
        return entries, {}
    own, beside = split_entries(entries)
    return own, None if side.code is None else beside


def changed_files(old: Fingerprint, new: Fingerprint) -> tuple[FileChange, ...]:
    """Files beside `config.json` that KV depends on and that differ; none where a side does not say them."""
    (_, before), (_, after) = split_config(old), split_config(new)
    return () if before is None or after is None else compare_files(before, after)


def changed_code(old: Fingerprint, new: Fingerprint) -> tuple[FileChange, ...]:
    """Files of code that configurations bring and that differ; none where a side does not say them."""
    return () if old.code is None or new.code is None else compare_files(old.code, new.code)


def preprocessors(files: Iterable[FileChange]) -> tuple[FileChange, ...]:
    """Those that turn images, video and sound into inputs."""
    return tuple(one for one in files if one.name in PREPROCESSORS)


def compare_releases(old: Fingerprint, new: Fingerprint) -> dict[str, Sameness]:
    """What is known of each digest by its name, and of `code` and `preprocessor`.

    Digests of what was not read in full are at most not known to differ.
    """
    parts = compare_parts(old, new)
    parts |= {"code": _compare_code(old, new), "preprocessor": _compare_preprocessors(old, new)}
    # Weights alone, without the file that says what they are: nobody knows what lies beside it.
    lacks_config = old.config is None or new.config is None
    unread = {
        "kv": bool(unread_reasons(old, new)) or lacks_config,
        "weights": bool(weights_unread(old) or weights_unread(new)),
        "config": lacks_config,
        "code": bool(code_unread(old) or code_unread(new)) or lacks_config,
        "preprocessor": lacks_config,
        "tokenizer": bool(tokenizer_elsewhere(old) or tokenizer_elsewhere(new) or compare_beside(old, new)),
    }
    unread["release"] = any(unread.values())
    return {
        name: Sameness.UNKNOWN if found is Sameness.SAME and unread.get(name) else found
        for name, found in parts.items()
    }


def _compare_code(old: Fingerprint, new: Fingerprint) -> Sameness:
    if old.code is not None and new.code is not None:
        return Sameness.CHANGED if changed_code(old, new) else Sameness.SAME
    # An artifact that does not keep code has a digest that covers it.
    is_same = old.digests.config == new.digests.config
    has_code = any(names_code(side.config or {}) for side in (old, new))
    return Sameness.UNKNOWN if has_code and not is_same else Sameness.SAME


def _compare_preprocessors(old: Fingerprint, new: Fingerprint) -> Sameness:
    if any(split_config(side)[1] is None for side in (old, new)):
        return Sameness.UNKNOWN
    return Sameness.CHANGED if preprocessors(changed_files(old, new)) else Sameness.SAME


def is_multimodal(side: Fingerprint) -> bool:
    """Whether a configuration says that the model takes images, video or sound."""
    return takes_other_inputs(side.config or {})


def code_reasons(code: Sequence[FileChange]) -> list[str]:
    """Why code makes old KV invalid."""
    if not code:
        return []
    return [
        f"the model's own code changed (trust_remote_code): {files_listed(code)}; it may compute anything, so every "
        "layer is invalid"
    ]


def files_listed(files: Sequence[FileChange]) -> str:
    """`'a.py' changed, 'b.py', 'c.py' added`."""
    kinds = [(edit, [one.name for one in files if one.edit is edit]) for edit in FileEdit]
    return ", ".join(f"{listed(names)} {edit}" for edit, names in kinds if names)


def preprocessor_reasons(files: Sequence[FileChange]) -> list[str]:
    """Why preprocessors of a model of images, video or sound make old KV invalid."""
    return [
        f"the preprocessor changed: {one.described}; the same image, video or sound becomes other inputs, and engines "
        "key their KV by what was sent: every layer is invalid"
        for one in files
    ]


def unread_of(side: Fingerprint) -> tuple[str, ...]:
    """What KV depends on and no digest covers, of a fingerprint of any age; a sentence each, with the next step."""
    is_unknown = side.format is Format.SAFETENSORS and side.rule.name == ALL_RULE
    elsewhere = weights_elsewhere(side.config or {}) if is_unknown else ()
    return tuple(dict.fromkeys((*side.unread, *code_unread(side), *elsewhere, *_heads_unread(side))))


def _heads_unread(side: Fingerprint) -> list[str]:
    """Of a fingerprint whose digests leave out what a stored head makes its KV of."""
    if with_heads(side.rule, side.tensor_digests, side.config or {}) == side.rule:
        return []
    return [
        "the fingerprint was saved before what reaches a draft head counted, and the release stores one; fingerprint "
        "it again"
    ]


def code_unread(side: Fingerprint) -> tuple[str, ...]:
    """Of these, what is said of code."""
    if side.format is not Format.SAFETENSORS or side.rule.name == ADAPTER_RULE:
        return ()
    return unread_code(side.config or {}, side.code)


def weights_unread(side: Fingerprint) -> tuple[str, ...]:
    """The others: weights that an engine may load, and that were not read."""
    code = code_unread(side)
    return tuple(text for text in unread_of(side) if text not in code)


def tokenizer_elsewhere(side: Fingerprint) -> tuple[str, ...]:
    """Repositories whose code decides what a text becomes, and which no digest covers."""
    return () if side.details is None else side.details.tokenizer_elsewhere


def unread_reasons(old: Fingerprint, new: Fingerprint) -> list[str]:
    """Why equal digests do not prove that old KV is valid."""
    reasons = list(dict.fromkeys((*unread_of(new), *unread_of(old))))
    unsaid = [side.release.source for side in (old, new) if split_config(side)[1] is None]
    if unsaid:
        reasons.append(
            f"the fingerprint of {unsaid[0]} was saved before the files beside config.json (a preprocessor, code's own "
            "settings) counted, and does not say what they were; fingerprint the release again"
        )
    return reasons
