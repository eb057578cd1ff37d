"""What turns text into token ids, and messages into text: tokenizer, chat template, generation defaults.

KV belongs to token ids, so none of these makes old KV wrong; they decide which ids are asked for. Sources: transformers
5.24.0, tokenization_utils_base.py (`_from_pretrained`: a `chat_template.jinja` wins over `tokenizer_config.json`);
docs/fingerprint.md for the digests.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

import msgspec
from blake3 import blake3

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile
from kvrelease.release.algorithm import GENERATION_ALGORITHM, TEMPLATE_ALGORITHM, TOKENIZER_ALGORITHM
from kvrelease.release.auto_map import code_elsewhere, names_code, unread_tokenizer
from kvrelease.release.canonical import digest_of, encode_json
from kvrelease.release.details import TextContent
from kvrelease.release.release_file import FileRole, ReleaseFile, release_file
from kvrelease.release.small_files import MAX_JSON_BYTES, read_json_object, read_text, with_plain_line_ends
from kvrelease.release.source import TEMPLATE_FOLDER, Source, SourceFile, read_chunks

TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
TEMPLATE_NAME = "chat_template.jinja"
GENERATION_CONFIG_NAME = "generation_config.json"
# Where a processor keeps its template, which vLLM asks before the tokenizer's. Source: transformers 5.24.0,
# processing_utils.py (`LEGACY_PROCESSOR_CHAT_TEMPLATE_FILE`); vllm 0.32.0, renderers/hf.py (`resolve_chat_template`).
PROCESSOR_TEMPLATE_NAME = "chat_template.json"

# Compared as JSON, without formatting.
_JSON_FILES = ("special_tokens_map.json", "added_tokens.json")
_NAMES = frozenset(
    {TOKENIZER_CONFIG_NAME, TEMPLATE_NAME, PROCESSOR_TEMPLATE_NAME, GENERATION_CONFIG_NAME, *_JSON_FILES}
)
# Compared byte for byte: vocabularies are large, and one tool writes each of them.
_RAW_FILES = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model*",
    "*.model",  # tokenizer, spiece, sentencepiece, tiktoken: transformers takes any
    "tekken.json",
    "*.tiktoken",
)
# Those that no digest covers (tokenizer_beside.py), in whatever case of letters.
_BESIDE = (
    "tokenizer*", "*.tokenizer", "*vocab*", "*.spm", "spiece*", "sentencepiece*", "*.bpe", "*.codes", "merges*",
    "encoder.json", "dict.txt", "emoji.json", "normalizer.json", "byte_maps.json", "word_shape.json",
    "word_pronunciation.json",
)  # fmt: skip
_NO_VOCABULARY = (".*", "*.md", "*.py", "*.lock", "*.gguf", "*.safetensors", "*.safetensors.index.json")
# Their tokens are bytes or code points. Source: transformers 5.24.0, models/{byt5,canine,perceiver}/tokenization_*.py.
_NEEDS_NO_VOCABULARY = frozenset({"ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer"})
# Of these the parts are told too (tokenizer_parts.py).
_TAKEN_APART = frozenset({"tokenizer.json", "vocab.json", "merges.txt"})
# Say who wrote the file, or where it lay.
_TOKENIZER_DROPPED = frozenset(
    {
        "chat_template",  # has a digest of its own
        "name_or_path",
        "_name_or_path",
        "_commit_hash",
        "transformers_version",
        # How the writer had found it (transformers 5.24 saves its own loading options).
        "is_local",
        "local_files_only",
        "special_tokens_map_file",
        "tokenizer_file",
    }
)
_GENERATION_DROPPED = frozenset({"_from_model_config", "transformers_version"})
# What transformers copies from config.json where there is no generation_config.json.
_INHERITED = ("bos_token_id", "eos_token_id", "pad_token_id")


class TextSide(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of what surrounds the weights; `algorithm:hex`, None where the release has no such part.

    Attributes:
        tokenizer: vocabulary, merges, special and added tokens, settings; not the chat template.
        template: the effective chat templates by name.
        generation: effective sampling defaults.
        files: that were read.
        warnings: contradictions between files.
        content: what they were made of.
    """

    tokenizer: str | None
    template: str | None
    generation: str | None
    files: tuple[ReleaseFile, ...]
    warnings: tuple[str, ...]
    content: TextContent = TextContent()


