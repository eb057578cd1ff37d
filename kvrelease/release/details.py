"""What a fingerprint keeps of a release's parts beside their digests, so that a diff can say what in a part changed.

None of it is in a digest of the release: it is derived from what those cover.
"""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import JsonObject

# Parts of a tokenizer that more than one format states.
VOCABULARY, MERGES = "vocabulary", "merges"
# Of transformers up to 4, and from 5 on.
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What a fixed text becomes.

    Attributes:
        text: name of the text (`tokenizer_probe.PROBE_NAME`); two probes compare only under one name.
        ids: token ids, special tokens that the tokenizer adds included.
        library: that made them, with its version.
    """

    text: str
    ids: tuple[int, ...]
    library: str


class TokenizerParts(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer taken apart.

    Attributes:
        algorithm: how the parts were made (`tokenizer_parts.ALGORITHM`); those of two never compare.
        parts: name of a part → BLAKE3 (hex) of its canonical bytes.
        counts: items of the parts that have any: vocabulary, merges, added tokens.
        not_read: what is compared as a whole only, or not at all, and why; a sentence each.
        probe: None where it could not be run, or was not; `not_read` says why.
        damage: which file should say the parts, and is not what its name promises; None where none is.
    """

    algorithm: str
    parts: dict[str, str]
    counts: dict[str, int]
    not_read: tuple[str, ...]
    probe: Probe | None
    damage: str | None = None

    def says(self, part: str) -> bool:
        """Whether its files say that part, or that there is none of it: what is not read says neither.

        A `vocab.json` with its `merges.txt` says those two, and leaves every other step to an engine's code.
        """
        steps = {name for name in self.parts if _is_step(name)}
        is_whole = VOCABULARY in steps and bool(steps - {VOCABULARY, MERGES})
        return not _is_step(part) or part in steps or is_whole or (part == MERGES and VOCABULARY in steps)


def _is_step(part: str) -> bool:
    """Whether a part is one of `tokenizer.json`, and no file."""
    return "." not in part


class TemplatePart(msgspec.Struct, frozen=True, kw_only=True):
    """One chat template: BLAKE3 (hex) of its text, and its lines."""

    digest: str
    lines: int


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of the parts.

    Attributes:
        tokenizer: None where there is none, or where it was not taken apart (mode `fast`).
        templates: the effective chat templates by name.
        shadowed: chat templates of `tokenizer_config.json` that another file overrides with another text, by name.
        generation: the sampling defaults in effect; None where there are none.
        tokenizer_elsewhere: other repositories that the tokenizer takes code from, which no digest covers.
        tokenizer_beside: file name → BLAKE3 (hex) of those that some engine makes a tokenizer of, and that no digest of
            the text side covers; None in an artifact that was saved before they were kept.
        rope_keys: in which notation `config.json` writes its rotary parameters: the keys that it has of `ROPE_KEYS`.
        aliases: stored tensors that only repeat others, and are in no digest.
    """

    tokenizer: TokenizerParts | None
    templates: dict[str, TemplatePart]
    shadowed: dict[str, TemplatePart]
    generation: JsonObject | None
    tokenizer_elsewhere: tuple[str, ...] = ()
    tokenizer_beside: dict[str, str] | None = None
    rope_keys: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


class TextContent(msgspec.Struct, frozen=True, kw_only=True):
    """What the digests were made of, as far as it can be told in words.

    Attributes:
        raw: file name → bytes of the vocabularies that can be taken apart.
        whole: file name → BLAKE3 of each vocabulary file, and of code that the tokenizer brings.
        settings: file name → canonical JSON of the small ones.
        beside: file name → BLAKE3 of what some engine makes a tokenizer of, and no digest of the text side covers.
        keys: GGUF key → BLAKE3 of the stored value.
        templates: the effective ones by name.
        shadowed: those of `tokenizer_config.json` that another file overrides with another text.
        generation: the defaults in effect; None where there are none.
    """

    raw: dict[str, bytes] = {}
    whole: dict[str, bytes] = {}
    settings: dict[str, JsonObject] = {}
    beside: dict[str, bytes] = {}
    keys: dict[str, bytes] = {}
    templates: dict[str, str] = {}
    shadowed: dict[str, str] = {}
    generation: JsonObject | None = None
