from __future__ import annotations

import itertools

import pytest

from kvrelease.binding.runtime import (
    UNDECLARED,
    Runtime,
    declared_runtime,
    other_engine,
    require_agreement,
    unknown_field_warnings,
)
from kvrelease.binding.target import BindingTarget
from kvrelease.config import RUNTIME_FIELDS
from kvrelease.errors import UsageError

FIELDS: dict[str, str | int | float | bool] = {"engine": "vllm", "version": "0.32.0", "block_size": 16}


def test_the_digest_does_not_depend_on_the_order_of_the_fields() -> None:
    orders = itertools.permutations(FIELDS.items())
    assert len({declared_runtime(dict(order)).digest for order in orders}) == 1


@pytest.mark.parametrize(
    "other",
    [
        {**FIELDS, "version": "0.32.1"},
        {**FIELDS, "dtype": "bfloat16"},
        {"engine": "vllm", "version": "0.32.0"},
        {"engine": "vllmversion", "block_size": 16, "x": "0.32.0"},
    ],
)
def test_another_runtime_has_another_digest(other: dict[str, str | int | float | bool]) -> None:
    assert declared_runtime(other).digest != declared_runtime(FIELDS).digest


def test_fields_do_not_run_into_each_other() -> None:
    assert declared_runtime({"a": "bc"}).digest != declared_runtime({"ab": "c"}).digest


def test_the_digest_is_pinned() -> None:
    """BLAKE3-256, pinned: a change of the encoding needs another algorithm name."""
    assert declared_runtime({"engine": "vllm", "block_size": 16}).digest == (
        "kvrt0:49e8ba6512820754449d937c8971e2b5dc069b7fb2e2fcdae68c480f5eb733a1"
    )


def test_a_name_fits_a_namespace() -> None:
    name = declared_runtime(FIELDS).name
    assert len(name) == 8
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz234567")


def test_nothing_declared_is_undeclared_and_lists_everything_as_unread() -> None:
    assert declared_runtime({}) == Runtime(digest=None, fields={}, unread=RUNTIME_FIELDS)
    assert declared_runtime({}).name == UNDECLARED


def test_what_was_not_declared_is_listed() -> None:
    assert set(declared_runtime(FIELDS).unread) == set(RUNTIME_FIELDS) - set(FIELDS)


def test_values_are_written_as_an_engine_tells_them() -> None:
    found = declared_runtime({"a": True, "b": 16, "c": 0.5, "d": "x"})
    assert found.fields == {"a": "true", "b": "16", "c": "0.5", "d": "x"}


def test_a_declaration_that_the_engine_contradicts_is_told_with_both_values() -> None:
    with pytest.raises(UsageError, match=r"says version=0\.32\.0, the engine at http://a says 0\.33\.0"):
        require_agreement(declared_runtime(FIELDS), told={"version": "0.33.0"}, url="http://a")


def test_a_declaration_that_the_engine_confirms_or_is_silent_about_agrees() -> None:
    require_agreement(declared_runtime(FIELDS), told={"block_size": "16", "other": "x"}, url="http://a")


def test_another_spelling_of_what_the_engine_tells_agrees() -> None:
    told = {"dtype": "torch.bfloat16", "block_size": "16"}
    require_agreement(declared_runtime({"dtype": "BF16", "block_size": 16.0}), told=told, url="http://a")


def test_a_field_that_nobody_knows_is_a_warning_with_the_one_that_was_meant() -> None:
    assert unknown_field_warnings(FIELDS, source="a.yaml") == ()
    assert unknown_field_warnings({**FIELDS, "tensor_paralel_size": 2, "x": 1}, source="a.yaml") == (
        "a.yaml: runtime.tensor_paralel_size is no field that kvrelease knows (did you mean tensor_parallel_size?): it "
        "counts as it is written, and is not checked against the engine",
        "a.yaml: runtime.x is no field that kvrelease knows: it counts as it is written, and is not checked against "
        "the engine",
    )


def test_undeclared_agrees_with_everything() -> None:
    require_agreement(declared_runtime({}), told={"version": "0.33.0"}, url="http://a")


@pytest.mark.parametrize(
    ("fields", "target", "other"),
    [
        ({"engine": "sglang"}, BindingTarget.VLLM, "sglang"),
        ({"engine": "vLLM"}, BindingTarget.VLLM, "vLLM"),
        ({"engine": "vllm"}, BindingTarget.VLLM, None),
        ({"version": "1"}, BindingTarget.VLLM, None),
        ({}, BindingTarget.VLLM, None),
        ({"engine": "TensorRT-LLM"}, BindingTarget.OPENAI, None),
        ({"engine": "vllm"}, BindingTarget.OPENAI, None),
        ({"engine": "sglang"}, BindingTarget.LMCACHE, None),
        ({"engine": "llamacpp"}, BindingTarget.LMCACHE, "llamacpp"),
        ({"engine": "vllm"}, BindingTarget.TENSORRT_LLM, "vllm"),
    ],
)
def test_a_declaration_of_another_engine_than_the_one_to_be_bound(
    fields: dict[str, str | int | float | bool], target: BindingTarget, other: str | None
) -> None:
    """`openai` is any server that speaks the protocol, so it contradicts nothing; a layer stands below several."""
    assert other_engine(declared_runtime(fields), target=target) == other