def read_text_side(source: Source, *, model_config: JsonObject | None) -> TextSide:
    """Tokenizer, chat template and generation defaults of a release.

    Args:
        source: of the release.
        model_config: canonical entries of `config.json`, None when there is none.

    Raises:
        DamagedFile: one of the files is not what its name promises.
        InputError: one of them cannot be read.
        ServiceError: the store did not answer properly.
    """
    tokenizer_config = _optional_json(source, TOKENIZER_CONFIG_NAME)
    generation_config = _optional_json(source, GENERATION_CONFIG_NAME)
    settings = _settings(source, tokenizer_config)
    whole, raw = _vocabularies(source)
    parts = {**{name: encode_json(value) for name, value in settings.items()}, **whole}
    templates, shadowed, template_files, warnings = _templates(source, tokenizer_config)
    if (processors := _processor_template(source)) is not None and processors != templates.get("default"):
        templates[PROCESSOR_TEMPLATE_NAME] = processors
    if processors is not None:
        template_files.append(PROCESSOR_TEMPLATE_NAME)
    code, code_warnings = _code(source, tokenizer_config)
    beside = {
        name: _hash_file(source.file(name), keeps=False)[0] for name in source.names() if is_beside_tokenizer(name)
    }
    warnings += code_warnings
    if not (whole or code or beside):
        warnings += _about_no_vocabulary(tokenizer_config)
    effective = _effective_generation(generation_config, model_config)
    files = [release_file(source.file(name), FileRole.TOKENIZER) for name in sorted(parts)]
    files += [release_file(source.file(name), FileRole.CODE) for name in sorted(code)]
    files += [release_file(source.file(name), FileRole.TEMPLATE) for name in template_files]
    if generation_config is not None:
        files.append(release_file(source.file(GENERATION_CONFIG_NAME), FileRole.GENERATION))
    return TextSide(
        tokenizer=_named_digest(TOKENIZER_ALGORITHM, parts | code),
        template=_named_digest(TEMPLATE_ALGORITHM, {name: text.encode() for name, text in templates.items()}),
        generation=generation_digest(generation_config, model_config),
        files=tuple(files),
        warnings=tuple(warnings),
        content=TextContent(
            raw=raw,
            whole=whole | code,
            settings=settings,
            beside=beside,
            templates=templates,
            shadowed=shadowed,
            generation=effective,
        ),
    )


def embedded_text_side(
    *, tokenizer: Mapping[str, bytes], templates: Mapping[str, str], generation: JsonObject
) -> TextSide:
    """The same of a release whose weight file says it all.

    Args:
        tokenizer: key → BLAKE3 of the stored value.
        templates: chat template by name.
        generation: sampling defaults by key.
    """
    sampling = f"{GENERATION_ALGORITHM}:{digest_of(GENERATION_ALGORITHM, [encode_json(generation)])}"
    return TextSide(
        tokenizer=_named_digest(TOKENIZER_ALGORITHM, tokenizer),
        template=_named_digest(TEMPLATE_ALGORITHM, {name: text.encode() for name, text in templates.items()}),
        generation=sampling if generation else None,
        files=(),
        warnings=(),
        content=TextContent(
            keys=dict(tokenizer), templates=dict(templates), generation=generation if generation else None
        ),
    )


def generation_digest(generation_config: JsonObject | None, model_config: JsonObject | None) -> str | None:
    """Digest of the sampling defaults in effect: the file's, over the token ids that `config.json` names."""
    effective = _effective_generation(generation_config, model_config)
    if effective is None:
        return None
    return f"{GENERATION_ALGORITHM}:{digest_of(GENERATION_ALGORITHM, [encode_json(effective)])}"


def _effective_generation(generation_config: JsonObject | None, model_config: JsonObject | None) -> JsonObject | None:
    if generation_config is None and model_config is None:
        return None
    inherited = {key: (model_config or {}).get(key) for key in _INHERITED}
    effective = {**inherited, **(generation_config or {})}
    return {key: value for key, value in effective.items() if key not in _GENERATION_DROPPED and value is not None}


def _named_digest(algorithm: str, parts: Mapping[str, bytes]) -> str | None:
    if not parts:
        return None
    fields = [field for name, part in sorted(parts.items()) for field in (name.encode(), part)]
    return f"{algorithm}:{digest_of(algorithm, fields)}"


def _settings(source: Source, tokenizer_config: JsonObject | None) -> dict[str, JsonObject]:
    """File name → what counts of a small file."""
    settings: dict[str, JsonObject] = {}
    if tokenizer_config is not None:
        kept = {key: value for key, value in tokenizer_config.items() if key not in _TOKENIZER_DROPPED}
        settings[TOKENIZER_CONFIG_NAME] = kept
    return settings | {name: read_json_object(source.file(name)) for name in source.names() if name in _JSON_FILES}


def _vocabularies(source: Source) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """File name → hash of each vocabulary, and the bytes of those that can be taken apart."""
    whole: dict[str, bytes] = {}
    raw: dict[str, bytes] = {}
    for name in source.names():
        if name not in _JSON_FILES and _is_raw(name):
            whole[name], kept = _hash_file(source.file(name), keeps=name in _TAKEN_APART)
            if kept is not None:
                raw[name] = kept
    return whole, raw


def is_text_file(name: str) -> bool:
    """Whether a file of this name (relative to the release) belongs to the text side."""
    return name in _NAMES or _is_raw(name) or _is_named_template(name)


