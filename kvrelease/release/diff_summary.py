"""The first line of a diff: a sentence for whoever decides about the upgrade. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelease.printable import listed
from kvrelease.release.diff_record import Diff, KvStatus
from kvrelease.release.file_changes import FileEdit
from kvrelease.release.kv_reasons import all_names, count_of
from kvrelease.release.relayout import relaid_phrase
from kvrelease.release.runtime_change import RuntimeStatus
from kvrelease.release.text_changes import ValueChange, values_shown

_TEXT_PARTS = ("tokenizer", "template", "generation")
# More settings than these do not fit a sentence.
_SETTINGS_SHOWN = 2
_FILES_SHOWN = 2
_EXTRA = "weight files that the model does not load"

_UNSAID = {
    "config": "the configuration",
    "template": "the chat template",
    "generation": "the generation defaults",
    "code": "code of its own",
    "extra": _EXTRA,
}


def summarise(found: Diff) -> str:
    """One sentence that says what happens to old KV, and what changed."""
    kv, changes = found.kv, _changes(found)
    match kv.status:
        case KvStatus.VALID if any(part in found.changed for part in _TEXT_PARTS):
            return (
                f"Old KV stays valid in every layer{_condition(found)}, but prompts or answers may differ: {changes}."
            )
        case KvStatus.VALID:
            return f"Old KV stays valid in every layer{_condition(found)}: {changes}."
        case KvStatus.INVALID if found.runtime.status is RuntimeStatus.DIFFERENT:
            return f"Old KV is invalid in every layer, because {found.runtime.sentence}; of the release, {changes}."
        case KvStatus.INVALID if kv.adapters:
            rest = "valid without them" if kv.base is KvStatus.VALID else "whether it is valid without them is unknown"
            return f"Old KV is invalid for the adapters {listed(kv.adapters)}, and {rest}: {changes}."
        case KvStatus.INVALID:
            kept = f" (the first {count_of(kv.valid_layers, 'layer')} would still agree)" if kv.valid_layers else ""
            where = f" from layer {kv.first_invalid_layer} on{kept}"
            if kv.first_invalid_layer is None:
                where = ", from which layer on is not known"
            return f"Old KV is invalid{where}: {changes}."
        case KvStatus.UNKNOWN:
            return f"Whether old KV is valid is unknown, so treat it as invalid: {kv.reasons[0]}; {changes}."


def _condition(found: Diff) -> str:
    """What has to stay too, where nobody compared it: most upgrades of a model come with one of the engine."""
    is_compared = found.runtime.status is not RuntimeStatus.NOT_COMPARED
    return "" if is_compared else ", if engine, version and settings stay (not compared)"


def _changes(found: Diff) -> str:
    """What changed, in a few words, and what was not compared."""
    what: list[str] = []
    came: list[str] = []  # or went: that is no change of what stayed
    phrase = relaid_phrase(found.tensors.relaid, renamed=len(found.tensors.renamed))
    if names := all_names(found.tensors):
        what.append(count_of(len(names), "tensor"))
    elif "weights" in found.changed and not phrase:
        what.append("the weights")
    if found.config:
        what.append(count_of(len(found.config), "configuration key"))
    if len(found.files) > _FILES_SHOWN:
        what.append(f"{len(found.files)} files beside config.json")
    else:
        what += [f"{one.name}{_few(one.values)}" for one in found.files if one.edit is FileEdit.CHANGED]
        came += [one.described for one in found.files if one.edit is not FileEdit.CHANGED]
    if found.code:
        what.append("code that the release brings")
    if "extra" in found.changed:
        what.append(_EXTRA)
    what += _text_side(found)
    if found.adapters.changed:
        what.append(count_of(len(found.adapters.changed), "adapter"))
    for adapters, edit in ((found.adapters.added, FileEdit.ADDED), (found.adapters.removed, FileEdit.REMOVED)):
        if adapters:
            came.append(f"{count_of(len(adapters), 'adapter')} {'was' if len(adapters) == 1 else 'were'} {edit}")
    if not what and not came and phrase:
        return phrase
    unsaid = [_UNSAID.get(part, f"the {part}") for part in found.unknown if part not in ("release", "kv")]
    rest = f"; not known: {_and(unsaid)}" if unsaid else ""
    if not what and not came:
        return f"no change was seen{rest}" if found.unknown else "nothing that counts changed"
    told = "; ".join((*([f"{_and(what)} changed"] if what else []), *came, *([phrase] if phrase else [])))
    return f"{told}{rest}"


def _text_side(found: Diff) -> list[str]:
    """What changed of what makes prompts and answers."""
    what = []
    if "tokenizer" in found.changed:
        lacks = None if found.tokenizer is None else found.tokenizer.lacks
        what.append(f"the tokenizer ({lacks})" if lacks else "the tokenizer")
    if "template" in found.changed:
        what.append("the chat template")
    if "generation" in found.changed:
        what.append(f"the generation defaults{_few(found.generation)}")
    return what


def _few(changes: Sequence[ValueChange]) -> str:
    return f" ({values_shown(changes)})" if 0 < len(changes) <= _SETTINGS_SHOWN else ""


def _and(items: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
