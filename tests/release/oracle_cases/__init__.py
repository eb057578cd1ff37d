"""The tiny models of the oracle, one tuple for each group of families in `kvrelease.release.families`."""

from __future__ import annotations

from tests.release.oracle_cases.dense import DENSE_CASES
from tests.release.oracle_cases.experts import EXPERT_CASES
from tests.release.oracle_cases.llama import LLAMA_CASES

CASES = (
    *LLAMA_CASES,
    *DENSE_CASES,
    *EXPERT_CASES,
)
