"""What a fingerprint keeps of a release's parts beside their digests, so that a diff can say what in a part changed.

None of it is in a digest of the release: it is derived from what those cover, or from files beside them.
"""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import JsonObject

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
    """

    algorithm: str
    parts: dict[str, str]
    counts: dict[str, int]
    not_read: tuple[str, ...]
    probe: Probe | None


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
        code: Python file → BLAKE3 (hex); empty where no configuration names any.
        code_of: the configurations that name code (`auto_map`).
        code_elsewhere: other repositories that they take code from, which is not part of the release, and not read.
        preprocessor: file → BLAKE3 (hex) of what turns images, video and sound into inputs.
        rope_keys: in which notation `config.json` writes its rotary parameters: the keys that it has of `ROPE_KEYS`.
        aliases: stored tensors that only repeat others, and are in no digest.
    """

    tokenizer: TokenizerParts | None
    templates: dict[str, TemplatePart]
    shadowed: dict[str, TemplatePart]
    generation: JsonObject | None
    code: dict[str, str]
    code_of: tuple[str, ...]
    code_elsewhere: tuple[str, ...]
    preprocessor: dict[str, str]
    rope_keys: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


class TextContent(msgspec.Struct, frozen=True, kw_only=True):
    """What the digests were made of, as far as it can be told in words.

    Attributes:
        raw: file name → bytes of the vocabularies that can be taken apart.
        whole: file name → BLAKE3 of each vocabulary file.
        settings: file name → canonical JSON of the small ones.
        keys: GGUF key → BLAKE3 of the stored value.
        templates: the effective ones by name.
        shadowed: those of `tokenizer_config.json` that another file overrides with another text.
        generation: the defaults in effect; None where there are none.
    """

    raw: dict[str, bytes] = {}
    whole: dict[str, bytes] = {}
    settings: dict[str, JsonObject] = {}
    keys: dict[str, bytes] = {}
    templates: dict[str, str] = {}
    shadowed: dict[str, str] = {}
    generation: JsonObject | None = None


def code_places(configuration: JsonObject) -> list[str]:
    """Other repositories whose code a configuration names: `acme/code` of `{"AutoModel": "acme/code--model.Model"}`."""
    auto_map = configuration.get("auto_map")
    values = auto_map.values() if isinstance(auto_map, dict) else []
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    return [text.partition("--")[0] for text in texts if isinstance(text, str) and "--" in text]