def is_beside_tokenizer(name: str) -> bool:
    """Whether some engine makes a tokenizer of a file of this name, and no digest of the text side covers it."""
    if "/" in name or is_text_file(name):
        return False
    lower = name.lower()
    is_other = any(fnmatch.fnmatchcase(lower, pattern) for pattern in _NO_VOCABULARY)
    return not is_other and any(fnmatch.fnmatchcase(lower, pattern) for pattern in _BESIDE)


def _about_no_vocabulary(tokenizer_config: JsonObject | None) -> list[str]:
    kind = (tokenizer_config or {}).get("tokenizer_class")
    if not isinstance(kind, str) or kind.removesuffix("Fast") in _NEEDS_NO_VOCABULARY:
        return []
    return [
        f"{TOKENIZER_CONFIG_NAME} names {kind}, and there is no vocabulary beside it (tokenizer.json, or the like): "
        "engines cannot make that tokenizer"
    ]


def _is_raw(name: str) -> bool:
    return "/" not in name and any(fnmatch.fnmatchcase(name, pattern) for pattern in _RAW_FILES)


def _is_named_template(name: str) -> bool:
    folder, _, base = name.rpartition("/")
    return folder == TEMPLATE_FOLDER and base.endswith(".jinja")


def _hash_file(file: SourceFile, *, keeps: bool) -> tuple[bytes, bytes | None]:
    """The hash of a file, and its bytes where they are wanted, and not too many."""
    hasher, kept = blake3(), bytearray()
    with file.open() as reader:
        keeps = keeps and reader.identity.size_bytes <= MAX_JSON_BYTES
        for chunk in read_chunks(reader):
            hasher.update(chunk)
            if keeps:
                kept += chunk
    return hasher.digest(), bytes(kept) if keeps else None


def _templates(
    source: Source, tokenizer_config: JsonObject | None
) -> tuple[dict[str, str], dict[str, str], list[str], list[str]]:
    """Effective chat templates by name, those that they override with another text, their files, and warnings."""
    stated = _configured_templates(source, (tokenizer_config or {}).get("chat_template"))
    # As those of a .jinja file, so that one template has one digest wherever it lies.
    configured = {name: with_plain_line_ends(text) for name, text in stated.items()}
    separate: dict[str, str] = {}
    files: list[str] = []
    if TEMPLATE_NAME in source.names():
        separate["default"] = read_text(source.file(TEMPLATE_NAME))
        files.append(TEMPLATE_NAME)
    for name in source.names():
        if _is_named_template(name):
            separate[name.rpartition("/")[2].removesuffix(".jinja")] = read_text(source.file(name))
            files.append(name)
    if not separate:
        return configured, {}, files, []
    warnings = []
    if configured and configured != separate:
        warnings.append(
            f"{files[0]} and chat_template in {TOKENIZER_CONFIG_NAME} differ: transformers and vLLM use the former, "
            "engines that read only the latter render other prompts"
        )
    shadowed = {name: text for name, text in configured.items() if separate.get(name) != text}
    return separate, shadowed, files, warnings


def _configured_templates(source: Source, value: object) -> dict[str, str]:
    """`chat_template` of tokenizer_config.json: one text, or several with names."""
    match value:
        case None:
            return {}
        case str():
            return {"default": value}
        case dict() if all(isinstance(text, str) for text in value.values()):
            return {str(name): str(text) for name, text in value.items()}
        case list():
            templates: dict[str, str] = {}
            for item in value:
                match item:
                    case {"name": str(name), "template": str(template)}:
                        templates[name] = template
                    case _:
                        break
            else:
                return templates
        case _:
            pass
    where = source.file(TOKENIZER_CONFIG_NAME).where
    raise DamagedFile(f"reading {where}: chat_template is neither a text nor named texts")


def _processor_template(source: Source) -> str | None:
    """The template in a processor's own file; None where there is no such file."""
    content = _optional_json(source, PROCESSOR_TEMPLATE_NAME)
    if content is None:
        return None
    template = content.get("chat_template")
    if not isinstance(template, str):
        raise DamagedFile(f"reading {source.file(PROCESSOR_TEMPLATE_NAME).where}: chat_template is no text")
    return with_plain_line_ends(template)


def _code(source: Source, tokenizer_config: JsonObject | None) -> tuple[dict[str, bytes], list[str]]:
    """File name → hash of the Python files beside a tokenizer that names code of its own, and warnings."""
    settings = tokenizer_config or {}
    if not names_code(settings):
        return {}, []
    names = [name for name in source.names() if "/" not in name and name.endswith(".py")]
    elsewhere = code_elsewhere(settings)
    warnings = []
    if elsewhere:
        warnings.append(unread_tokenizer(elsewhere))
    return {name: _hash_file(source.file(name), keeps=False)[0] for name in names}, warnings


def _optional_json(source: Source, name: str) -> JsonObject | None:
    return read_json_object(source.file(name)) if name in source.names() else None
