"""A second implementation of all digests of a release, or of an adapter, as docs/vectors.json publishes them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import blake3

from tests.release import naive
from tests.release.naive import NAMES, digest, pairs, value
from tests.release.naive_config import Configuration, Json, adapter, code_of, configuration, names_code, read_json


def optional(path: Path) -> Json | None:
    return read_json(path) if path.exists() else None


def tokenizer(directory: Path) -> str | None:
    lists = NAMES["tokenizer"]
    parts: dict[str, bytes] = {}
    settings = optional(directory / "tokenizer_config.json") or {}
    for path in directory.iterdir():
        if path.name == "tokenizer_config.json":
            parts[path.name] = value({key: item for key, item in settings.items() if key not in lists["dropped"]})
        elif path.name in lists["settings"]:
            parts[path.name] = value(read_json(path))
        elif any(fnmatchcase(path.name, pattern) for pattern in lists["vocabularies"]) or (
            path.suffix == ".py" and names_code(settings)
        ):
            parts[path.name] = blake3.blake3(path.read_bytes()).digest()
    return "kvfp1-tokenizer:" + digest("kvfp1-tokenizer", pairs(parts)).hex() if parts else None


def templates(directory: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    jinja = directory / "chat_template.jinja"
    named = directory / "additional_chat_templates"
    files = {path.stem: path for path in named.glob("*.jinja")} | ({"default": jinja} if jinja.exists() else {})
    for name, path in files.items():
        found[name] = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode()
    stated = (optional(directory / "tokenizer_config.json") or {}).get("chat_template")
    if not found and isinstance(stated, str):
        found = {"default": stated}
    elif not found and isinstance(stated, dict):
        found = dict(stated)
    elif not found and isinstance(stated, list):
        found = {item["name"]: item["template"] for item in stated}
    found = {name: text.replace("\r\n", "\n").replace("\r", "\n") for name, text in found.items()}
    if (processor := optional(directory / "chat_template.json")) is not None:
        text = processor["chat_template"].replace("\r\n", "\n").replace("\r", "\n")
        if text != found.get("default"):
            found["chat_template.json"] = text
    return found


def template(directory: Path) -> str | None:
    texts = {name: text.encode() for name, text in templates(directory).items()}
    return "kvfp1-template:" + digest("kvfp1-template", pairs(texts)).hex() if texts else None


def generation(directory: Path, stated: Json | None) -> str | None:
    own = optional(directory / "generation_config.json")
    if own is None and stated is None:
        return None
    effective = {key: (stated or {}).get(key) for key in NAMES["generation"]["inherited"]} | (own or {})
    dropped = NAMES["generation"]["dropped"]
    kept = {key: item for key, item in effective.items() if item is not None and key not in dropped}
    return "kvfp1-generation:" + digest("kvfp1-generation", [value(kept)]).hex()


def without_tied(found: dict[str, bytes], config: Configuration) -> dict[str, bytes]:
    if not config.is_tied:
        return found
    table: Any = {"output_layer": ["lm_head"], "embeddings": ["model.embed_tokens"]}
    if config.layers is not None:
        table = naive.rule_table(config.rule)
    output, embeddings = (
        next((f"{name}.weight" for name in table[key] if f"{name}.weight" in found), None)
        for key in ("output_layer", "embeddings")
    )
    is_copy = output is not None and embeddings is not None and found[output] == found[embeddings]
    return {name: item for name, item in found.items() if not (is_copy and name == output)}


def kv(found: dict[str, bytes], config: Configuration, code: dict[str, bytes], base: str) -> tuple[str, list[str]]:
    """The kv digest, and those of the layers."""
    algorithm, cached = f"{base}/{config.rule}", config.layers or 1
    entries, by_layer = config.entries, {0: found}
    if config.layers is not None:
        table = naive.rule_table(config.rule)
        entries = {key: item for key, item in entries.items() if key not in table["harmless_keys"]}
        sizes: Json = {"layers": config.layers, "is_quantized": config.is_quantized, "is_tied": config.is_tied}
        has_head = any(naive.is_head(name, table, config.entries, **sizes) for name in found)
        if has_head:
            algorithm, cached = f"{algorithm}+head", cached + 1
        touched = {name: naive.first_layer(name, table, has_head=has_head, **sizes) for name in found}
        by_layer = {layer: {name: found[name] for name in found if touched[name] == layer} for layer in range(cached)}
    running = digest(f"{algorithm} configuration", [value(entries), *pairs(code)])
    layers_found = []
    for layer in range(cached):
        running = digest(f"{algorithm} layer", [running, *pairs(by_layer[layer])])
        layers_found.append(f"{algorithm}:{running.hex()}")
    return f"{algorithm}:" + digest(f"{algorithm} kv", [running]).hex(), layers_found if config.layers else []


def release(directory: Path) -> Json:
    config = configuration(directory)
    code = code_of(directory, config.entries)
    algorithm = f"kvfp1-config/{config.rule}"
    parts = {
        "config": f"{algorithm}:" + digest(algorithm, [value(config.entries), *pairs(code)]).hex(),
        "tokenizer": tokenizer(directory),
        "template": template(directory),
        "generation": generation(directory, config.stated),
    }
    found: Json = {"canonical": config.entries, **parts}
    for algorithm, tensors in (("kvfp1-full", naive.payloads(directory)), ("kvfp1-fast", naive.samples(directory))):
        counted = without_tied(tensors, config)
        weights = naive.weights_digest(counted, algorithm=algorithm)
        digest_of_kv, layers = kv(counted, config, code, algorithm)
        found[algorithm] = {
            "tensors": {name: item.hex() for name, item in sorted(counted.items())},
            "weights": weights,
            "layers": layers,
            "kv": digest_of_kv,
            "release": naive.release_digest({"weights": weights, **parts}, algorithm=algorithm),
        }
    return found | {"kv name": naive.kv_name(found["kvfp1-full"]["kv"])}


def adapter_alone(directory: Path) -> Json:
    canonical, tensors = adapter(read_json(directory / "adapter_config.json")), naive.payloads(directory)
    weights, content = naive.weights_digest(tensors), naive.adapter_digest(directory, canonical=canonical)
    parts = {
        "config": "kvfp1-adapter-config:" + digest("kvfp1-adapter-config", [value(canonical)]).hex(),
        "tokenizer": tokenizer(directory),
        "template": template(directory),
        "generation": generation(directory, None),
    }
    return {
        "canonical": canonical,
        **parts,
        "tensors": {name: item.hex() for name, item in sorted(tensors.items())},
        "weights": weights,
        "content": content,
        "release": naive.release_digest({"weights": weights, "adapter": content, **parts}),
        "fast": naive.fast_digest(directory),
    }
