"""The text side of a diff: what changed in it, and what that means although KV stays what it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvrelease.release.auto_map import unread_tokenizer
from kvrelease.release.details import TextContent
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.text_changes import (
    TemplateChange,
    ValueChange,
    compare_templates,
    compare_values,
    shadowed_notes,
    values_shown,
)
from kvrelease.release.tokenizer_beside import compare_beside
from kvrelease.release.tokenizer_change import TokenizerChange, compare_tokenizers, tokenizer_on_one_side
from kvrelease.release.tokenizer_parts import anatomy_of

# What both sides were made of; only of releases that were read now, never of saved ones.
Texts = tuple[TextContent, TextContent]


class TextChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What differs in the text side, and a sentence for each part that does."""

    tokenizer: TokenizerChange | None
    templates: tuple[TemplateChange, ...]
    generation: tuple[ValueChange, ...]
    notes: tuple[str, ...]


def compare_text(old: Fingerprint, new: Fingerprint, changed: Sequence[str], texts: Texts | None) -> TextChanges:
    """What changed in tokenizer, templates and generation defaults.

    Args:
        old: the release before.
        new: the one after.
        changed: names of the digests that are known to differ.
        texts: of both; None where a side was saved.
    """
    tokenizer = _tokenizer(old, new, texts) if "tokenizer" in changed else None
    templates: tuple[TemplateChange, ...] = ()
    generation: tuple[ValueChange, ...] = ()
    notes = []
    if tokenizer is not None:
        notes.append(
            f"{tokenizer.sentence}; KV belongs to token ids and stays what it is, but the same text may now be "
            "other ids and miss old entries"
        )
    before, after = old.details, new.details
    if "template" in changed:
        if before is not None and after is not None:
            pair = None if texts is None else (texts[0].templates, texts[1].templates)
            templates = compare_templates(before.templates, after.templates, pair)
        which = ", ".join(change.described for change in templates) or "a saved fingerprint does not say which"
        notes.append(
            f"the chat template changed: {which}; the same messages become another prompt, so they may miss old entries"
        )
    if "generation" in changed:
        if before is not None and after is not None:
            generation = compare_values(before.generation, after.generation)
        which = values_shown(generation) or "a saved fingerprint does not say which"
        notes.append(f"the generation defaults changed: {which}; answers may differ although KV does not")
    if before is not None and after is not None:
        notes += shadowed_notes(before, after)
        if places := sorted({*before.tokenizer_elsewhere, *after.tokenizer_elsewhere}):
            notes.append(f"{unread_tokenizer(places)}: whether the same text becomes the same ids is not known")
    if beside := compare_beside(old, new):
        notes.append(f"{beside}: whether the same text becomes the same ids is not known")
    return TextChanges(tokenizer=tokenizer, templates=templates, generation=generation, notes=tuple(notes))


def _tokenizer(old: Fingerprint, new: Fingerprint, texts: Texts | None) -> TokenizerChange:
    if old.digests.tokenizer is None or new.digests.tokenizer is None:
        return tokenizer_on_one_side(is_new=old.digests.tokenizer is None)
    sides = (old.details, new.details)
    before, after = (None if side is None else side.tokenizer for side in sides)
    anatomies = None if texts is None else (anatomy_of(texts[0]), anatomy_of(texts[1]))
    return compare_tokenizers(before, after, anatomies)
