"""A second implementation of the canonical configurations of docs/fingerprint.md, sharing no code with the first."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import blake3

from tests.release.naive import DOCS, NAMES, metadata, rule_table, value

Json = dict[str, Any]
TABLE = rule_table("llama.1")  # the one whose steps are implemented here
TOP = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")


class Configuration(NamedTuple):
    """`entries` in the form of the rule; `stated` as `all.1` has them; no layers under `all.1`."""

    entries: Json
    stated: Json
    rule: str
    layers: int | None
    is_quantized: bool
    is_tied: bool


def read_json(path: Path) -> Json:
    def once(found: list[tuple[str, object]]) -> Json:
        assert len(dict(found)) == len(found), "a key twice"
        return dict(found)

    def number(text: str) -> object:
        return text if abs(float(text)) == float("inf") else float(text)

    def integer(text: str) -> object:
        return int(text) if -(2**63) <= int(text) < 2**63 else float(text)

    text = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode()
    found = json.loads(text, object_pairs_hook=once, parse_constant=str, parse_float=number, parse_int=integer)
    assert isinstance(found, dict), path
    value(found)  # half of a surrogate pair has no bytes
    return found


def configuration(directory: Path) -> Configuration:
    return canonical(read_json(directory / "config.json"), beside=files_beside(directory), headers=metadata(directory))


def canonical(
    raw: Json, *, beside: Json | None = None, headers: list[dict[str, object]] | None = None
) -> Configuration:
    stated = plain(raw)
    if stated.get("quantization_config") is None and isinstance(stated.get("compression_config"), dict):
        stated["quantization_config"] = stated.pop("compression_config")
    if isinstance(stated.get("quantization_config"), dict):
        stated["quantization_config"] = quantization(stated["quantization_config"])
    stated |= beside or {}
    if is_torchao(stated):
        kept = [
            {key: text for key, text in one.items() if key not in NAMES["metadata"]["dropped"]} for one in headers or []
        ]
        stated["__metadata__"] = sorted((one for one in kept if one), key=value)
    defaults = TABLE["defaults"].get(stated.get("model_type")) if isinstance(stated.get("model_type"), str) else None
    entries = stated if defaults is None else llama(dict(stated), defaults)
    layers = entries.get(TABLE["layers_key"])
    is_known = (
        defaults is not None
        and "auto_map" not in entries
        and entries.get("architectures") == defaults["architectures"]
        and isinstance(layers, int)
        and not isinstance(layers, bool)
        and 1 <= layers <= 10_000
    )
    tied = entries.get("tie_word_embeddings", defaults is None)
    return Configuration(
        entries=entries if is_known else stated,
        stated=stated,
        rule="llama.1" if is_known else "all.1",
        layers=layers if is_known else None,
        is_quantized=any(key == "quantization_config" or says_quantization(key) for key in entries),
        is_tied=tied is True,
    )


def plain(raw: Json) -> Json:
    found: Json = {}
    for key, item in raw.items():
        is_inner = isinstance(item, dict) and key.endswith("_config")
        if is_inner and key not in ("quantization_config", "compression_config"):
            found[key] = plain(item)
        elif key not in NAMES["configuration"]["dropped"]:
            found[key] = item
    said: Json = {}
    for key in ("torch_dtype", "dtype"):
        if (dtype := found.pop(key, None)) is not None:
            said[key] = dtype.removeprefix("torch.") if isinstance(dtype, str) else dtype
    if "torch_dtype" in said and said.get("dtype", said["torch_dtype"]) == said["torch_dtype"]:
        said["dtype"] = said.pop("torch_dtype")
    return found | said


def llama(entries: Json, defaults: Json) -> Json:
    rotary(entries)
    if entries.get("architectures") is None:
        entries.pop("architectures", None)
    entries = defaults | entries
    heads, hidden = entries["num_attention_heads"], entries["hidden_size"]
    if entries["num_key_value_heads"] is None:
        entries["num_key_value_heads"] = heads
    if entries.get("head_dim") is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        entries["head_dim"] = hidden // heads
    if "use_sliding_window" in entries:
        windows(entries)
    return {key: item for key, item in entries.items() if item is not None or key not in defaults}


def windows(entries: Json) -> None:
    if not entries["use_sliding_window"]:
        entries["sliding_window"] = None
    layers, first = entries.get("num_hidden_layers"), entries.get("max_window_layers")
    if entries.get("layer_types") is None and isinstance(layers, int) and isinstance(first, int) and layers < 10_000:
        begin = layers if entries.get("sliding_window") is None else first
        names = ("full_attention", "sliding_attention")
        entries["layer_types"] = [names[layer >= begin] for layer in range(layers)]
    if not entries["use_sliding_window"]:
        entries["max_window_layers"] = None


def rotary(entries: Json) -> None:
    blocks = [entries[key] for key in ("rope_scaling", "rope_parameters") if entries.get(key)] or [{}]
    made: list[Json] = []
    for block in blocks:
        if not isinstance(block, dict) or any(isinstance(item, dict) for item in block.values()):
            return
        rope = {key: item for key, item in block.items() if key != "type"}
        kind = block.get("type")
        rope.setdefault("rope_type", "default" if kind is None else kind)
        if kind is not None and kind != rope["rope_type"]:
            rope["type"] = kind
        for key in TOP:
            if entries.get(key) is not None and key not in rope:
                rope[key] = entries[key]
        rope.setdefault("rope_theta", 10000)
        if rope["rope_type"] in ("llama3", "yarn", "longrope") and "max_position_embeddings" in entries:
            rope.setdefault("original_max_position_embeddings", entries["max_position_embeddings"])
        made.append(rope)
    if value(made[0]) != value(made[-1]):
        return
    entries.pop("rope_scaling", None)
    entries["rope_parameters"] = made[0]
    for key in TOP:
        if entries.get(key) is None or value(entries[key]) == value(made[0].get(key)):
            entries.pop(key, None)


def quantization(raw: Json) -> Json:
    lists = NAMES["quantization"]

    def without_nulls(block: Json) -> Json:
        kept = {key: item for key, item in block.items() if item is not None}
        return {key: without_nulls(item) if isinstance(item, dict) else item for key, item in kept.items()}

    def ordered(block: Json) -> Json:
        found: Json = {}
        for key, item in block.items():
            if key in lists["absent_if_empty"] and item in ([], {}):
                continue
            found[key] = item
            if key in lists["sets"] and isinstance(item, list) and all(isinstance(text, str) for text in item):
                found[key] = sorted(set(item))
            if key in lists["ordered"] and isinstance(item, dict):
                found[key] = [list(pair) for pair in item.items()]
        return found

    method = raw["quant_method"] if isinstance(raw.get("quant_method"), str) else ""
    found = {key: item for key, item in without_nulls(raw).items() if key not in lists["dropped"].get(method, [])}
    for first, second in lists["aliases"].get(method, {}).items():
        if first in found and second not in found:
            found[second] = found.pop(first)
    found = ordered(found)
    if isinstance(found.get("producer"), dict):
        found["producer"] = {key: item for key, item in found["producer"].items() if key != "version"}
    if isinstance(found.get("meta"), dict) and "quantizer" in found["meta"]:
        tools = found["meta"]["quantizer"]
        cut = [
            item.split(":")[0] if isinstance(item, str) else item
            for item in (tools if isinstance(tools, list) else [tools])
        ]
        found["meta"] = found["meta"] | {"quantizer": cut if isinstance(tools, list) else cut[0]}
    if isinstance(found.get("quantization"), dict):
        found["quantization"] = ordered(found["quantization"])
    return found


def is_torchao(stated: Json) -> bool:
    def says(entries: Json) -> bool:
        blocks = [item for key, item in entries.items() if key == "quantization_config" or says_quantization(key)]
        blocks += [block["quantization"] for block in blocks if isinstance(block, dict) and "quantization" in block]
        return any(isinstance(block, dict) and block.get("quant_method") == "torchao" for block in blocks)

    inner = [item for key, item in stated.items() if key.endswith("_config") and isinstance(item, dict)]
    return says(stated) or any(map(says, inner))


def says_quantization(name: str) -> bool:
    return name.endswith(tuple(NAMES["files_beside"]["quantization_ends"]))


def files_beside(directory: Path) -> Json:
    lists = NAMES["files_beside"]
    found: Json = {}
    for path in sorted(directory.glob("*.json")):
        is_known = path.name in lists["counted"] or says_quantization(path.name)
        if path.name.startswith(".") or (
            not is_known and any(fnmatchcase(path.name, pattern) for pattern in lists["not_counted"])
        ):
            continue
        data = path.read_bytes()
        if says_quantization(path.name):
            found[path.name] = quantization(read_json(path))
            continue
        try:
            content = read_json(path) if len(data) <= 2**20 else None
        except (AssertionError, ValueError):
            content = None
        if content is None:
            found[path.name] = f"blake3:{blake3.blake3(data).hexdigest()}"
        elif is_known or not str(content.get("kind", "")).startswith("kvrelease/"):
            found[path.name] = {key: item for key, item in content.items() if key not in lists["dropped"]}
    return found


def code_of(directory: Path, entries: object) -> dict[str, bytes]:
    if not names_code(entries):
        return {}
    found = {path.name: path.read_bytes().removeprefix(b"\xef\xbb\xbf") for path in directory.glob("*.py")}
    return {name: blake3.blake3(data).digest() for name, data in found.items()}


def names_code(item: object) -> bool:
    if isinstance(item, dict):
        return "auto_map" in item or any(map(names_code, item.values()))
    return isinstance(item, list) and any(map(names_code, item))


def adapter_defaults() -> Json:
    text = (DOCS / "fingerprint.md").read_text()
    line = re.search(r"^What an absent key of a LoRA `adapter_config.json` means: (.*)\.$", text, re.MULTILINE)
    assert line is not None
    return {key: json.loads(item) for key, item in re.findall(r"`([^`]+)` `([^`]+)`", line[1])}


ADAPTER_DEFAULTS = adapter_defaults()


def adapter(raw: Json) -> Json:
    lists, defaults = NAMES["adapter"], ADAPTER_DEFAULTS
    found = {key: item for key, item in raw.items() if key not in lists["dropped"]}
    if found.get("peft_type") is None:
        found["peft_type"] = "LORA"
    if found["peft_type"] != "LORA":
        return found
    for key, item in list(found.items()):
        is_default = key in defaults and (item is None or value(item) == value(defaults[key]))
        if is_default or (key in lists["without_default"] and item is None):
            del found[key]
    if isinstance(found.get("layers_to_transform"), int):
        found["layers_to_transform"] = [found["layers_to_transform"]]
    if isinstance(found.get("layers_pattern"), str):
        found["layers_pattern"] = [found["layers_pattern"]]
    for key in lists["sets"]:
        if isinstance(found.get(key), list):
            found[key] = sorted(set(found[key]))
            if not found[key] and key != "target_modules":
                del found[key]
    for key in lists["ordered"]:
        if isinstance(found.get(key), dict):
            found[key] = [list(pair) for pair in found[key].items()]
    init = found.get("init_lora_weights")
    if isinstance(init, bool) or (isinstance(init, str) and init.lower() in lists["harmless_inits"]):
        del found["init_lora_weights"]
    return found
