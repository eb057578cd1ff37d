"""Code and preprocessors beside the weights: a change counts, and what was not read is never the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.artifacts import JsonObject, Verdict
from kvrelease.release.diff import diff_fingerprints, diff_verdict
from kvrelease.release.diff_record import Diff, KvStatus
from kvrelease.release.file_changes import FileChanges
from kvrelease.release.fingerprint import load_release
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


def without_details(release: Path) -> Path:
    """Its fingerprint as it was saved before details were kept."""
    path = release.parent / f"{release.name}.json"
    artifacts.write(path, load_release(release))
    older = json.loads(path.read_text())
    del older["details"]
    path.write_text(json.dumps(older))
    return path


# --- code ---


def test_changed_code_of_the_model_makes_every_layer_invalid(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path, OWN_CODE)
    assert diff(old, new).kv.status is KvStatus.VALID
    (new / "modeling_own.py").write_text("class Own: pass\n")
    (new / "more.py").write_text("")
    found = diff(old, new)
    assert found.code == FileChanges(added=("more.py",), changed=("modeling_own.py",))
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
    assert "config.json takes code from 'acme/code', which is no part of the release and was not read" in found.summary
    assert diff_verdict(found, part="code") is Verdict.INCONCLUSIVE
    assert diff_verdict(found, part="any") is Verdict.INCONCLUSIVE


def test_code_that_only_the_tokenizer_brings_leaves_kv_alone(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path)
    for side in (old, new):
        write_text_side(side)
        write_json(side / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}})
    (new / "modeling_own.py").write_text("class Own: pass\n")
    found = diff(old, new)
    assert found.kv.status is KvStatus.VALID
    assert found.kv.reasons == (
        "note: code that 'tokenizer_config.json' brings changed: 'modeling_own.py' changed; the same text may become "
        "other ids",
    )
    write_json(new / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": "acme/code--tokenization.Own"}})
    assert any("code from 'acme/code' was not read" in reason for reason in diff(old, new).kv.reasons)


def test_code_that_nobody_names_does_not_count(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path)
    (new / "modeling_own.py").write_text("class Own: pass\n")
    assert diff(old, new).changed == ()


def test_an_older_fingerprint_with_another_digest_does_not_say_the_code(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path, OWN_CODE)
    assert diff_verdict(diff(without_details(old), new), part="code") is Verdict.PASS  # the config digest covers it
    (new / "modeling_own.py").write_text("class Own: pass\n")
    found = diff(without_details(old), new)
    assert (found.kv.status, diff_verdict(found, part="code")) == (KvStatus.UNKNOWN, Verdict.INCONCLUSIVE)


# --- preprocessors ---


@pytest.mark.parametrize(
    "name",
    ["preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "chat_template.json"],
)
def test_a_changed_preprocessor_makes_kv_of_a_multimodal_model_invalid(tmp_path: Path, name: str) -> None:
    old, new = pair_of(tmp_path, VISION)
    write_json(new / name, {"size": 336})
    found = diff(old, new)
    assert (found.kv.status, found.kv.first_invalid_layer) == (KvStatus.INVALID, 0)
    assert found.kv.reasons[0].startswith(f"the preprocessor changed: '{name}' ")
    assert found.summary == "Old KV is invalid from layer 0 on: the preprocessor changed."
    assert diff_verdict(found, part="preprocessor") is Verdict.FAIL
    assert diff_verdict(found, part="any") is Verdict.FAIL


def test_a_preprocessor_beside_a_model_of_text_is_a_note(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path)
    write_json(new / "preprocessor_config.json", {"size": 336})
    found = diff(old, new)
    assert found.kv.status is KvStatus.VALID
    assert "config.json says that the model takes text alone" in found.kv.reasons[0]


def test_a_preprocessor_of_a_model_without_a_rule_is_unknown(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path, config_json("whisper"))
    write_json(new / "preprocessor_config.json", {"size": 336})
    found = diff(old, new)
    assert found.kv.status is KvStatus.UNKNOWN
    assert "the preprocessor changed ('preprocessor_config.json' changed)" in found.summary


def test_who_saved_a_preprocessor_does_not_count(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path, VISION)
    write_json(new / "preprocessor_config.json", {"transformers_version": "5", "size": 224})
    assert diff(old, new).changed == ()


def test_a_preprocessor_that_is_no_json_counts_by_its_bytes(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path, VISION)
    (new / "preprocessor_config.json").write_text("{")
    assert diff(old, new).preprocessor == FileChanges(changed=("preprocessor_config.json",))


def test_an_older_fingerprint_of_a_multimodal_model_proves_nothing(tmp_path: Path) -> None:
    old, new = pair_of(tmp_path, VISION)
    found = diff(without_details(old), new)
    assert found.kv.status is KvStatus.UNKNOWN
    assert "does not say what its preprocessor was" in found.summary
    assert diff_verdict(found, part="preprocessor") is Verdict.INCONCLUSIVE
    old, new = pair_of(tmp_path)
    assert diff(without_details(old), new).kv.status is KvStatus.VALID
