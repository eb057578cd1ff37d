"""Is it still what was published?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors import deserialize

from kvrelease import artifacts
from kvrelease.artifacts import Verdict
from kvrelease.release.adapted import with_adapters
from kvrelease.release.check import ReleaseCheck, check_release
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from tests.release import naive
from tests.release.adapters import adapter_tensors, source_of, write_adapter
from tests.release.builders import config_json, tensors, write_json, write_release, write_text_side

NAME = "model.layers.1.mlp.up_proj.weight"
BIG = "model.big"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_text_side(write_release(tmp_path / "model"))


def flip(model: Path, *, sampled: bool) -> Path:
    """A copy of the weights, a large tensor among them, with one bit flipped: where the fast digest looks, or not."""
    path = write_release(model, {**tensors(), BIG: tensors()[NAME].repeat(600)}) / "model.safetensors"
    content = path.read_bytes()
    parse: Any = deserialize  # untyped
    tensor = dict(parse(content))[BIG]
    data = bytes(tensor["data"])
    places = naive.places(BIG, tensor["dtype"], tensor["shape"], len(data))
    where = next(n for n in range(len(data)) if any(a <= n < a + b for a, b in places) == sampled)
    changed = bytearray(content)
    changed[content.index(data) + where] ^= 1
    copy = model / "changed"
    copy.write_bytes(changed)
    return copy


def test_the_published_release_passes_in_both_modes(model: Path) -> None:
    published = load_release(model)
    full = check_release(published, load_release(model))
    assert (full.verdict, full.reason) == (Verdict.PASS, "every digest is the published one")
    assert full.bound is None
    fast = check_release(published, load_release(model, mode=Mode.FAST))
    assert fast.verdict is Verdict.PASS
    assert fast.reason.startswith("no change was seen; ")
    assert fast.bound is not None


@pytest.mark.parametrize("sampled", [True, False])
def test_a_flipped_bit_fails_a_full_check_and_a_fast_one_where_it_looks(model: Path, sampled: bool) -> None:
    changed = flip(model, sampled=sampled)
    published = load_release(model)
    changed.replace(model / "model.safetensors")
    full = check_release(published, load_release(model))
    assert (full.verdict, full.changed, full.tensors.changed) == (Verdict.FAIL, ("weights", "kv"), (BIG,))
    assert repr(BIG) in full.reason
    fast = check_release(published, load_release(model, mode=Mode.FAST))
    assert fast.verdict is (Verdict.FAIL if sampled else Verdict.PASS)
    assert fast.changed == (("samples",) if sampled else ())


@pytest.mark.parametrize("mode", list(Mode))
def test_every_part_beside_the_weights_is_compared_whole_in_both_modes(model: Path, mode: Mode) -> None:
    published = load_release(model)
    write_json(model / "config.json", config_json(rope_theta=20000.0))
    write_json(model / "generation_config.json", {"temperature": 0.7})
    (model / "chat_template.jinja").write_text("{{ other }}")
    check = check_release(published, load_release(model, mode=mode))
    kv = ("kv",) if mode is Mode.FULL else ()  # of a fast reading the kv digest is another one
    assert (check.verdict, check.changed) == (Verdict.FAIL, ("config", "template", "generation", *kv))


def test_a_full_check_against_a_fast_publication_is_inconclusive_unless_a_change_shows(model: Path) -> None:
    published = load_release(model, mode=Mode.FAST)
    same = check_release(published, load_release(model))
    assert same.verdict is Verdict.INCONCLUSIVE
    assert "a fast one: only samples" in same.reason
    weights = tensors()
    weights[NAME] += 1
    write_release(model, weights)
    assert check_release(published, load_release(model)).verdict is Verdict.FAIL


def test_a_publication_by_another_algorithm_is_inconclusive_and_says_what_to_do(model: Path) -> None:
    found = load_release(model)
    digests = msgspec.structs.replace(found.digests, weights="kvfp9-full:" + "0" * 64)
    check = check_release(msgspec.structs.replace(found, digests=digests, fast="kvfp9-fast:00"), found)
    assert (check.verdict, check.unknown) == (Verdict.INCONCLUSIVE, ("samples",))
    assert "publish it again" in check.reason
    sampled = check_release(msgspec.structs.replace(found, digests=digests), found)
    assert sampled.verdict is Verdict.INCONCLUSIVE
    assert "of another algorithm" in sampled.reason


def test_a_better_rule_is_no_change_of_the_release(model: Path) -> None:
    found = load_release(model)
    digests = msgspec.structs.replace(found.digests, kv="kvfp1-full/llama.9:" + "0" * 64)
    assert check_release(msgspec.structs.replace(found, digests=digests), found).verdict is Verdict.PASS


def test_a_published_kv_digest_that_is_not_the_releases_fails(model: Path) -> None:
    found = load_release(model)
    digests = msgspec.structs.replace(found.digests, kv="kvfp1-full/llama.1:" + "0" * 64)
    check = check_release(msgspec.structs.replace(found, digests=digests), found)
    assert (check.verdict, check.changed) == (Verdict.FAIL, ("kv",))


def test_a_check_is_an_artifact(model: Path) -> None:
    check = check_release(load_release(model), load_release(model, mode=Mode.FAST))
    assert artifacts.from_json(artifacts.to_json(check).encode(), ReleaseCheck, source="-") == check


def test_adapters_are_compared_by_what_they_are(model: Path, tmp_path: Path) -> None:
    def served(adapters: dict[str, Path], mode: Mode = Mode.FULL) -> Fingerprint:
        sources = {name: source_of(path) for name, path in adapters.items()}
        return with_adapters(load_release(model, mode=mode), sources)

    one = write_adapter(tmp_path / "one", adapter_tensors(seed=1))
    two = write_adapter(tmp_path / "two", adapter_tensors(seed=2))
    published = served({"support": one})
    assert check_release(published, served({"support": one})).verdict is Verdict.PASS
    assert check_release(published, served({"support": one}, Mode.FAST)).verdict is Verdict.PASS
    other = check_release(published, served({"support": two}))
    assert (other.verdict, other.changed) == (Verdict.FAIL, ("adapter 'support'",))
    assert check_release(published, served({"support": one, "sales": two})).verdict is Verdict.FAIL
    absent = check_release(published, load_release(model))
    assert (absent.verdict, absent.unknown) == (Verdict.INCONCLUSIVE, ("adapter 'support'",))
    assert "add --adapter" in absent.reason
    weights = tensors()
    weights[NAME] += 1
    write_release(model, weights)
    changed = check_release(published, served({"support": one}))
    assert (changed.verdict, changed.changed) == (Verdict.FAIL, ("weights", "kv"))


def test_a_preprocessor_that_is_another_one_is_not_what_was_published(tmp_path: Path) -> None:
    model = write_release(tmp_path / "m")
    write_json(model / "preprocessor_config.json", {"size": 224})
    published = load_release(model)
    assert check_release(published, load_release(model)).verdict is Verdict.PASS
    write_json(model / "preprocessor_config.json", {"size": 336})
    found = check_release(published, load_release(model))
    assert (found.verdict, found.changed) == (Verdict.FAIL, ("preprocessor", "kv"))
    assert found.reason == (
        "not the release that was published: preprocessor, kv changed; files: 'preprocessor_config.json'"
    )
    assert [one.described for one in found.files] == ["preprocessor_config.json changed (size 224 → 336)"]
    fast = check_release(published, load_release(model, mode=Mode.FAST))
    assert (fast.verdict, fast.changed) == (Verdict.FAIL, ("preprocessor",))


def test_what_changed_is_told_by_its_own_name(tmp_path: Path) -> None:
    """`config` stands for the configuration's own entries, and for files that have no name of their own."""
    config = config_json("own", auto_map={"AutoModel": "modeling.Own"})
    model = write_release(tmp_path / "m", config=config)
    (model / "modeling.py").write_text("1")
    published = load_release(model)
    (model / "modeling.py").write_text("2")
    found = check_release(published, load_release(model))
    assert (found.changed, [one.name for one in found.files]) == (("code", "kv"), ["modeling.py"])
    write_json(model / "notes.json", {})
    assert check_release(published, load_release(model)).changed == ("config", "code", "kv")
    (model / "notes.json").unlink()
    write_json(model / "config.json", {**config, "vocab_size": 7})
    assert check_release(published, load_release(model)).changed == ("config", "code", "kv")


