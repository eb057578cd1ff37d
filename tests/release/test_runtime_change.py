"""Which fields of two runtimes differ; what a side does not state is never the same."""

from __future__ import annotations

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
    assert compare(stated(engine="vllm"), stated(engine="vllm")).sentence == (
        "the runtime is the same in all that is stated (engine); neither states version, dtype"
    )


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (stated(engine="vllm"), stated(engine="vllm", version="1"), RuntimeStatus.UNKNOWN),
        (stated("abcd"), stated("abcd"), RuntimeStatus.SAME),
        (stated("abcd"), stated("efgh"), RuntimeStatus.DIFFERENT),
        (stated("abcd"), stated("efgh", engine="vllm"), RuntimeStatus.DIFFERENT),
        (stated("abcd"), stated(engine="vllm"), RuntimeStatus.UNKNOWN),
        (stated("abcd", engine="vllm"), stated("efgh", engine="vllm", version="1"), RuntimeStatus.UNKNOWN),
        (stated(), stated(engine="vllm"), RuntimeStatus.NOT_COMPARED),
        (stated(), stated(), RuntimeStatus.NOT_COMPARED),
        (None, stated(engine="vllm"), RuntimeStatus.NOT_COMPARED),
    ],
)
def test_what_is_not_stated_is_never_the_same(
    old: StatedRuntime | None, new: StatedRuntime | None, status: RuntimeStatus
) -> None:
    assert compare(old, new).status is status


def test_no_file_is_not_compared() -> None:
    assert compare(None, None) == NOT_COMPARED
