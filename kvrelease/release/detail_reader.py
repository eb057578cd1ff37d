"""What a fingerprint keeps beside its digests: the tokenizer taken apart, templates, defaults, notations."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from blake3 import blake3

from kvrelease.artifacts import JsonObject
from kvrelease.release.auto_map import code_elsewhere
from kvrelease.release.details import ROPE_KEYS, Details, TemplatePart, TokenizerParts
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.tokenizer import TOKENIZER_CONFIG_NAME, TextSide
from kvrelease.release.tokenizer_parts import ALGORITHM, FAST_TOKENIZER, anatomy_of
from kvrelease.release.tokenizer_probe import PROBE_NAME, ProbeFailed, probe_tokenizer


def read_details(text_side: TextSide, *, config: JsonObject | None, mode: Mode, memo: Memo | None) -> Details:
    """What a release's parts are made of.

    Args:
        text_side: of the release.
        config: entries of `config.json` as it states them; None where there is none.
        mode: in mode `fast` a tokenizer is not taken apart, unless that was done before.
        memo: of earlier runs; None to take every tokenizer apart.
    """
    content = text_side.content
    return Details(
        tokenizer=_tokenizer(text_side, mode=mode, memo=memo),
        templates=_templates(content.templates),
        shadowed=_templates(content.shadowed),
        generation=content.generation,
        tokenizer_elsewhere=code_elsewhere(content.settings.get(TOKENIZER_CONFIG_NAME, {})),
        tokenizer_beside={name: digest.hex() for name, digest in sorted(content.beside.items())},
        rope_keys=tuple(key for key in ROPE_KEYS if key in (config or {})),
    )


def about_tokenizer(details: Details) -> list[str]:
    """Warnings about a tokenizer that no engine can load as it is."""
    damage = None if details.tokenizer is None else details.tokenizer.damage
    if damage is None:
        return []
    return [f"{damage}: only its bytes are compared; was it written in full? Engines may refuse it, or fall back"]


def _tokenizer(text_side: TextSide, *, mode: Mode, memo: Memo | None) -> TokenizerParts | None:
    if text_side.tokenizer is None:
        return None
    key = f"{ALGORITHM} {PROBE_NAME} {text_side.tokenizer}"
    known = None if memo is None else memo.recall_derived(key)
    if known is not None:
        try:
            return msgspec.msgpack.decode(known, type=TokenizerParts)
        except msgspec.MsgspecError:
            pass  # another version wrote it: taken apart again
    if mode is Mode.FAST:
        return None
    content = text_side.content
    anatomy = anatomy_of(content, keeps_contents=False)
    not_read = list(anatomy.not_read)
    probe = None
    if FAST_TOKENIZER in content.raw:
        try:
            probe = probe_tokenizer(content.raw[FAST_TOKENIZER])
        except ProbeFailed as error:
            not_read.append(f"what a fixed text becomes was not tried: {error}")
    else:
        not_read.append(f"what a fixed text becomes was not tried: only a {FAST_TOKENIZER} can be run")
    found = TokenizerParts(
        algorithm=ALGORITHM,
        parts=anatomy.digests,
        counts=anatomy.counts,
        not_read=tuple(not_read),
        probe=probe,
        damage=anatomy.damage,
    )
    if memo is not None and (probe is not None or FAST_TOKENIZER not in content.raw):
        memo.remember_derived(key, msgspec.msgpack.encode(found))
    return found


def _templates(templates: Mapping[str, str]) -> dict[str, TemplatePart]:
    return {
        name: TemplatePart(digest=blake3(text.encode()).hexdigest(), lines=len(text.splitlines()))
        for name, text in sorted(templates.items())
    }
