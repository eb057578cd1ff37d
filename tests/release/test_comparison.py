"""Digests made in different ways are neither the same nor different."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvrelease.release.comparison import (
    AdapterChanges,
    Compared,
    Sameness,
    compare_adapters,
    compare_digests,
    compare_parts,
    compare_samples,
    compare_tensors,
)
from kvrelease.release.diff import diff_fingerprints, diff_verdict
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from kvrelease.report.diff import diff_document
from kvrelease.report.terminal import render_text
from tests import builders
from tests.release.builders import config_json, tensors, write_json, write_release


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_release(tmp_path / "model")


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    weights = tensors()
    weights["model.layers.1.mlp.up_proj.weight"] += 1
    return write_release(tmp_path / "changed", weights)


def fast(path: Path) -> Fingerprint:
    return load_release(path, mode=Mode.FAST)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a:00", "a:00", Sameness.SAME),
        (None, None, Sameness.SAME),
        ("a:00", "a:01", Sameness.CHANGED),
        (None, "a:01", Sameness.CHANGED),
        ("a:00", None, Sameness.CHANGED),
        ("a:00", "b:00", Sameness.UNKNOWN),
        ("kvfp1-full/llama.1:00", "kvfp1-full/llama.2:00", Sameness.UNKNOWN),
    ],
)
def test_two_digests(old: str | None, new: str | None, expected: Sameness) -> None:
    assert compare_digests(old, new) is expected


@pytest.mark.parametrize("modes", [(Mode.FAST, Mode.FULL), (Mode.FULL, Mode.FAST), (Mode.FAST, Mode.FAST)])
def test_equal_samples_prove_nothing_and_different_ones_a_change(
    model: Path, changed: Path, modes: tuple[Mode, Mode]
) -> None:
    old, same, other = (
        load_release(path, mode=mode) for path, mode in zip((model, model, changed), (*modes, modes[1]), strict=True)
    )
    parts = compare_parts(old, same)
    assert {name for name, part in parts.items() if part is Sameness.UNKNOWN} == {"release", "weights", "kv"}
    assert Sameness.CHANGED not in parts.values()
    assert compare_samples(old, same) is Sameness.SAME
    parts = compare_parts(old, other)
    assert parts["weights"] is parts["release"] is Sameness.CHANGED
    assert parts["config"] is parts["generation"] is Sameness.SAME
    for found, verdict in ((same, "inconclusive"), (other, "fail")):
        diff = diff_fingerprints(old, found)
        assert diff.kv.status is KvStatus.UNKNOWN
        assert diff_verdict(diff, part="weights").value == diff_verdict(diff, part="any").value == verdict
        assert diff_verdict(diff, part="config").value == "pass"
        assert diff_verdict(diff, part="kv").value == "inconclusive"


def test_a_diff_with_a_fast_side_claims_no_unchanged_weights(model: Path, changed: Path) -> None:
    same = diff_fingerprints(fast(model), load_release(model))
    assert same.summary.endswith("; no change was seen; not known: the weights.")
    for pair in ((fast(model), load_release(changed)), (load_release(changed), fast(model))):
        found = diff_fingerprints(*pair)
        assert "the weights changed" in found.summary
        assert found.tensors.compared is Compared.NAMES
        assert "which of them changed is not known: contents not compared; by their names, 0 added, 0 removed" in (
            render_text(diff_document(found), width=2000)
        )
    assert diff_fingerprints(fast(model), fast(changed)).tensors.compared is Compared.CONTENTS


def test_tensors_are_named_where_both_sides_were_read_alike(model: Path, changed: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    assert compare_tensors(fast(model), fast(changed)).changed == (name,)
    assert compare_tensors(load_release(model), load_release(changed)).changed == (name,)
    mixed = compare_tensors(fast(model), load_release(changed))
    assert (mixed.added, mixed.removed, mixed.changed, mixed.renamed) == ((), (), (), ())


def test_names_are_compared_even_where_contents_cannot_be(model: Path, tmp_path: Path) -> None:
    weights = tensors()
    weights["model.extra.weight"] = weights.pop("model.norm.weight")
    mixed = compare_tensors(load_release(model), fast(write_release(tmp_path / "other", weights)))
    assert (mixed.added, mixed.removed) == (("model.extra.weight",), ("model.norm.weight",))


def test_tensors_of_equal_content_are_renamed_in_the_order_of_their_names(tmp_path: Path) -> None:
    def named(place: str, *names: str) -> Fingerprint:
        weights = {**tensors(), **{name: tensors()["model.norm.weight"] for name in names}}
        return load_release(write_release(tmp_path / place, weights))

    found = compare_tensors(named("old", "a.1", "a.2", "a.3"), named("new", "b.1", "b.2"))
    assert [(one.old, one.new) for one in found.renamed] == [("a.1", "b.1"), ("a.2", "b.2")]
    assert (found.added, found.removed) == ((), ("a.3",))


def test_a_saved_fingerprint_from_before_the_fast_digest_says_nothing_of_samples(model: Path) -> None:
    old = msgspec.structs.replace(load_release(model), fast=None)
    assert compare_samples(old, fast(model)) is Sameness.UNKNOWN
    assert compare_parts(old, fast(model))["weights"] is Sameness.UNKNOWN


def test_a_changed_configuration_is_a_changed_release_whatever_was_read(model: Path, tmp_path: Path) -> None:
    other = write_release(tmp_path / "other")
    write_json(other / "config.json", config_json(rope_theta=20000.0))
    parts = compare_parts(load_release(model), fast(other))
    assert parts["config"] is parts["release"] is Sameness.CHANGED
    assert parts["weights"] is Sameness.UNKNOWN


@pytest.mark.parametrize(
    ("digest", "content", "changed"),
    [
        ("kvfp1-fast/llama.1+adapter:0a", "kvfp1-adapter:0a", ()),
        ("kvfp1-fast/llama.1+adapter:0a", "kvfp1-adapter:0b", ("support",)),
        ("kvfp1-fast/llama.1+adapter:0a", "kvfp2-adapter:0b", ()),
        ("kvfp1-full/llama.1+adapter:0b", "kvfp1-adapter:0a", ("support",)),
        ("kvfp1-full/llama.1+adapter:0a", "kvfp1-adapter:0a", ()),
    ],
    ids=["two ways", "two ways, another adapter", "nothing in common", "another base", "the same"],
)
def test_adapters_whose_bases_were_digested_in_two_ways_are_compared_by_themselves(
    digest: str, content: str, changed: tuple[str, ...]
) -> None:
    before = builders.adapter(digest="kvfp1-full/llama.1+adapter:0a", content="kvfp1-adapter:0a")
    after = builders.adapter(digest=digest, content=content)
    old, new = (builders.fingerprint(adapters=(one,)) for one in (before, after))
    assert compare_adapters(old, new) == AdapterChanges(changed=changed)
