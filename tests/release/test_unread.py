"""What KV depends on and no digest covers: there is then no kv name, and never a word of "same"."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from safetensors.numpy import save_file

from kvrelease import artifacts
from kvrelease.artifacts import JsonObject, Verdict
from kvrelease.errors import InputError
from kvrelease.keys import compute_model_fingerprint
from kvrelease.release.check import check_release
from kvrelease.release.diff import diff_fingerprints, diff_verdict
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.fingerprint import require_kv_name
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from kvrelease.release.stored import StoredAnswer, proves
from tests.release.builders import config_json, tensors, write_json, write_release

ELSEWHERE = {"AutoModelForCausalLM": "acme/code--modeling_x.X"}
UNREAD = (
    "config.json takes code from another repository, 'acme/code' (auto_map): what it computes decides KV, can change "
    "at any time, and is no part of the release; copy its *.py files beside config.json, and name them in auto_map "
    "without what stands before '--'"
)


def write_elsewhere(directory: Path, auto_map: object = ELSEWHERE) -> Path:
    write_release(directory, config=config_json(auto_map=auto_map))
    (directory / "modeling_x.py").write_text("x = 1")  # the repository's own copy is not what engines would load
    return directory


def test_code_of_another_repository_leaves_no_kv_name_and_says_so(tmp_path: Path) -> None:
    found = load_release(write_elsewhere(tmp_path / "model"))
    assert found.release.kv_name is None
    assert found.unread == (UNREAD,)
    assert f"there is no kv name: {UNREAD}" in found.warnings
    assert artifacts.from_json(artifacts.to_json(found).encode(), type(found), source="-") == found


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", config_json(text_config={"auto_map": {"AutoModel": ["acme/code--x.X", None]}})),
        ("processor_config.json", {"auto_map": {"AutoProcessor": "acme/code--processing_x.X"}}),
        ("notes.json", {"list": [{"auto_map": "acme/code--x.X"}]}),
    ],
)
def test_wherever_it_is_named(tmp_path: Path, file: str, content: JsonObject) -> None:
    model = write_release(tmp_path / "model")
    assert load_release(model).release.kv_name is not None
    write_json(model / file, content)
    found = load_release(model)
    assert found.release.kv_name is None
    (sentence,) = found.unread
    assert sentence.startswith(f"{file} takes code from another repository, 'acme/code' (auto_map)")


def test_code_of_a_processor_beside_it_counts(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model")
    write_json(model / "processor_config.json", {"auto_map": {"AutoProcessor": "processing_x.X"}})
    names = set()
    for number in range(2):
        (model / "processing_x.py").write_text(f"x = {number}")
        names.add(load_release(model).release.kv_name)
    assert len(names) == 2
    assert None not in names


def test_a_tokenizers_code_does_not_decide_kv(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model")
    write_json(model / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["acme/code--x.X", None]}})
    assert load_release(model).release.kv_name is not None


def test_whoever_needs_the_name_is_told_why_there_is_none(tmp_path: Path) -> None:
    model = write_elsewhere(tmp_path / "model")
    with pytest.raises(InputError, match=r"takes code from another repository") as caught:
        compute_model_fingerprint(model)
    assert caught.value.hint is not None


def test_a_diff_of_such_releases_is_unknown_with_the_reason(tmp_path: Path) -> None:
    old, new = (load_release(write_elsewhere(tmp_path / name)) for name in ("old", "new"))
    assert old.digests.kv == new.digests.kv
    for pair in ((old, new), (old, msgspec.structs.replace(new, unread=()))):
        kv = diff_fingerprints(*pair).kv
        assert (kv.status, kv.reasons[0]) == (KvStatus.UNKNOWN, UNREAD)


def test_weights_that_another_loader_prefers_are_never_called_the_same(tmp_path: Path) -> None:
    """`model.safetensors` beside an index that does not name it: one engine loads it, another one the shards."""
    old, new = (write_release(tmp_path / name, shards=2) for name in ("old", "new"))
    for seed, side in enumerate((old, new)):
        save_file(tensors(seed + 5), side / "model.safetensors")
    before, after = load_release(old), load_release(new)
    assert (before.release.kv_name, before.digests) == (None, after.digests)
    found = diff_fingerprints(before, after)
    assert (found.kv.status, found.unknown) == (KvStatus.UNKNOWN, ("release", "weights", "kv"))
    assert found.kv.reasons == (before.unread[0],)
    assert found.kv.notes == ()  # none that calls it no part of the release
    for part in ("kv", "weights", "any"):
        assert diff_verdict(found, part=part) is Verdict.INCONCLUSIVE
    for mode in Mode:
        check = check_release(before, load_release(new, mode=mode))
        assert (check.verdict, check.unknown) == (Verdict.INCONCLUSIVE, ("weights",))
        assert check.reason == f"weights cannot be compared: {before.unread[0]}"
    with pytest.raises(InputError, match="lies beside") as caught:
        require_kv_name(before)
    assert caught.value.hint == "remove one of the two"
    (new / "model.safetensors").unlink()
    assert load_release(new).release.kv_name is not None


def test_hashes_that_a_place_states_prove_nothing_of_such_a_release(tmp_path: Path) -> None:
    saved = load_release(write_elsewhere(tmp_path / "model"))
    saved = msgspec.structs.replace(saved, stored="kvfp1-stored:00")
    answer = StoredAnswer(
        address="hf:acme/support",
        stored="kvfp1-stored:00",
        config=saved.digests.config,
        tokenizer=None,
        template=None,
        generation=None,
        tensors=0,
        bytes=0,
        warnings=(),
    )
    assert not proves(answer, saved)
    assert proves(answer, msgspec.structs.replace(saved, unread=()))
    assert not proves(msgspec.structs.replace(answer, unread=(UNREAD,)), msgspec.structs.replace(saved, unread=()))
    assert not proves(answer, msgspec.structs.replace(saved, unread=(), code=None))  # nor files beside, then


def test_every_reason_for_no_kv_name_has_its_next_step(tmp_path: Path) -> None:
    found = load_release(write_release(tmp_path / "model"))
    assert require_kv_name(found) == found.release.kv_name
    (tmp_path / "model" / "config.json").unlink()
    bare = load_release(tmp_path / "model" / "model.safetensors")
    with pytest.raises(InputError, match="without their config"):
        require_kv_name(bare)


TORCHAO: JsonObject = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}}


def test_torchao_metadata_decide_what_the_tensors_mean_and_count(tmp_path: Path) -> None:
    """vLLM and transformers rebuild quantised tensors by them (tensor_metadata.py)."""
    config = config_json(quantization_config=TORCHAO)

    def kv(name: str, metadata: dict[str, str]) -> str | None:
        return load_release(write_release(tmp_path / name, config=config, metadata=metadata)).release.kv_name

    plain = kv("a", {"format": "pt"})
    assert plain is not None
    assert kv("b", {}) == plain
    marked = kv("c", {"format": "pt", "model.norm.weight": '{"_type": "AffineQuantizedTensor"}'})
    assert len({plain, marked, kv("d", {"model.norm.weight": '{"_type": "Tensor"}'})}) == 3
    assert kv("e", {"model.norm.weight": '{"_type": "AffineQuantizedTensor"}'}) == marked


def test_metadata_of_other_checkpoints_are_notes(tmp_path: Path) -> None:
    one, two = (load_release(write_release(tmp_path / text, metadata={"a": text})).digests for text in "xy")
    assert one == two
