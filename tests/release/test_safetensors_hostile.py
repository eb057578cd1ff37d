"""Headers, indexes and configurations that somebody made to break their readers."""

from __future__ import annotations

import random
from pathlib import Path

from kvrelease import artifacts
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.report.diff import diff_document
from kvrelease.report.fingerprint import fingerprint_document
from kvrelease.report.terminal import render_text
from tests.release.hostile import run_cases
from tests.release.hostile_safetensors import write_hostile

# Seeds that failed once, in this order of writing; the first few hundred run every time besides.
KEPT_SEEDS = (1068,)
UNIT_CASES = 400

# The files have some KB: more was allocated because a file said so. A hundred thousand nested brackets take 5 MB.
MAX_PEAK_BYTES = 16 * 2**20


def test_whatever_a_directory_claims_it_is_a_release_or_an_error_of_ours(tmp_path: Path) -> None:
    def run_case(seed: int) -> str:
        write_hostile(tmp_path, random.Random(seed))
        found = load_release(tmp_path, jobs=1)
        assert artifacts.from_json(artifacts.to_json(found).encode(), Fingerprint, source="memory") == found
        page = render_text(fingerprint_document(found)) + render_text(diff_document(diff_fingerprints(found, found)))
        assert all(line.isprintable() for line in page.splitlines())
        return "release"

    outcomes = run_cases(run_case, kept=KEPT_SEEDS, unit_cases=UNIT_CASES, max_peak_bytes=MAX_PEAK_BYTES)
    # Else the changes miss the formats, or nothing gets past the first check.
    assert min(outcomes[word] for word in ("release", "damaged", "absent")) > 0.01 * UNIT_CASES
