"""A fast subset of the oracle, for every family; `python -m benchmarks.oracle` asks for every tensor and key."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from kvrelease.release.families import FAMILIES, FAMILY_OF_TYPE
from kvrelease.release.families.family import Family
from kvrelease.release.families.llama import LLAMA
from kvrelease.release.families.pretrained import HARMLESS_KEYS
from tests.release.oracle import UNFIT, Answer, Case, Outcome, TinyModel, first_change
from tests.release.oracle_cases import CASES
from tests.release.oracle_cases.llama import HARMLESS, LLAMA_CASES


@pytest.mark.parametrize("family", [family for family in FAMILIES if family is not LLAMA], ids=lambda one: one.rule)
def test_no_rule_calls_valid_what_changed(family: Family, tmp_path: Path) -> None:
    """Of every part of the family one tensor, and every key that it alone calls harmless."""
    seen = set(HARMLESS_KEYS)  # below
    for number, case in enumerate(case for case in CASES if case.model_type in family.types):
        model = TinyModel(case, tmp_path / str(number))
        asked = {kind: what for kind, what in model.doubtful(case).items() if kind.partition("=")[0] not in seen}
        seen |= {kind.partition("=")[0] for kind in asked}
        answers = list(model.answers(case, only=frozenset(asked.values())))
        assert len(answers) == len(asked)
        assert [answer for answer in answers if answer.outcome is Outcome.FALSE_VALID] == []


@pytest.mark.parametrize("case", LLAMA_CASES, ids=lambda case: case.label)
def test_the_rule_of_llama_is_exact_for_every_tensor(case: Case, tmp_path: Path) -> None:
    """More than is promised, and true: keep it sharp."""
    model = TinyModel(case, tmp_path)
    answers = list(model.answers(case, only=frozenset(model.tensors)))
    assert len(answers) > 9 * 3
    assert [answer for answer in answers if answer.outcome is not Outcome.EXACT] == []


def test_what_no_family_counts_leaves_kv_alone(tmp_path: Path) -> None:
    (case, *_) = LLAMA_CASES
    assert HARMLESS.keys() == HARMLESS_KEYS - {"tie_word_embeddings"}  # decides which tensors count
    asked = frozenset(f"{key}={json.dumps(value)}" for key, values in HARMLESS.items() for value in values)
    answers = list(TinyModel(case, tmp_path).answers(case, only=asked))
    assert {answer.what for answer in answers} == asked
    assert [answer for answer in answers if answer.predicted is not None or answer.measured is not None] == []


def test_every_model_type_has_a_case() -> None:
    assert {case.model_type for case in CASES} == set(FAMILY_OF_TYPE)


@pytest.mark.parametrize(
    ("predicted", "measured", "outcome"),
    [
        (2, 2, Outcome.EXACT),
        (None, None, Outcome.EXACT),
        (1, 2, Outcome.CAREFUL),
        (0, None, Outcome.NEEDLESS),
        (None, 0, Outcome.FALSE_VALID),
        (2, 1, Outcome.FALSE_VALID),
        (0, UNFIT, Outcome.UNFIT),
        (None, UNFIT, Outcome.FALSE_VALID),
    ],
)
def test_outcomes(predicted: int | None, measured: int | None, outcome: Outcome) -> None:
    assert Answer(what="x", predicted=predicted, measured=measured).outcome is outcome


def test_a_layer_differs_where_one_bit_does() -> None:
    """The sign of a zero is one, and a NaN is no other NaN than itself."""
    zeros, nans = torch.zeros(3), torch.full((3,), math.nan)
    assert first_change([[zeros], [nans]], [[zeros.clone()], [nans.clone()]]) is None
    assert first_change([[zeros], [zeros]], [[zeros], [-zeros]]) == 1
    assert first_change([[zeros]], [[zeros.bfloat16()]]) == 0
    assert first_change([[zeros]], [[zeros.view(1, 3)]]) == 0
    assert first_change([[zeros]], [[zeros, zeros]]) == 0
    assert first_change([[torch.zeros(())]], [[torch.zeros(())]]) is None


BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_every_case_has_its_row_in_the_published_table_and_no_row_is_of_none() -> None:
    """`python -m benchmarks.oracle` makes it; a new family's rows are part of adding it (CONTRIBUTING.md)."""
    text = BENCHMARKS.read_text(encoding="utf-8").partition("## Dependency rules")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[:2] for line in text.splitlines() if line.startswith("| ") and "`" in line]
    assert [(label.removeprefix("| "), rule) for label, rule in rows] == [
        (case.label, f"`{FAMILY_OF_TYPE[case.model_type].rule}`") for case in CASES
    ]
