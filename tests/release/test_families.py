"""The families' tables: published as they are, and consistent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.release.families import FAMILIES
from kvrelease.release.families.family import Family, KeyEffect, Reach

RULES = Path(__file__).parents[2] / "docs" / "rules"
VALIDITY = RULES.parent / "kv-validity.md"


def published(family: Family) -> JsonObject:
    """A rule as docs/rules/ gives it to other implementations."""

    def reaches(parts: dict[str, Reach]) -> JsonObject:
        return {name: parts[name].value for name in sorted(parts)}

    return {
        "rule": family.rule,
        "layers_key": family.layers_key,
        "layers": [f"{stem}.N" for stem in family.stems],
        "norms": reaches(dict(family.norms)),
        "projections": reaches(dict(family.projections)),
        "parameters": reaches(dict(family.parameters)),
        "own_layer_if_quantized": sorted(family.fused),
        "embeddings": sorted(family.embeddings),
        "output_layer": sorted(family.outputs),
        "outside": reaches(dict(family.outside)),
        "harmless_keys": sorted(family.harmless),
        "defaults": {model_type: dict(sorted(table.items())) for model_type, table in sorted(family.types.items())},
    }


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.rule)
def test_a_rule_is_frozen_as_it_is_published(family: Family, request: pytest.FixtureRequest) -> None:
    """Whatever changes one of these files renames digests that people hold: it needs another rule's name."""
    path = RULES / f"{family.rule}.json"
    text = json.dumps(published(family), indent=1) + "\n"
    if request.config.getoption("--update-golden") and not path.exists():  # a new family's; the others are frozen
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_every_published_rule_is_one() -> None:
    names = "names"  # of no rule: test_names.py
    assert {path.stem for path in RULES.glob("*.json")} == {names, *(family.rule for family in FAMILIES)}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.rule)
def test_the_table_of_the_document_is_the_rule(family: Family) -> None:
    parts = sorted({**family.norms, **family.projections, **family.parameters}.items())
    own = ", ".join(f"`{name}`" for name, reach in parts if reach is Reach.OWN)
    types = ", ".join(f"`{model_type}`" for model_type in family.types)
    assert f"| `{family.rule}` | {types} | {own} |\n" in VALIDITY.read_text(encoding="utf-8")


def test_every_row_of_the_document_is_a_rule() -> None:
    table = VALIDITY.read_text(encoding="utf-8").partition("| rule | model types |")[2].partition("\n\n")[0]
    rows = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert rows[0] == FAMILIES[0].rule
    assert sorted(rows) == sorted(family.rule for family in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.rule)
def test_every_rule_is_explained_below_the_table(family: Family) -> None:
    headings = [line for line in VALIDITY.read_text(encoding="utf-8").splitlines() if line.startswith("##")]
    assert [line for line in headings if f"`{family.rule}`" in line]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.rule)
def test_a_part_has_one_place_and_fused_ones_are_parts(family: Family) -> None:
    places = [set(family.norms), set(family.projections), set(family.parameters)]
    assert len(set.union(*places)) == sum(map(len, places))
    assert family.fused <= family.norms.keys() | family.projections.keys()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.rule)
def test_a_key_that_says_what_is_computed_is_harmless_in_no_family(family: Family) -> None:
    for key in ("dtype", "hidden_size", "rope_parameters", "quantization_config", "model_type", "head_dim"):
        assert family.key_effect(key) is not KeyEffect.HARMLESS


def test_a_model_type_belongs_to_one_family() -> None:
    types = [model_type for family in FAMILIES for model_type in family.types]
    assert len(types) == len(set(types))