@pytest.mark.parametrize("mode", list(Mode))
def test_code_elsewhere_leaves_open_whether_it_is_what_was_published(tmp_path: Path, mode: Mode) -> None:
    model = write_release(tmp_path / "m", config=config_json(auto_map={"AutoModel": "acme/code--modeling.X"}))
    found = check_release(load_release(model), load_release(model, mode=mode))
    assert (found.verdict, found.unknown) == (Verdict.INCONCLUSIVE, ("code",))
    assert found.reason.startswith("code cannot be compared: config.json takes code from another repository")
    tokenizer = write_release(tmp_path / "t")
    write_json(tokenizer / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": "acme/code--tokenization.X"}})
    found = check_release(load_release(tokenizer), load_release(tokenizer, mode=mode))
    assert (found.verdict, found.unknown) == (Verdict.INCONCLUSIVE, ("tokenizer",))
    assert found.reason.startswith("tokenizer cannot be compared: tokenizer_config.json takes code from another")


def test_a_publication_from_before_files_counted_is_inconclusive(tmp_path: Path) -> None:
    model = write_release(tmp_path / "m")
    published = msgspec.structs.replace(load_release(model), code=None, details=None)
    found = check_release(published, load_release(model))
    assert (found.verdict, found.unknown) == (Verdict.INCONCLUSIVE, ("preprocessor",))
    assert "publish it again" in found.reason
