from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kvrelease.selection.select import select
from kvrelease.selection.set_file import set_lines
from kvrelease.workload.budget import Budget
from kvrelease.workload.loading import load_prompt_set
from tests.selection.builders import chat, desk_log, opened


def test_the_set_is_read_back_with_its_weights(tmp_path: Path) -> None:
    found = select(opened(desk_log(200)), source="log.jsonl", budget=Budget(requests=4), held_out_share=0.2)
    (tmp_path / "set.jsonl").write_text(set_lines(found.report.prompts, found.requests))
    loaded = load_prompt_set("set.jsonl", directory=tmp_path)
    assert [(one.id, one.weight) for one in loaded] == [(one.id, one.weight) for one in found.report.prompts]
    assert [one.body for one in loaded] == [one.body for one in found.requests]


def test_a_tenants_salt_goes_with_its_prompt(tmp_path: Path) -> None:
    log = [chat("a" * 200, "x", salt=salt, line=line) for line, salt in enumerate(("t1", "t1", None, None), start=1)]
    found = select(opened(log), source="log.jsonl", budget=Budget(requests=4), held_out_share=0)
    (tmp_path / "set.jsonl").write_text(set_lines(found.report.prompts, found.requests))
    loaded = load_prompt_set("set.jsonl", directory=tmp_path)
    assert sorted((one.id, one.salt) for one in loaded) == [("line-1", "t1"), ("line-3", None)]


@pytest.mark.parametrize("weights", [(1e15, 1e15, 1e15, 3.0), (1e15, 1e15, 1e-3, 1e-3), (1e-300, 1e-300, 1.0, 1.0)])
def test_whatever_weights_a_log_has_the_set_can_be_read(tmp_path: Path, weights: tuple[float, ...]) -> None:
    heads = ("a" * 200, "a" * 200, "a" * 100 + "b" * 100, "a" * 100 + "b" * 100)
    log = [
        replace(chat(head, "x", line=line), weight=weight)
        for line, (head, weight) in enumerate(zip(heads, weights, strict=True), start=1)
    ]
    found = select(opened(log), source="log.jsonl", budget=Budget(requests=4), held_out_share=0)
    assert found.report.prompts
    (tmp_path / "set.jsonl").write_text(set_lines(found.report.prompts, found.requests))
    loaded = load_prompt_set("set.jsonl", directory=tmp_path)
    assert [(one.id, one.weight) for one in loaded] == [(one.id, one.weight) for one in found.report.prompts]
