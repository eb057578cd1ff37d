"""Code and preprocessors beside the weights: a change counts, and what was not read is never the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.artifacts import JsonObject, Verdict
from kvrelease.release.diff import diff_fingerprints, diff_verdict
from kvrelease.release.diff_record import Diff, KvStatus
from kvrelease.release.file_changes import FileChange, FileEdit
from kvrelease.release.loading import load_release
from kvrelease.release.pair import load_pair
from tests.release.builders import config_json, write_json, write_release, write_text_side

OWN_CODE = config_json("own", auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
VISION = config_json("llava", vision_config={"hidden_size": 8})


def pair_of(tmp_path: Path, config: JsonObject | None = None) -> tuple[Path, Path]:
    old, new = (write_release(tmp_path / name, config=config) for name in ("old", "new"))
    for side in (old, new):
        (side / "modeling_own.py").write_text("class Own: ...\n")
        write_json(side / "preprocessor_config.json", {"size": 224, "transformers_version": "4"})
    return old, new


def diff(old: Path, new: Path) -> Diff:
    pair = load_pair(old, new)
    return diff_fingerprints(pair.old, pair.new, texts=pair.texts)


def as_saved_before(release: Path) -> Path:
    """Its fingerprint as it was saved before details, code, and the files beside `config.json` were kept."""
    path = release.parent / f"{release.name}.json"
    artifacts.write(path, load_release(release))
    older = json.loads(path.read_text())
    del older["details"], older["code"]
    path.write_text(json.dumps(older))
    return path


# --- code ---


def test_changed_code_of_the_model_makes_every_layer_invalid(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path, OWN_CODE)
    assert diff(old, new).kv.status is KvStatus.VALID
    (new / "modeling_own.py").write_text("class Own: pass\n")
    (new / "more.py").write_text("")
    found = diff(old, new)
    assert found.code == (
        FileChange(name="modeling_own.py", edit=FileEdit.CHANGED),
        FileChange(name="more.py", edit=FileEdit.ADDED),
    )
    assert (found.kv.status, found.kv.first_invalid_layer) == (KvStatus.INVALID, 0)
    assert found.kv.reasons[0] == (
        "the model's own code changed (trust_remote_code): 'modeling_own.py' changed, 'more.py' added; it may compute "
        "anything, so every layer is invalid"
    )
    assert found.summary == "Old KV is invalid from layer 0 on: code that the release brings changed."
    assert diff_verdict(found, part="code") is Verdict.FAIL


def test_code_of_another_repository_is_not_read_and_never_the_same(tmp_path: Path) -> None:
    elsewhere = config_json("own", auto_map={"AutoModel": "acme/code--modeling_own.Own"})
    found = diff(*pair_of(tmp_path, elsewhere))
    assert found.kv.status is KvStatus.UNKNOWN
    assert "config.json takes code from another repository, 'acme/code' (auto_map)" in found.summary
    assert found.unknown == ("release", "kv", "code")
    for part in ("kv", "code", "any"):
        assert diff_verdict(found, part=part) is Verdict.INCONCLUSIVE
    assert diff_verdict(found, part="weights") is Verdict.PASS


def test_code_that_only_the_tokenizer_brings_is_a_part_of_the_tokenizer(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path)
    for side in (old, new):
        write_text_side(side)
        write_json(side / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}})
    (new / "modeling_own.py").write_text("class Own: pass\n")
    found = diff(old, new)
    assert (found.kv.status, found.changed, found.code) == (KvStatus.VALID, ("release", "tokenizer"), ())
    assert found.tokenizer is not None
    assert found.tokenizer.parts == ("modeling_own.py",)
    assert "modeling_own.py is compared as a whole: what code does is not read" in found.tokenizer.not_read
    assert diff_verdict(found, part="code") is Verdict.PASS


def test_a_tokenizer_whose_code_lies_elsewhere_is_never_the_same(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path)
    for side in (old, new):
        write_json(side / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": "acme/code--tokenization.Own"}})
    found = diff(old, new)
    assert (found.kv.status, found.unknown) == (KvStatus.VALID, ("release", "tokenizer"))
    assert found.kv.notes == (
        "tokenizer_config.json takes code from another repository, 'acme/code' (auto_map), which the tokenizer's "
        "digest does not cover: whether the same text becomes the same ids is not known",
    )
    assert diff_verdict(found, part="tokenizer") is Verdict.INCONCLUSIVE


def test_code_that_nobody_names_does_not_count(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path)
    (new / "modeling_own.py").write_text("class Own: pass\n")
    assert diff(old, new).changed == ()


def test_an_older_fingerprint_with_another_digest_does_not_say_the_code(tmp_path: Path) -> None:
    old, new = (write_release(tmp_path / name, config=OWN_CODE) for name in ("old", "new"))
    for side in (old, new):
        (side / "modeling_own.py").write_text("class Own: ...\n")
    older = as_saved_before(old)
    assert diff_verdict(diff(older, new), part="code") is Verdict.PASS  # the config digest covers it
    (new / "modeling_own.py").write_text("class Own: pass\n")
    found = diff(older, new)
    assert (found.kv.status, diff_verdict(found, part="code")) == (KvStatus.UNKNOWN, Verdict.INCONCLUSIVE)


# --- preprocessors, and other files beside the configuration ---


@pytest.mark.parametrize(
    "name", ["preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"]
)
def test_a_changed_preprocessor_makes_kv_of_a_multimodal_model_invalid(tmp_path: Path, name: str) -> None:
    """Although no rule says what KV of such a model depends on."""
    old, new = pair_of(tmp_path, VISION)
    for side, size in ((old, 224), (new, 336)):
        write_json(side / name, {"size": {"height": size, "width": 224}})
    found = diff(old, new)
    assert (found.kv.status, found.kv.first_invalid_layer) == (KvStatus.INVALID, 0)
    assert found.kv.reasons[0] == (
        f"the preprocessor changed: {name} changed (size.height 224 → 336); the same image, video or sound becomes "
        "other inputs, and engines key their KV by what was sent: every layer is invalid"
    )
    assert not any(name in reason for reason in found.kv.reasons[1:])
    assert found.summary == f"Old KV is invalid from layer 0 on: {name} (size.height 224 → 336) changed."
    for part in ("preprocessor", "kv", "config", "any"):
        assert diff_verdict(found, part=part) is Verdict.FAIL


@pytest.mark.parametrize(
    "configs",
    [
        (config_json("llava"), VISION),
        (VISION, config_json("llava")),
        (config_json("omni", thinker_config={"audio_config": {"hidden_size": 8}}),) * 2,
        (config_json("qwen", visual={"image_size": 448}),) * 2,
        (config_json("qwen2", image_token_id=7),) * 2,
    ],
    ids=["it now sees", "it no longer sees", "inside", "visual", "a token"],
)
def test_a_model_that_takes_images_or_sound_on_either_side_has_a_preprocessor_that_counts(
    tmp_path: Path, configs: tuple[JsonObject, JsonObject]
) -> None:
    old, new = pair_of(tmp_path)
    for side, config in zip((old, new), configs, strict=True):
        write_json(side / "config.json", config)
    write_json(new / "preprocessor_config.json", {"size": 336})
    found = diff(old, new)
    assert found.kv.status is KvStatus.INVALID
    assert found.kv.reasons[0].startswith("the preprocessor changed: preprocessor_config.json changed (size 224 → 336)")


def test_a_file_beside_the_configuration_is_told_as_a_file(tmp_path: Path) -> None:
    """Not as a key of the configuration, and as a preprocessor only if it is one."""
    old, new = pair_of(tmp_path)
    write_json(old / "gone.json", {"a": 1})
    (new / "table.json").write_text("[1]")
    for side, text in ((old, "[1]"), (new, "[2]")):
        (side / "list.json").write_text(text)
    found = diff(old, new)
    assert found.config == ()
    assert found.files == (
        FileChange(name="gone.json", edit=FileEdit.REMOVED),
        FileChange(name="list.json", edit=FileEdit.CHANGED),
        FileChange(name="table.json", edit=FileEdit.ADDED),
    )
    assert found.summary == "Old KV is invalid from layer 0 on: 3 files beside config.json changed."
    assert found.kv.reasons == (
        "gone.json was removed, which no list of ours knows, so it counts: every layer is invalid",
        "list.json changed, which no list of ours knows, so it counts: every layer is invalid",
        "table.json was added, which no list of ours knows, so it counts: every layer is invalid",
    )
    assert diff_verdict(found, part="preprocessor") is Verdict.PASS


def test_many_files_do_not_drown_the_reasons(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path)
    for number in range(9):
        write_json(new / f"{number}.json", {})
    assert diff(old, new).kv.reasons[5:] == ("and 4 more files beside config.json changed",)


def test_long_values_are_cut_to_where_they_differ(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path)
    for side, word in ((old, "OLD"), (new, "NEW")):
        write_json(side / "processor_config.json", {"chat_template": "x" * 5000 + word + "y" * 5000})
    (reason,) = diff(old, new).kv.reasons
    assert "…xxxxxxxxxxxxxOLDyyy" in reason
    assert "…xxxxxxxxxxxxxNEWyyy" in reason
    assert len(reason) < 250


def test_a_preprocessor_of_a_model_without_a_rule_is_unknown(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path, config_json("whisper"))
    write_json(new / "preprocessor_config.json", {"size": 336})
    found = diff(old, new)
    assert found.kv.status is KvStatus.UNKNOWN
    assert found.summary.endswith("; preprocessor_config.json (size 224 → 336) changed.")
    assert diff_verdict(found, part="preprocessor") is Verdict.FAIL


def test_who_saved_a_preprocessor_does_not_count(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path, VISION)
    write_json(new / "preprocessor_config.json", {"transformers_version": "5", "size": 224})
    assert diff(old, new).changed == ()


def test_a_preprocessor_that_is_no_json_counts_by_its_bytes(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path, VISION)
    (new / "preprocessor_config.json").write_text("{")
    assert diff(old, new).files == (FileChange(name="preprocessor_config.json", edit=FileEdit.CHANGED),)


def test_saved_fingerprints_tell_files_as_releases_do(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path, OWN_CODE)
    write_json(new / "preprocessor_config.json", {"size": 336})
    (new / "modeling_own.py").write_text("class Own: pass\n")
    read = diff(old, new)
    for side in (old, new):
        artifacts.write(side.with_suffix(".json"), load_release(side))
    saved = diff(old.with_suffix(".json"), new.with_suffix(".json"))
    assert (saved.files, saved.code, saved.kv) == (read.files, read.code, read.kv)


@pytest.mark.parametrize("config", [None, VISION], ids=["text", "vision"])
def test_a_fingerprint_from_before_files_counted_proves_nothing(tmp_path: Path, config: JsonObject | None) -> None:
    """Neither that they stayed, nor that one was added."""
    old, new = (write_release(tmp_path / name, config=config) for name in ("old", "new"))
    older = as_saved_before(old)
    for _ in range(2):
        for sides in ((older, new), (new, older)):
            found = diff(*sides)
            assert found.kv.status is KvStatus.UNKNOWN
            assert any("was saved before the files beside config.json" in reason for reason in found.kv.reasons)
            assert (found.config, found.files) == ((), ())
            for part in ("kv", "preprocessor", "any"):
                assert diff_verdict(found, part=part) is not Verdict.PASS
            assert diff_verdict(found, part="preprocessor") is Verdict.INCONCLUSIVE
        write_json(new / "preprocessor_config.json", {"size": 336})
