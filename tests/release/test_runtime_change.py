"""Which fields of two runtimes differ; what a side does not state is never the same."""

from __future__ import annotations

import msgspec
import pytest

from kvrelease.release.runtime_change import (
    NOT_COMPARED,
    RuntimeChange,
    RuntimeField,
    RuntimeStatus,
    StatedRuntime,
    compare_runtimes,
)

KNOWN = ("engine", "version", "dtype")


def stated(name: str | None = None, **fields: str) -> StatedRuntime:
    return StatedRuntime(source="a.yaml", fields=fields, name=name)


def compare(old: StatedRuntime | None, new: StatedRuntime | None) -> RuntimeChange:
    return compare_runtimes(old, new, known_fields=KNOWN)


def test_the_fields_that_differ_are_named() -> None:
    found = compare(stated("a", engine="vllm", version="1"), stated("b", engine="vllm", version="2"))
    assert found == RuntimeChange(
        status=RuntimeStatus.DIFFERENT,
        fields=(RuntimeField(field="version", old="1", new="2"),),
        unread=("dtype",),
        sentence="the runtime changed (version 1 → 2): the same weights make other KV, or KV in another layout",
    )


def test_equal_fields_are_the_same_and_what_neither_states_is_said() -> None:
    found = compare(stated("a", engine="vllm", version="1"), stated("a", engine="vllm", version="1"))
    assert found.status is RuntimeStatus.SAME
    assert found.sentence.endswith("; neither states dtype")
    assert compare(stated("a", engine="vllm", version="1"), stated("a", engine="vllm", version="1")).sentence == (
        "the runtime is the same in all that is stated (engine, version); neither states dtype"
    )


def test_without_engine_and_version_on_both_sides_nothing_is_the_same() -> None:
    """Every other field has a default; these two have none, and under another of them KV is other bytes."""
    typo = stated("a", tensor_paralel_size="2")
    found = compare(typo, typo)
    assert found.status is RuntimeStatus.UNKNOWN
    assert found.sentence == (
        "whether the runtime changed is not known: neither side states engine, version; what both state is the same "
        "(tensor_paralel_size); kvrelease knows no field tensor_paralel_size"
    )
    assert found.unrecognised == ("tensor_paralel_size",)
    for fields in ({"engine": "vllm"}, {"version": "1", "dtype": "bfloat16"}):
        assert compare(stated("a", **fields), stated("a", **fields)).status is RuntimeStatus.UNKNOWN


def test_a_namespace_stands_for_what_the_other_side_declares_under_the_same_name() -> None:
    found = compare(stated("abcd"), stated("abcd", engine="vllm", version="1"))
    assert found.status is RuntimeStatus.SAME
    assert (
        found.sentence
        == "the runtime is the same: its name is abcd on both sides (engine, version); neither states dtype"
    )
    alone = compare(stated("abcd"), stated("abcd"))
    assert alone.status is RuntimeStatus.UNKNOWN
    assert alone.sentence == (
        "whether the runtime changed is not known: both namespaces say abcd, and neither file says whether engine, "
        "version are declared in it; give a namespace artifact, or the YAML that declares it"
    )


@pytest.mark.parametrize(
    ("field", "old", "new", "status"),
    [
        ("dtype", "BF16", "torch.bfloat16", RuntimeStatus.SAME),
        ("dtype", "half", "fp16", RuntimeStatus.SAME),
        ("dtype", "float16", "bfloat16", RuntimeStatus.DIFFERENT),
        ("kv_cache_dtype", "FP8", "fp8", RuntimeStatus.SAME),
        ("kv_cache_dtype", "fp8", "fp8_e5m2", RuntimeStatus.DIFFERENT),
        ("block_size", "16", "16.0", RuntimeStatus.SAME),
        ("block_size", "16", "16.5", RuntimeStatus.DIFFERENT),
        ("max_model_len", "auto", "16", RuntimeStatus.DIFFERENT),
        ("engine", "llama.cpp", "llamacpp", RuntimeStatus.SAME),
        ("version", "v1", "1", RuntimeStatus.SAME),
        ("version", "1.10", "1.1", RuntimeStatus.DIFFERENT),
        ("version", "1.0", "1", RuntimeStatus.DIFFERENT),
        ("overrides", "A", "a", RuntimeStatus.DIFFERENT),
    ],
)
def test_one_setting_in_two_spellings_is_one(field: str, old: str, new: str, status: RuntimeStatus) -> None:
    base = {"engine": "vllm", "version": "1"}
    found = compare(stated("a", **{**base, field: old}), stated("b", **{**base, field: new}))
    assert found.status is status
    if status is RuntimeStatus.SAME:
        assert f"written in two ways ({field} {old}, {new}), so that their namespaces differ" in found.sentence


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (stated(engine="vllm"), stated(engine="vllm", version="1"), RuntimeStatus.UNKNOWN),
        (stated("abcd"), stated("abcd"), RuntimeStatus.UNKNOWN),
        (stated("abcd"), stated("efgh"), RuntimeStatus.DIFFERENT),
        (stated("abcd"), stated("efgh", engine="vllm"), RuntimeStatus.DIFFERENT),
        (stated("abcd"), stated(engine="vllm"), RuntimeStatus.UNKNOWN),
        (stated("abcd", engine="vllm"), stated("efgh", engine="vllm", version="1"), RuntimeStatus.UNKNOWN),
        (stated(), stated(engine="vllm", version="1"), RuntimeStatus.UNKNOWN),
        (stated(engine="vllm", version="1"), stated(), RuntimeStatus.UNKNOWN),
        (stated("abcd"), stated(), RuntimeStatus.UNKNOWN),
        (stated(), stated(), RuntimeStatus.UNKNOWN),
        (None, stated(engine="vllm"), RuntimeStatus.NOT_COMPARED),
    ],
)
def test_what_is_not_stated_is_never_the_same(
    old: StatedRuntime | None, new: StatedRuntime | None, status: RuntimeStatus
) -> None:
    assert compare(old, new).status is status


def test_a_file_that_declares_no_runtime_is_named() -> None:
    silent = StatedRuntime(source="ns.json", fields={}, name=None)
    found = compare(silent, stated("a", engine="vllm"))
    assert found.sentence == "whether the runtime changed is not known: ns.json declares none"
    assert found.fields == (RuntimeField(field="engine", old=None, new="vllm"),)
    other = msgspec.structs.replace(silent, source="other.json")
    assert (
        compare(silent, other).sentence
        == "whether the runtime changed is not known: ns.json and other.json declare none"
    )


def test_no_file_is_not_compared() -> None:
    assert compare(None, None) == NOT_COMPARED


def test_no_sentence_speaks_of_a_namespace_that_no_file_has() -> None:
    """YAML declares fields, which give the runtime a name; it lies in no namespace."""
    other = compare(stated("abcd"), stated("efgh", engine="vllm", version="1"))
    assert other.sentence == "the runtime changed: its name was abcd and is efgh, and no file says by which field"
    half = compare(stated("abcd"), stated("abcd", engine="vllm"))
    assert half.sentence == (
        "whether the runtime changed is not known: its name is abcd on both sides (engine), without version"
    )
    one = compare(stated("abcd"), stated(engine="vllm"))
    assert one.sentence == "whether the runtime changed is not known: only one side states engine"
    assert one.fields == (RuntimeField(field="engine", old=None, new="vllm"),)
