"""What the digests of a GGUF release promise, and what a diff of such releases says."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.errors import InputError
from kvrelease.release.content import Format
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import ConfigChange, KvStatus
from kvrelease.release.fingerprint import Digests, Fingerprint
from kvrelease.release.gguf_types import GGML_TYPES
from kvrelease.release.loading import load_release
from tests.release import naive_gguf
from tests.release.builders import config_json, write_json, write_release, write_text_side
from tests.release.fingerprints import STAYS_VALID
from tests.release.gguf_writer import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    TEMPLATE,
    U8,
    U64,
    Metadata,
    Tensor,
    Value,
    array,
    f32,
    f32_tensor,
    gguf_bytes,
    small_model,
    small_tensors,
    text,
    u32,
    write_gguf,
)
from tests.release.naive_gguf import SPECIFICATION, Naive


def fingerprint(
    tmp_path: Path, metadata: Metadata | None = None, tensors: list[Tensor] | None = None, *, name: str = "support"
) -> Fingerprint:
    return load_release(write_gguf(tmp_path / f"{name}.gguf", metadata, tensors))


def changed(before: Fingerprint, after: Fingerprint) -> set[str]:
    names = Digests.__struct_fields__
    return {name for name in names if getattr(before.digests, name) != getattr(after.digests, name)}


def test_a_fingerprint_of_a_file_says_what_it_is(tmp_path: Path) -> None:
    found = fingerprint(tmp_path)
    assert found.format is Format.GGUF
    assert found.release.name == "support"
    assert found.release.kv_name is not None
    assert (found.tensors, found.bytes) == (3, sum(len(tensor.data) for tensor in small_tensors()))
    assert found.digests.kv.startswith("kvfp1-full/all.1:")
    assert found.labels == {"general.file_type": 0, "general.name": "Support 1.2"}
    assert found.config is not None
    assert found.config["llama.rope.freq_base"] == 10000.0
    assert found.warnings == (
        "no dependency rule is known for the tensors of GGUF files: so every tensor and every configuration key counts "
        "for the kv digest",
    )
    saved = tmp_path / "saved.json"
    artifacts.write(saved, found)
    assert load_release(saved) == found


CHANGES: dict[str, tuple[dict[str, Value | None], set[str]]] = {
    "chat template": ({"tokenizer__chat_template": text(TEMPLATE + "!")}, {"template", "release"}),
    "a second template": ({"tokenizer__chat_template__rag": text("x")}, {"template", "release"}),
    "token": (
        {"tokenizer__ggml__tokens": array(STRING, ["a", "b", "ab", "\u00e8", ""])},
        {"tokenizer", "release"},
    ),
    "token moved over a boundary": (
        {"tokenizer__ggml__tokens": array(STRING, ["ab", "", "ab", "\u00e9", ""])},
        {"tokenizer", "release"},
    ),
    "special token": ({"tokenizer__ggml__bos_token_id": u32(1)}, {"tokenizer", "release"}),
    "sampling": ({"general__sampling__temp": f32(0.5)}, {"generation", "release"}),
    "name": ({"general__name": text("Support 1.3")}, set()),
    "a name by which llama.cpp strips blanks": ({"general__name": text("My Phi-3 mini")}, {"tokenizer", "release"}),
    "licence": ({"general__license": text("mit")}, set()),
    "base model": ({"general__base_model__0__name": text("SmolLM")}, set()),
    "rope": ({"llama__rope__freq_base": f32(500000.0)}, {"config", "kv", "release"}),
    "quantisation version": ({"general__quantization_version": u32(3)}, {"config", "kv", "release"}),
    "unknown key": ({"llama__new__trick": Value(BOOL, True)}, {"config", "kv", "release"}),
    "unknown general key": ({"general__trick": u32(1)}, {"config", "kv", "release"}),
    "large unknown value": ({"llama__table": array(U8, [1] * 9000)}, {"config", "kv", "release"}),
    "key removed": ({"llama__block_count": None}, {"config", "kv", "release"}),
    "same number of another width": ({"llama__block_count": Value(U64, 2)}, set()),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_of_metadata_changes_the_digests_it_belongs_to(case: str, tmp_path: Path) -> None:
    """Above all: an edited chat template leaves weights and KV alone (ggml-org/llama.cpp#8048, #8768, #7836)."""
    edits, expected = CHANGES[case]
    before = fingerprint(tmp_path)
    after = fingerprint(tmp_path, small_model(**edits), name="edited")
    assert changed(before, after) == expected


def test_names_that_llama_cpp_takes_alike_are_one_tokenizer(tmp_path: Path) -> None:
    names = ["Phi-3 Mini", "phi3-support v7", "Modern-BERT", "modern-bert phi3", "Llama"]
    found = [fingerprint(tmp_path, small_model(general__name=text(name)), name="x").digests.tokenizer for name in names]
    assert found[0] == found[1] == found[3]
    assert len({found[0], found[2], found[4]}) == 3


def test_a_large_value_counts_to_its_last_byte(tmp_path: Path) -> None:
    values = [1] * 9000
    before = fingerprint(tmp_path, small_model(llama__table=array(U8, values)))
    after = fingerprint(tmp_path, small_model(llama__table=array(U8, [*values[:-1], 2])), name="after")
    assert changed(before, after) == {"config", "kv", "release"}


@pytest.mark.parametrize("order", range(4))
def test_order_alignment_and_version_change_no_digest(order: int, tmp_path: Path) -> None:
    expected = fingerprint(tmp_path)
    generator = random.Random(order)
    pairs, tensors = list(small_model().items()), small_tensors()
    generator.shuffle(pairs)
    generator.shuffle(tensors)
    alignment = 8 << (2 * order)
    data = gguf_bytes([*pairs, ("general.alignment", u32(alignment))], tensors, version=2, alignment=alignment)
    path = tmp_path / "other.gguf"
    path.write_bytes(data)
    assert load_release(path).digests == expected.digests


def test_a_changed_renamed_reshaped_or_recast_tensor_changes_weights_and_kv(tmp_path: Path) -> None:
    before = fingerprint(tmp_path)
    first, second, third = small_tensors()
    variants = [
        [first, second, f32_tensor("output_norm.weight", (4,), 1)],
        [first, second, Tensor("output_norm", third.shape, third.type, third.data)],
        [Tensor(first.name, (5, 4), first.type, first.data), second, third],
        [Tensor(first.name, first.shape, I32_TYPE, first.data), second, third],
        [first, Tensor(second.name, second.shape, IQ4_NL_TYPE, second.data), third],
        [first, second],
    ]
    for number, tensors in enumerate(variants):
        after = fingerprint(tmp_path, None, tensors, name=f"variant{number}")
        assert changed(before, after) == {"weights", "kv", "release"}, number


I32_TYPE, IQ4_NL_TYPE = 26, 20  # as wide as F32; as Q4_0


def test_any_flipped_bit_changes_a_digest_is_refused_or_is_a_label_or_padding(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "support.gguf")
    before, original = load_release(path), path.read_bytes()
    generator = random.Random(3)
    outcomes = dict.fromkeys(("refused", "changed", "label", "layout"), 0)
    for _ in range(250):
        data = bytearray(original)
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
        try:
            after = load_release(path)
        except InputError:
            outcomes["refused"] += 1
            continue
        if "release" in changed(before, after):
            outcomes["changed"] += 1
        elif after.labels != before.labels:
            outcomes["label"] += 1
        else:  # padding, or the version word 2
            outcomes["layout"] += 1
    assert min(outcomes.values()) > 0
    assert outcomes["layout"] < 25, outcomes  # padding is 50 of 1,100 bytes


def test_an_all_zero_matrix_and_an_unknown_type_are_warnings(tmp_path: Path) -> None:
    tensors = [Tensor("blk.0.ffn_up.weight", (8, 8), 0, bytes(256)), Tensor("odd", (7,), 99, b"abc")]
    warnings = fingerprint(tmp_path, None, tensors).warnings
    assert any("1 weight matrices are all zero: 'blk.0.ffn_up.weight'" in warning for warning in warnings)
    assert "the size of tensors could not be checked for unknown dtypes: 'GGML_99'" in warnings


def test_a_second_implementation_agrees(tmp_path: Path) -> None:
    metadata = small_model(
        general__alignment=u32(64),
        llama__layers=array(I32, list(range(30))),
        llama__flags=array(BOOL, [True, False]),
        llama__big=array(F32, [0.5] * 2000),
        llama__odd=array(ARRAY, [array(STRING, ["x", ""]), array(F32, [float("nan"), float("inf")])]),
        llama__large=Value(U64, 2**64 - 1),
        general__uuid=text("x"),
        general__source__url=text("x"),
        general__name=text("Acme Phi3 modern-bert"),
        general__sampling__temp=f32(0.7),
        tokenizer__chat_template__tool_use=text("{{ a }}\r\n{{ b }}\r"),
    )
    tensors = [*small_tensors(), Tensor("blk.0.ffn_up.weight", (256, 2), 12, bytes(i % 251 for i in range(288)))]
    path = write_gguf(tmp_path / "support.gguf", metadata, tensors, alignment=64)
    found, other = load_release(path), Naive(path)
    payloads = other.payloads({tensor.name: len(tensor.data) for tensor in tensors})
    configuration = other.configuration()
    assert found.config == dict(sorted(configuration.items()))
    assert found.tensor_digests == {name: payload.hex() for name, payload in payloads.items()}
    assert found.digests.weights == naive_gguf.weights_digest(payloads)
    assert found.digests.kv == naive_gguf.kv_digest(payloads, configuration)
    assert found.digests.tokenizer == other.tokenizer()
    assert found.digests.template == other.template()
    assert found.digests.generation == other.generation()


def test_vectors_of_the_specification(tmp_path: Path) -> None:
    """A change here is a change of the algorithm, and needs another algorithm name."""
    metadata = {
        "general.architecture": text("llama"),
        "general.name": text("v1.2"),
        "llama.block_count": u32(1),
        "llama.rope.freq_base": f32(10000.0),
        "tokenizer.ggml.tokens": array(STRING, ["a", "b"]),
        "tokenizer.chat_template": text("{{ m }}"),
    }
    found = fingerprint(
        tmp_path,
        metadata,
        [
            Tensor("token_embd.weight", (2, 1), 0, bytes(range(8))),
            Tensor("blk.0.attn_k.weight", (32, 1), 8, bytes(range(0x22))),
        ],
    )
    digests = {name: getattr(found.digests, name) for name in Digests.__struct_fields__}
    published = dict(re.findall(r"^- `([^`]+)`: `([^`]+)`$", SPECIFICATION.read_text(), re.MULTILINE))
    assert published == {
        **found.tensor_digests,
        **{name: digest for name, digest in digests.items() if digest is not None},
        "kv name": found.release.kv_name,
    }
    assert found.digests.generation is None


def test_the_words_of_the_specification_are_those_of_the_table() -> None:
    assert naive_gguf.words() == {number: known.word for number, known in GGML_TYPES.items()}


def test_a_templates_digest_is_the_same_in_both_formats(tmp_path: Path) -> None:
    directory = write_text_side(write_release(tmp_path / "m"))
    write_json(directory / "tokenizer_config.json", {"chat_template": TEMPLATE})
    assert load_release(directory).digests.template == fingerprint(tmp_path).digests.template


def test_equal_releases_have_valid_kv_and_an_edited_template_keeps_it(tmp_path: Path) -> None:
    """A template sits in front of the tensors, so the file's own hash changes with it: https://github.com/ggml-org/llama.cpp/pull/8048,
    https://github.com/ggml-org/llama.cpp/issues/8768, https://github.com/ggml-org/llama.cpp/issues/7836
    """
    before = fingerprint(tmp_path)
    edited = fingerprint(tmp_path, small_model(tokenizer__chat_template=text("other")), name="edited")
    found = diff_fingerprints(before, edited)
    assert found.kv.status is KvStatus.VALID
    assert found.changed == ("release", "template")
    assert found.config == ()
    assert found.summary == f"{STAYS_VALID}, but prompts or answers may differ: the chat template changed."


def test_changed_metadata_are_told_as_configuration(tmp_path: Path) -> None:
    after = fingerprint(tmp_path, small_model(llama__rope__freq_base=f32(500000.0), llama__new=u32(1)), name="after")
    found = diff_fingerprints(fingerprint(tmp_path), after)
    assert found.kv.status is KvStatus.UNKNOWN
    assert found.config == (
        ConfigChange(key="llama.new", old=None, new=1, affects_kv=None),
        ConfigChange(key="llama.rope.freq_base", old=10000.0, new=500000.0, affects_kv=None),
    )
    assert any("the metadata changed in 'llama.rope.freq_base'" in reason for reason in found.kv.reasons)
    assert not any("config.json" in reason for reason in found.kv.reasons)


@pytest.mark.parametrize("model_type", ["llama", "other"])
def test_two_formats_are_never_compared(tmp_path: Path, model_type: str) -> None:
    """Also where both follow the rule `all.1`."""
    directory = load_release(write_release(tmp_path / "m", config=config_json(model_type)))
    file = fingerprint(tmp_path)
    for old, new in ((directory, file), (file, directory)):
        found = diff_fingerprints(old, new)
        assert found.kv.status is KvStatus.UNKNOWN
        assert f"the old release is {old.format}, the new one {new.format}: a conversion" in found.kv.reasons[0]
        assert not any("tokenizer" in text for text in (*found.kv.reasons, *found.kv.notes))


def test_a_fingerprint_that_was_saved_before_formats_is_of_safetensors(tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    artifacts.write(saved, load_release(write_release(tmp_path / "m")))
    old = json.loads(saved.read_text())
    assert (old.pop("format"), old.pop("labels")) == ("safetensors", {})
    write_json(saved, old)
    assert load_release(saved).format is Format.SAFETENSORS
