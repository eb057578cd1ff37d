"""What an engine may load for a release and no digest covers: weights that lie elsewhere, files that code opens. Pure.

Asked only where no architecture's rule applies: whoever loads such a model may load a tower of another repository, or a
model in a sub-folder. Sources: vllm 0.32.0, model_executor/models/ultravox.py (`text_model_id`, `audio_model_id`, at
whatever their main branches are by then), kimi_audio.py (`subfolder="whisper-large-v3"`), clef_omni.py (a weight file
that no index names); LLaVA's first checkpoints (`mm_vision_tower`); transformers 5.24.0, dynamic_module_utils.py.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence

from kvrelease.artifacts import JsonObject
from kvrelease.printable import listed
from kvrelease.release.auto_map import KEY as AUTO_MAP
from kvrelease.release.model_config import CONFIG_NAME
from kvrelease.release.read_files import may_count
from kvrelease.release.side_files import HARMLESS, is_known_file, split_entries
from kvrelease.release.source import MAX_FILES_BELOW

# Keys that name a model whatever stands under them: a repository, a path, or a short name that code knows.
_MODEL_KEYS = re.compile(
    r"(?:.*_)?(?:(?:model|backbone|encoder|decoder|tower|llm|vit|projector|adapter|checkpoint|ckpt|weights?)_"
    r"(?:id|name|path|name_or_path|repo|repo_id|file|url|checkpoint|ckpt)|vision_tower|audio_tower|speech_tower)\Z"
)
# Under other keys, what looks like `org/name`, an address or a path.
_PLACE = re.compile(r"(?:[A-Za-z0-9][\w.-]*/[\w.-]+|[a-z][a-z0-9+]*://.+|(?:/|\./|\.\./|~/).+)\Z", re.DOTALL)
_NO_PLACE = re.compile(r"(?:n/a|(?:application|audio|image|text|video)/[\w.+-]+)\Z", re.IGNORECASE)
# What else says of where something came from; nobody loads weights from there.
_NO_MODEL_KEYS = ("tokenizer", "processor", "license", "dataset")
# The first says where a config.json came from, the second a GGUF file's title (transformers, integrations/ggml.py).
_NO_MODEL = frozenset({"_name_or_path", "_model_name_or_path", AUTO_MAP, "compression_config", "quantization_config"})

_WEIGHTS = (
    "*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.npz", "*.npy", "*.h5", "*.msgpack", "*.onnx", "*.gguf",
    "*.pkl", "*.pickle", "*.nemo", "*.ot", "*.tflite", "*.pdparams", "*.mar", "*.zip", "*.tar", "*.tar.*",
)  # fmt: skip
# At the top: the same weights in a form that nobody loads beside safetensors, and the state of a training.
_SAME_WEIGHTS = (
    "pytorch_model*.bin", "model*.bin", "consolidated*.pth", "*.gguf", "*.h5", "*.msgpack", "*.ot", "adapter_model*",
    "model*.onnx", "tokenizer*", "training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*",
)  # fmt: skip
# Sub-folders that hold the same weights in another form, states of a training, or what people read.
_HARMLESS_FOLDERS = (
    ".*", "original", "onnx", "openvino", "coreml", "metal", "gguf", "checkpoint-*", "runs", "logs", "docs", "figures",
    "images", "examples", "inference", "additional_chat_templates",
)  # fmt: skip
# What code of a model has no use for.
_READING_MATTER = (
    ".*", "*.md", "*.rst", "*.pdf", "*.html", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp", "*.ipynb",
    "*.lock", "*.toml", "*license*", "*notice*", "*readme*", "*use_policy*", "requirements*.txt", "citation*",
)  # fmt: skip


def weights_elsewhere(entries: JsonObject) -> tuple[str, ...]:
    """A sentence for each file whose entries name weights that lie elsewhere.

    Args:
        entries: of a configuration, and of the files beside it by their names, as they are stated.
    """
    own, beside = split_entries(entries)
    stated = [(CONFIG_NAME, own), *((name, value) for name, value in beside.items() if is_known_file(name))]
    return tuple(
        f"{name} names weights that lie elsewhere, {', '.join(f'{key} {text!r}' for key, text in sorted(found)[:3])}"
        f"{f' and {len(found) - 3} more' if len(found) > 3 else ''}: what an engine loads from there decides KV, can "
        "change at any time, and is no part of the release; save the model with all of its weights, and set the keys "
        "to null"
        for name, settings in stated
        if isinstance(settings, dict) and (found := list(_places(settings)))
    )


def files_unread(names: Sequence[str], below: Sequence[str], *, chosen: Sequence[str], has_code: bool) -> list[str]:
    """A sentence about files of a release that were not read, and that an engine or the release's code may load.

    Args:
        names: of the files at the top.
        below: of those in sub-folders.
        chosen: of the weights that were read.
        has_code: the configuration brings code, which may open anything.
    """
    if len(below) > MAX_FILES_BELOW:
        return [
            f"there are more than {MAX_FILES_BELOW} files in sub-folders, and which of them an engine loads is not "
            "known; move what belongs to no release elsewhere"
        ]
    found = [name for name in below if not _fits(name.partition("/")[0], _HARMLESS_FOLDERS)]
    found = [name for name in (*_loose_weights(names), *found) if name not in chosen]
    weights = [name for name in found if _fits(name, _WEIGHTS)]
    others = [name for name in (*names, *found) if _may_be_opened(name)] if has_code else []
    unread = sorted({*weights, *others})
    if not unread:
        return []
    who = "the code that the release brings" if has_code else "an engine"
    return [
        f"files of the release that {who} may load were not read: {listed(unread)}; move those that nobody loads "
        "elsewhere, and what is needed into the weights"
    ]


def _loose_weights(names: Sequence[str]) -> list[str]:
    return [name for name in names if _fits(name, _WEIGHTS) and not _fits(name, _SAME_WEIGHTS)]


def _may_be_opened(name: str) -> bool:
    base = name.rpartition("/")[2]
    if _fits(base.lower(), _READING_MATTER) or _fits(base, _SAME_WEIGHTS):
        return False
    is_top = base == name
    is_known = may_count(name) or _fits(name, HARMLESS)
    return not (is_top and is_known)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _places(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if key in _NO_MODEL:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield from _places(item)
            elif isinstance(item, str) and _is_place(key, item):
                yield key, item


def _is_place(key: str, text: str) -> bool:
    if any(word in key for word in _NO_MODEL_KEYS) and "audio" not in key:
        return False
    if _PLACE.match(text) and not _NO_PLACE.match(text):
        return True
    # A short name that code knows has no blanks; a title has.
    return bool(text) and _MODEL_KEYS.match(key) is not None and not re.search(r"\s", text)
