"""A saved fingerprint is believed as far as it agrees with itself, and with what lies beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvrelease import artifacts
from kvrelease.errors import DamagedFile, InputError
from kvrelease.keys import compute_model_fingerprint
from kvrelease.release.adapted import fingerprint_adapter_with_text, with_adapters
from kvrelease.release.digests import config_digest, release_digest
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from kvrelease.release.naming import kv_name
from tests.release.adapters import source_of, write_adapter
from tests.release.builders import config_json, tensors, write_json, write_release, write_text_side
from tests.release.gguf_writer import write_gguf

OTHER = "0" * 64
Edit = Callable[[dict[str, Any]], None]


def put(*path: str | int, value: object) -> Edit:
    """Sets what lies at a path of the JSON; a text that ends in `:` keeps the algorithm in front of the hash."""

    def edit(saved: dict[str, Any]) -> None:
        inside: Any = saved
        for key in path[:-1]:
            inside = inside[key]
        known = inside[path[-1]]
        inside[path[-1]] = f"{known.partition(':')[0]}:{OTHER}" if value == ":" else value

    return edit


def save(found: Fingerprint, path: Path, edit: Edit | None = None) -> Path:
    artifacts.write(path, found)
    if edit is not None:
        saved = json.loads(path.read_text())
        edit(saved)
        write_json(path, saved)
    return path


def add_tensor(saved: dict[str, Any]) -> None:
    saved["tensor_digests"]["model.extra.weight"] = OTHER


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (put("release", "kv_name", value="kv1-" + "a" * 32), "kv name"),
        (put("digests", "kv", value=":"), "digests.kv"),
        (put("digests", "weights", value=":"), "digests.weights"),
        (put("digests", "config", value=":"), "digests.config"),
        (put("digests", "release", value=":"), "digests.release"),
        (put("digests", "tokenizer", value=":"), "digests.release"),
        (put("tensor_digests", "model.norm.weight", value=OTHER), "digests.weights"),
        (put("tensor_digests", "model.norm.weight", value="not hex"), "not a fingerprint"),
        (add_tensor, "digests.weights"),
        (put("layers", 1, "digest", value=":"), "layers"),
        (put("config", "rope_parameters", value={"rope_theta": 1, "rope_type": "default"}), "digests.config"),
        (put("code", value={"modeling.py": OTHER}), "digests.config"),
        (put("rule", "layers", value=2), "digests.kv"),
        (put("rule", "name", value="all.1"), "digests.kv"),
        (put("rule", "name", value="gemma.7"), "digests.kv"),
        (put("mode", value="fast"), "digests.weights"),
        (put("tensors", value=7), "tensors"),
    ],
)
def test_what_was_edited_in_it_is_named(tmp_path: Path, edit: Edit, what: str) -> None:
    found = load_release(write_text_side(write_release(tmp_path / "model")))
    assert load_release(save(found, tmp_path / "whole.json")) == found
    edited = save(found, tmp_path / "edited.json", edit)
    with pytest.raises(DamagedFile, match=rf"edited\.json: .*{what}") as caught:
        load_release(edited)
    assert caught.value.hint == f"fingerprint the release again: kvrelease fingerprint {tmp_path / 'model'}"
    with pytest.raises(DamagedFile):
        compute_model_fingerprint(edited)


def test_of_every_kind_of_release_what_was_saved_is_read_again(tmp_path: Path) -> None:
    model = write_text_side(write_release(tmp_path / "model"))
    code = write_release(tmp_path / "code", config=config_json(auto_map={"AutoModel": "modeling.X"}))
    (code / "modeling.py").write_text("x = 1")
    weights = tensors(is_tied=True)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    tied = write_release(tmp_path / "tied", weights, config=config_json(tie_word_embeddings=True))
    elsewhere = write_release(tmp_path / "else", config=config_json(auto_map={"AutoModel": "a/b--modeling.X"}))
    adapter = source_of(write_adapter(tmp_path / "adapter"))
    numbers = {"a": 10000.0, "b": 1e-05, "c": 2.0**60, "d": -0.0, "e": 2**53 + 1, "f": 1e300, "g": "\u00e9\U0001f600"}
    other = write_release(tmp_path / "other", config=config_json("other", **numbers))
    write_json(other / "preprocessor_config.json", numbers)
    found = [
        load_release(model),
        load_release(model, mode=Mode.FAST),
        load_release(code),
        load_release(tied),
        load_release(elsewhere),
        load_release(other),
        load_release(write_gguf(tmp_path / "model.gguf")),
        fingerprint_adapter_with_text(adapter)[0],
        with_adapters(load_release(model), {"one": adapter}),
        with_adapters(load_release(model, mode=Mode.FAST), {"one": adapter}),
    ]
    (model / "config.json").unlink()
    found.append(load_release(model / "model.safetensors"))
    for number, one in enumerate(found):
        assert load_release(save(one, tmp_path / f"{number}.json")) == one


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (put("adapters", 0, "kv_name", value="kv1-" + "a" * 32), "adapter 'one'"),
        (put("adapters", 0, "digest", value=":"), "adapter 'one'"),
        (put("adapters", 0, "content", value=":"), "adapter 'one'"),
    ],
)
def test_an_edited_adapter_is_named(tmp_path: Path, edit: Edit, what: str) -> None:
    base = load_release(write_release(tmp_path / "model"))
    found = with_adapters(base, {"one": source_of(write_adapter(tmp_path / "adapter"))})
    with pytest.raises(DamagedFile, match=what):
        load_release(save(found, tmp_path / "edited.json", edit))


def test_an_edited_adapter_alone_is_named(tmp_path: Path) -> None:
    found, _ = fingerprint_adapter_with_text(source_of(write_adapter(tmp_path / "adapter")))
    with pytest.raises(DamagedFile, match=r"digests\.kv"):
        load_release(save(found, tmp_path / "edited.json", put("digests", "kv", value=":")))


def test_a_kv_name_beside_code_of_another_repository_is_none(tmp_path: Path) -> None:
    config = config_json(auto_map={"AutoModel": "acme/code--modeling.X"})
    found = load_release(write_release(tmp_path / "model", config=config))

    def forge(saved: dict[str, Any]) -> None:
        saved["release"]["kv_name"] = kv_name(found.digests.kv)
        saved["unread"] = []

    with pytest.raises(DamagedFile, match="kv name"):
        load_release(save(found, tmp_path / "edited.json", forge))


def test_one_saved_before_code_was_kept_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model", config=config_json(auto_map={"AutoModel": "modeling.X"}))
    (model / "modeling.py").write_text("x = 1")
    found = load_release(model)

    def older(saved: dict[str, Any]) -> None:
        del saved["code"]

    assert load_release(save(found, tmp_path / "older.json", older)).digests == found.digests
    plain = load_release(write_release(tmp_path / "plain"))
    assert load_release(save(plain, tmp_path / "plain.json", older)).digests == plain.digests


def test_a_rule_of_a_later_version_is_no_damage(tmp_path: Path) -> None:
    """What this version cannot make again is read, and still has to name its own digest."""
    found = load_release(write_release(tmp_path / "model"))
    assert found.config is not None
    rule = msgspec.structs.replace(found.rule, name="llama.9")
    kv = found.digests.kv.replace("llama.1", "llama.9")
    digests = msgspec.structs.replace(found.digests, kv=kv, config=config_digest(found.config, {}, rule))
    names = [name for name in digests.__struct_fields__ if name not in ("release", "kv")]
    release = release_digest({name: getattr(digests, name) for name in names})
    later = msgspec.structs.replace(
        found,
        rule=rule,
        digests=msgspec.structs.replace(digests, release=release),
        release=msgspec.structs.replace(found.release, kv_name=kv_name(kv)),
    )
    assert load_release(save(later, tmp_path / "later.json")) == later
    with pytest.raises(DamagedFile, match="kv name"):
        load_release(save(later, tmp_path / "edited.json", put("release", "kv_name", value="kv1-" + "a" * 32)))


def test_weights_that_were_replaced_beside_it_are_noticed(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model")
    published = save(load_release(model), model / "kvrelease.json")
    name = compute_model_fingerprint(published)
    (tmp_path / "alone").mkdir()
    assert compute_model_fingerprint(save(load_release(model), tmp_path / "alone" / "kvrelease.json")) == name
    weights = tensors()
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:-1]
    write_release(model, weights)
    with pytest.raises(
        InputError, match=r"'model.safetensors' beside it has \d+ bytes, .* was made of one with"
    ) as caught:
        compute_model_fingerprint(published)
    assert "--check" in (caught.value.hint or "")


def test_weights_that_are_newer_than_their_published_fingerprint_are_told(tmp_path: Path) -> None:
    """Copied over it, or only copied: times cannot tell, `--check` can."""
    model = write_release(tmp_path / "my model")
    published = save(load_release(model), model / "kvrelease.json")
    elsewhere = save(load_release(model), tmp_path / "saved.json")
    made = published.stat().st_mtime_ns
    os.utime(model / "model.safetensors", ns=(made, made))
    assert load_release(published).warnings == ()
    os.utime(model / "model.safetensors", ns=(made + 1, made + 1))
    (warning,) = load_release(published).warnings
    assert warning == (
        "'model.safetensors' beside kvrelease.json was written after it, by a copy or download of both, or by other "
        f"weights put in its place: kvrelease fingerprint '{model}' --check tells"
    )
    assert load_release(elsewhere).warnings == ()
    (model / "model.safetensors").write_bytes(b"0")
    os.utime(model / "model.safetensors", ns=(made - 1, made - 1))
    (warning,) = load_release(published).warnings
    assert warning.startswith("'model.safetensors' beside kvrelease.json has another size than the fingerprint says")


def test_each_claim_that_does_not_follow_is_named_once(tmp_path: Path) -> None:
    found = load_release(write_release(tmp_path / "model"))
    path = save(found, tmp_path / "saved.json", put("digests", "kv", value="kvfp1-full/other.1:" + OTHER))
    with pytest.raises(DamagedFile) as caught:
        load_release(path)
    assert caught.value.message.count("digests.kv") == 1
