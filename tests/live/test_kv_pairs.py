"""What kvrelease says of real upgrades of SmolLM2-135M, held against the K and V that transformers computes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.live.conftest import REPOSITORY
from tests.live.kv_pairs import COLUMNS, HEADING, LAYERS, LOSSY_SAVE, UPGRADES, Laboratory, Upgrade, laboratory


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with laboratory(tmp_path_factory.mktemp("pairs")) as opened:
        yield opened


@pytest.mark.parametrize("upgrade", UPGRADES, ids=lambda upgrade: upgrade.name)
def test_the_first_invalid_layer_is_the_first_whose_keys_or_values_really_change(
    upgrade: Upgrade, lab: Laboratory
) -> None:
    made = lab.upgraded(upgrade)
    finding, kv = made.finding, made.diff["kv"]
    assert (kv["status"], kv["first_invalid_layer"]) == (upgrade.answer, upgrade.first)
    # Once touched, always touched: the residual stream carries it on.
    touched = tuple(range(LAYERS if upgrade.first is None else upgrade.first, LAYERS))
    assert finding.measured.layers == touched
    # The same numbers in another dtype are the same numbers in float32.
    is_rounded = any(change["key"] == "dtype" for change in made.diff["config"])
    assert finding.exact.layers == touched or (is_rounded and set(finding.exact.layers) < set(touched))


@pytest.mark.parametrize(
    "upgrade", [upgrade for upgrade in UPGRADES if upgrade.tensors], ids=lambda upgrade: upgrade.name
)
def test_an_upgrade_with_other_weights_answers_otherwise_and_names_no_other_tensor(
    upgrade: Upgrade, lab: Laboratory
) -> None:
    made = lab.upgraded(upgrade)
    assert upgrade.tensors is not None
    tensors = made.diff["tensors"]
    assert made.finding.answers_differ
    assert tensors["changed"]
    assert [name for name in tensors["changed"] if re.match(upgrade.tensors, name) is None] == []
    assert (tensors["added"], tensors["removed"], tensors["renamed"]) == ([], [], [])


@pytest.mark.parametrize(
    "upgrade", [upgrade for upgrade in UPGRADES if not upgrade.tensors], ids=lambda upgrade: upgrade.name
)
def test_an_upgrade_without_other_weights_changes_no_tensor(upgrade: Upgrade, lab: Laboratory) -> None:
    made = lab.upgraded(upgrade)
    tensors = made.diff["tensors"]
    assert tensors["compared"] == "contents"
    assert not any(names for kind, names in tensors.items() if kind != "compared")
    assert "weights" not in made.diff["changed"]
    assert made.finding.answers_differ == (upgrade.answer == "invalid")


def test_what_is_said_to_be_saved_again_by_a_version_was_and_by_another_one_before(lab: Laboratory) -> None:
    named = [(upgrade, re.search(r"by transformers ([0-9.]+)", upgrade.name)) for upgrade in (*UPGRADES, LOSSY_SAVE)]
    said = [(upgrade, version[1]) for upgrade, version in named if version is not None]
    assert len(said) == 3
    for upgrade, version in said:
        before = json.loads((upgrade.old / "config.json").read_text())["transformers_version"]
        assert lab.upgraded(upgrade).config["transformers_version"] == version != before


def test_shards_were_made(lab: Laboratory) -> None:
    shards = next(upgrade for upgrade in UPGRADES if "shards" in upgrade.name)
    assert "model-00006-of-00006.safetensors" in lab.upgraded(shards).files


def test_a_configuration_that_contradicts_itself_is_invalid_and_said_to_be_read_in_two_ways(lab: Laboratory) -> None:
    made = lab.upgraded(LOSSY_SAVE)
    assert (made.finding.answer, made.finding.predicted, made.finding.measured.first) == ("invalid", 0, None)
    assert "config.json changed in 'rope_theta'" in made.diff["kv"]["reasons"][0]
    assert "rope_theta 10000.0 at its top, 100000.0 in its rotary parameters; engines differ" in made.stderr


def test_adapters_leave_the_kv_of_their_base_valid(lab: Laboratory) -> None:
    added = lab.adapters.added
    # No misfit of configuration, factors and base; a directory's name is all that it says of its base.
    assert len(lab.adapters.warnings) == 3
    assert all("records no commit of it" in warning for warning in lab.adapters.warnings)
    assert (added["kv"]["status"], added["kv"]["valid_layers"]) == ("valid", LAYERS)
    assert added["adapters"]["added"] == ["late", "output", "support"]


def test_kv_made_with_an_adapter_has_a_name_of_its_own(lab: Laboratory) -> None:
    beside = [finding for finding in lab.adapters.findings if finding.answer == "another name"]
    # An adapter on the last layer's MLP touches no KV, and is named nevertheless: careful, as docs say.
    assert [finding.measured.first for finding in beside] == [0, 20, None, 0]
    assert all(finding.answers_differ for finding in beside)


def test_another_adapter_under_the_same_name_is_invalid(lab: Laboratory) -> None:
    replaced = lab.adapters.replaced
    (finding,) = [finding for finding in lab.adapters.findings if finding.answer == "invalid"]
    assert (finding.predicted, finding.measured.layers) == (0, tuple(range(LAYERS)))
    assert replaced["adapters"]["changed"] == ["support"]
    assert "the adapter 'support' is another one (its weights changed)" in replaced["kv"]["reasons"][0]


def test_the_page_says_what_is_measured(lab: Laboratory) -> None:
    """But for the sizes of differences, which depend on the processor's instructions."""
    (page,) = [text for path in (REPOSITORY / "docs").glob("*.md") if HEADING in (text := path.read_text())]
    section = page.partition(HEADING)[2].partition("\n## ")[0]
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    sizes = 2
    assert rows[0] == COLUMNS
    assert [row[:-sizes] for row in rows[1:]] == [finding.cells()[:-sizes] for finding in lab.findings()]
