"""The canonical form of each model type's configuration is frozen with its rule: code makes it, so digests pin it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import encode_json
from kvrelease.release.families import FAMILY_OF_TYPE
from kvrelease.release.model_config import canonical_config
from tests.release.test_notations import files

FORMS = Path(__file__).parent / "recorded" / "canonical_forms.json"
FILES = 40


def form_of(model_type: str) -> str:
    """BLAKE3 of the canonical forms of random files of a type."""
    forms = blake3()
    for raw in files(model_type, count=FILES):
        forms.update(encode_json(canonical_config(raw).entries))
    return forms.hexdigest()


@pytest.mark.parametrize("model_type", sorted(FAMILY_OF_TYPE))
def test_a_canonical_form_is_frozen_with_its_rule(model_type: str, request: pytest.FixtureRequest) -> None:
    """Whatever changes one renames digests that people hold: it needs another rule's name."""
    known: JsonObject = json.loads(FORMS.read_text(encoding="utf-8"))
    if request.config.getoption("--update-golden") and model_type not in known:
        known[model_type] = form_of(model_type)
        FORMS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert known.get(model_type) == form_of(model_type)
