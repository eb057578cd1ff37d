"""Tensors laid out anew: proposed by their names, proved by content, and what is said where nothing proves it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kvrelease import artifacts
from kvrelease.artifacts import JsonObject
from kvrelease.errors import InputError
from kvrelease.progress import ProgressEvent, silent
from kvrelease.release.comparison import TensorChanges
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import Diff, KvStatus
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from kvrelease.release.readable import readable_weights
from kvrelease.release.relayout import Relaid, RelaidStatus, propose_relayouts
from kvrelease.release.relayout_proof import prove_relayouts
from tests.release.builders import Tensors, config_json, tensors, write_release

LAYER = "model.layers.{}."
HEADS: JsonObject = {"num_attention_heads": 2, "num_key_value_heads": 1}
EXPERTS = 3


def fused(weights: Tensors, *, layers: int = 3) -> Tensors:
    """As vLLM and Phi-3 hold them: Q, K and V in one, gate and up in one."""
    result = dict(weights)
    for layer in range(layers):
        for owner, parts, whole in (
            ("self_attn", ("q_proj", "k_proj", "v_proj"), "qkv_proj"),
            ("mlp", ("gate_proj", "up_proj"), "gate_up_proj"),
        ):
            base = f"{LAYER.format(layer)}{owner}."
            pieces = [result.pop(f"{base}{part}.weight") for part in parts]
            result[f"{base}{whole}.weight"] = np.concatenate(pieces)
    return result


def experts(*, seed: int = 0, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Tensors:
    """One tensor for each expert's projection, and a router, as Qwen's are saved for most of the Hub."""
    generator = np.random.default_rng(seed)
    gate, up, down = names
    shapes = {gate: (6, 8), up: (6, 8), down: (8, 6)}
    return {
        f"model.layers.0.mlp.experts.{expert}.{part}.weight": generator.standard_normal(shape).astype(np.float32)
        for expert in range(EXPERTS)
        for part, shape in shapes.items()
    }


STACK = "model.layers.0.mlp.experts.down_proj"


def square_experts(*, seed: int = 0) -> Tensors:
    """Matrices of which no shape tells whether they are transposed."""
    generator = np.random.default_rng(seed)
    return {
        f"model.layers.0.mlp.experts.{expert}.down_proj.weight": generator.standard_normal((8, 8)).astype(np.float32)
        for expert in range(EXPERTS)
    }


def stacked(weights: Tensors, *, is_transposed: bool = False) -> Tensors:
    """As transformers 5 saves them: all experts in two tensors, the matrices transposed for some models."""
    base = "model.layers.0.mlp.experts."
    parts = {
        part: [weights[f"{base}{expert}.{part}.weight"] for expert in range(EXPERTS)]
        for part in ("gate_proj", "up_proj", "down_proj")
    }
    both = np.concatenate([np.stack(parts["gate_proj"]), np.stack(parts["up_proj"])], axis=1)
    down = np.stack(parts["down_proj"])
    if is_transposed:
        both, down = (np.ascontiguousarray(np.swapaxes(array, 1, 2)) for array in (both, down))
    return {f"{base}gate_up_proj": both, f"{base}down_proj": down}


def diff_of(old: Path | str, new: Path | str, *, jobs: int = 2) -> Diff:
    """As `kvrelease diff` does it."""
    before, after = load_release(old), load_release(new)
    found = diff_fingerprints(before, after)
    weights = (readable_weights(old), readable_weights(new))
    relaid = prove_relayouts(before, after, found.tensors.relaid, weights=weights, jobs=jobs)
    return diff_fingerprints(before, after, relaid=relaid)


def diff_between(tmp_path: Path, old: Tensors, new: Tensors, *, config: JsonObject | None = None) -> Diff:
    return diff_of(
        write_release(tmp_path / "old", old, config=config), write_release(tmp_path / "new", new, config=config)
    )


def by_whole(found: Diff) -> dict[str, Relaid]:
    return {(one.new if len(one.new) == 1 else one.old)[0]: one for one in found.tensors.relaid}


# --- proposals ---


def test_a_complete_set_of_parts_proposes_the_fused_tensor_of_its_name() -> None:
    parts = [f"model.layers.0.self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj")]
    whole = "model.layers.0.self_attn.qkv_proj.weight"
    (forth,) = propose_relayouts(parts, [whole])
    assert (forth.old, forth.new, forth.status) == (tuple(parts), (whole,), RelaidStatus.UNPROVEN)
    (back,) = propose_relayouts([whole], parts)
    assert (back.old, back.new) == ((whole,), tuple(parts))
    assert propose_relayouts(parts[:2], [whole]) == ()
    assert propose_relayouts(parts, [whole.replace("layers.0", "layers.1")]) == ()


def test_a_prefix_that_came_or_went_hides_nothing() -> None:
    parts = [f"model.language_model.layers.0.mlp.{part}.weight" for part in ("gate_proj", "up_proj")]
    (found,) = propose_relayouts(parts, ["language_model.model.layers.0.mlp.gate_up_proj.weight"])
    assert found.old == tuple(parts)
    (renamed,) = propose_relayouts(["model.norm.weight"], ["norm.weight"])
    assert (renamed.status, renamed.changed) == (RelaidStatus.CHANGED, ("norm.weight",))


def test_two_tensors_that_one_name_could_mean_propose_nothing() -> None:
    assert propose_relayouts(["model.norm.weight", "norm.weight"], ["transformer.norm.weight"]) == ()


@pytest.mark.parametrize("names", [("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")])
def test_stacked_experts_take_the_place_of_all_of_them_or_of_none(names: tuple[str, str, str]) -> None:
    block = "block_sparse_moe" if names[0] == "w1" else "mlp"
    parts = [name.replace(".mlp.", f".{block}.") for name in experts(names=names)]
    wholes = ["model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"]
    found = {one.new[0]: one for one in propose_relayouts(parts, wholes)}
    assert found.keys() == set(wholes)
    both = found[wholes[0]]
    assert both.experts == EXPERTS
    assert [name.rpartition(".experts.")[2] for name in both.old[:3]] == [
        f"0.{names[0]}.weight",
        f"0.{names[1]}.weight",
        f"1.{names[0]}.weight",
    ]
    without = [name for name in parts if f".experts.1.{names[2]}" not in name]
    assert [one.new for one in propose_relayouts(without, wholes)] == [(wholes[0],)]


def test_no_tensor_is_in_two_relayouts() -> None:
    """Taken by a fused tensor, it does not take the place of its namesake too, on neither side."""
    parts = [f"model.layers.0.self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj")]
    whole, other = "model.layers.0.self_attn.qkv_proj.weight", "layers.0.self_attn.{}.weight"
    (forth,) = propose_relayouts(parts, [whole, other.format("q_proj")])
    assert (forth.old, forth.new) == (tuple(parts), (whole,))
    (stays,) = propose_relayouts([*parts, other.format("qkv_proj")], [whole])
    assert (stays.old, stays.new) == (tuple(parts), (whole,))


# --- proofs ---


@pytest.mark.parametrize("direction", ["fused", "split"])
def test_a_fused_release_is_proven_to_hold_the_same_weights(tmp_path: Path, direction: str) -> None:
    """https://github.com/vllm-project/vllm/pull/36997, https://github.com/arcee-ai/mergekit/pull/692 (d25)."""
    pair = [tensors(1), fused(tensors(1))]
    found = diff_between(tmp_path, *(pair if direction == "fused" else reversed(pair)))
    assert {one.status for one in found.tensors.relaid} == {RelaidStatus.EQUAL}
    assert {one.layout for one in found.tensors.relaid} == {"concatenated"}
    assert len(found.tensors.relaid) == 6
    assert (found.tensors.added, found.tensors.removed, found.tensors.changed) == ((), (), ())
    assert (found.kv.status, found.kv.first_invalid_layer) == (KvStatus.INVALID, 0)
    counts = "15 tensors as 6" if direction == "fused" else "6 tensors as 15"
    assert found.summary.startswith(f"Old KV is invalid from layer 0 on: re-laid-out, proven equal content: {counts}")
    assert found.kv.reasons[0].startswith("re-laid-out, proven equal content: 'model.layers.0.")
    assert "and 5 more like it: the weights are the same, but names are part of the kv digest" in found.kv.reasons[0]


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("direction", ["stacked", "split"])
def test_stacked_experts_are_proven(tmp_path: Path, direction: str, is_transposed: bool) -> None:
    rest = tensors(1)
    pair = [rest | experts(), rest | stacked(experts(), is_transposed=is_transposed)]
    found = diff_between(tmp_path, *(pair if direction == "stacked" else reversed(pair)))
    assert {name: (one.status, one.layout, one.experts) for name, one in by_whole(found).items()} == {
        f"model.layers.0.mlp.experts.{part}": (
            RelaidStatus.EQUAL,
            "transposed" if is_transposed else "concatenated",
            EXPERTS,
        )
        for part in ("gate_up_proj", "down_proj")
    }
    assert found.kv.status is KvStatus.INVALID


def test_square_matrices_are_told_apart_from_transposed_ones(tmp_path: Path) -> None:
    weights = square_experts()
    whole = np.stack(list(weights.values()))
    rest = tensors(1)
    for layout, array in (("concatenated", whole), ("transposed", np.ascontiguousarray(np.swapaxes(whole, 1, 2)))):
        new = rest | {STACK: array}
        (one,) = diff_between(tmp_path / layout, rest | weights, new).tensors.relaid
        assert (one.status, one.layout) == (RelaidStatus.EQUAL, layout)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_what_changed_inside_a_fused_tensor_is_named(tmp_path: Path, is_transposed: bool) -> None:
    rest, before = tensors(1), experts()
    after = dict(before)
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    after[name] = after[name] * 2
    found = diff_between(tmp_path, rest | before, rest | stacked(after, is_transposed=is_transposed))
    one = by_whole(found)["model.layers.0.mlp.experts.gate_up_proj"]
    assert (one.status, one.changed) == (RelaidStatus.CHANGED, (name,))
    assert any(
        reason.startswith("re-laid-out, with changed content: ") and f"other content in '{name}'" in reason
        for reason in found.kv.reasons
    )
    assert found.summary.startswith("Old KV is invalid from layer 0 on: 1 tensor changed; re-laid-out, ")


def test_a_prefix_that_went_away_and_a_changed_tensor(tmp_path: Path) -> None:
    old = tensors(1)
    new = {name.removeprefix("model."): array for name, array in old.items()}
    new["layers.1.mlp.up_proj.weight"] = new["layers.1.mlp.up_proj.weight"] + 1
    found = diff_between(tmp_path, old, new)
    assert (found.tensors.added, found.tensors.removed) == ((), ())
    assert len(found.tensors.renamed) == len(old) - 2  # lm_head has no prefix
    assert found.summary.startswith(
        "Old KV is invalid from layer 0 on: 1 tensor changed; renamed, proven equal content: 28 tensors"
    )
    assert found.kv.reasons[0].startswith("renamed, proven equal content: 'model.")
    (one,) = found.tensors.relaid
    assert (one.old, one.new) == (("model.layers.1.mlp.up_proj.weight",), ("layers.1.mlp.up_proj.weight",))
    assert one.status is RelaidStatus.CHANGED


def test_equal_parts_of_other_tensors_are_not_taken_for_renamings(tmp_path: Path) -> None:
    """Zero biases of one shape have one digest, whatever their names."""
    zero = np.zeros(4, np.float32)
    old, new = tensors(1), fused(tensors(1))
    for layer in range(3):
        base = f"model.layers.{layer}.self_attn."
        old |= {f"{base}{part}_proj.bias": zero for part in "kv"} | {f"{base}q_proj.bias": np.zeros(8, np.float32)}
        new |= {f"{base}qkv_proj.bias": np.zeros(16, np.float32), f"{base}other.bias": zero}
    found = diff_between(tmp_path, old, new)
    assert {one.status for one in found.tensors.relaid} == {RelaidStatus.EQUAL}
    assert len(found.tensors.relaid) == 9
    assert found.tensors.added == tuple(f"model.layers.{layer}.self_attn.other.bias" for layer in range(3))
    assert found.tensors.renamed == ()


def test_other_dtypes_and_shapes_are_not_proven(tmp_path: Path) -> None:
    old, new = tensors(1), fused(tensors(1))
    half = "model.layers.0.self_attn.qkv_proj.weight"
    new[half] = new[half].astype(np.float16)
    cut = "model.layers.1.self_attn.qkv_proj.weight"
    new[cut] = new[cut][:-1]
    found = by_whole(diff_between(tmp_path, old, new))
    assert found[half].status is found[cut].status is RelaidStatus.UNPROVEN
    assert found[half].reason == "its tensors are stored as F16 and F32, which is other content"
    assert found[cut].reason == ("the shapes of the tensors do not add up to that of the fused one ([15, 8])")


def test_rows_in_another_order_are_not_proven(tmp_path: Path) -> None:
    old, new = tensors(1), fused(tensors(1))
    name = "model.layers.0.mlp.gate_up_proj.weight"
    new[name] = np.ascontiguousarray(new[name].reshape(2, -1, 8).swapaxes(0, 1).reshape(-1, 8))  # interleaved
    found = diff_between(tmp_path, old, new)
    one = by_whole(found)[name]
    assert one.status is RelaidStatus.UNPROVEN
    assert any(
        "re-laid-out, equality not proven: " in reason and "another layout" in reason for reason in found.kv.reasons
    )


def test_the_layout_in_which_most_is_found_is_the_one(tmp_path: Path) -> None:
    """Whichever is tried last: what changed is told in that layout, and is not all of it."""
    rest, before = tensors(1), square_experts()
    changed = sorted(before)[1]
    after = before | {changed: before[changed] + 1}
    for layout, array in (
        ("concatenated", np.stack(list(after.values()))),
        ("transposed", np.ascontiguousarray(np.swapaxes(np.stack(list(after.values())), 1, 2))),
    ):
        (one,) = diff_between(tmp_path / layout, rest | before, rest | {STACK: array}).tensors.relaid
        assert (one.status, one.layout, one.changed) == (RelaidStatus.CHANGED, layout, (changed,))


def test_a_matrix_that_is_its_own_transpose_decides_no_layout(tmp_path: Path) -> None:
    rest, weights = tensors(1), square_experts()
    weights[sorted(weights)[0]] = np.eye(8, dtype=np.float32)
    array = np.ascontiguousarray(np.swapaxes(np.stack(list(weights.values())), 1, 2))
    (one,) = diff_between(tmp_path, rest | weights, rest | {STACK: array}).tensors.relaid
    assert (one.status, one.layout, one.changed) == (RelaidStatus.EQUAL, "transposed", ())


@pytest.mark.parametrize("direction", ["fused", "split"])
def test_how_many_heads_are_fused_is_asked_of_the_release_that_has_them_apart(tmp_path: Path, direction: str) -> None:
    """Of which only the digests are at hand; the fused release's file may say it otherwise, or not at all."""
    apart = write_release(tmp_path / "apart", tensors(1), config=config_json(**HEADS))
    together = write_release(
        tmp_path / "together",
        fused(tensors(1)),
        config=config_json(num_attention_heads=1, num_key_value_heads=1, head_dim=8),
    )
    artifacts.write(tmp_path / "apart.json", load_release(apart))
    sides = (tmp_path / "apart.json", together)
    found = diff_of(*(sides if direction == "fused" else reversed(sides)))
    assert {one.status for one in found.tensors.relaid} == {RelaidStatus.EQUAL}


def test_what_a_store_gives_no_columns_of_is_not_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrelease.release.relayout_proof.MEMORY_BYTES", 100)  # an expert's matrix has 192
    rest = tensors(1)
    sides = (
        write_release(tmp_path / "old", rest | experts()),
        write_release(tmp_path / "new", rest | stacked(experts(), is_transposed=True)),
    )
    before, after = (load_release(side) for side in sides)
    relaid = diff_fingerprints(before, after).tensors.relaid
    for read, side in enumerate(sides):
        found = readable_weights(side)
        assert found is not None
        for is_remote in (True, False):
            weights = msgspec.structs.replace(found, is_remote=is_remote)
            proved = prove_relayouts(
                before, after, relaid, weights=(weights, None) if read == 0 else (None, weights), jobs=1
            )
            reasons = {one.reason for one in proved}
            too_large = "it lies on a store, and is too large to be transposed in memory"
            assert reasons == {too_large if is_remote else None}


def test_parts_of_which_one_is_gone_prove_nothing(tmp_path: Path) -> None:
    """Of the side that is read; the other one is a saved fingerprint."""
    sides = (write_release(tmp_path / "old", tensors(1)), write_release(tmp_path / "new", fused(tensors(1))))
    before, after = (load_release(side) for side in sides)
    relaid = diff_fingerprints(before, after).tensors.relaid
    weights = tensors(1)
    del weights["model.layers.1.self_attn.v_proj.weight"]
    found = readable_weights(write_release(sides[0], weights))
    proved = prove_relayouts(before, after, relaid, weights=(found, None))
    statuses = {one.new[0].removeprefix("model.layers."): one.status for one in proved}
    assert statuses.pop("1.self_attn.qkv_proj.weight") is RelaidStatus.UNPROVEN
    assert set(statuses.values()) == {RelaidStatus.EQUAL}
    assert {one.reason for one in proved} == {
        None,
        "some of its tensors are in the fingerprint, and in no file of the release any more",
    }
    whole = readable_weights(sides[1])
    again = prove_relayouts(before, after, relaid, weights=(found, whole))  # the fused side tells it alone
    assert {one.status for one in again} == {RelaidStatus.EQUAL}


# --- saved fingerprints ---


@pytest.mark.parametrize("saved", ["old", "new"])
@pytest.mark.parametrize("direction", ["fused", "split"])
@pytest.mark.parametrize("kind", ["projections", "experts", "transposed"])
def test_one_readable_side_is_enough(tmp_path: Path, saved: str, direction: str, kind: str) -> None:
    rest = tensors(1)
    if kind == "projections":
        pair = [rest, fused(rest)]
    else:
        pair = [rest | experts(), rest | stacked(experts(), is_transposed=kind == "transposed")]
    sides: dict[str, Path] = {}
    for name, weights in zip(("old", "new"), pair if direction == "fused" else reversed(pair), strict=True):
        sides[name] = write_release(tmp_path / name, weights, config=config_json(**HEADS))
    artifacts.write(tmp_path / "saved.json", load_release(sides[saved]))
    sides[saved] = tmp_path / "saved.json"
    found = diff_of(sides["old"], sides["new"])
    assert {one.status for one in found.tensors.relaid} == {RelaidStatus.EQUAL}


def test_two_saved_fingerprints_prove_nothing(tmp_path: Path) -> None:
    for name, weights in (("old", tensors(1)), ("new", fused(tensors(1)))):
        artifacts.write(tmp_path / f"{name}.json", load_release(write_release(tmp_path / name, weights)))
    found = diff_of(tmp_path / "old.json", tmp_path / "new.json")
    assert {one.status for one in found.tensors.relaid} == {RelaidStatus.UNPROVEN}
    assert found.summary.startswith(
        "Old KV is invalid from layer 0 on: re-laid-out, equality not proven: 15 tensors as 6"
    )
    assert any(
        reason.startswith("re-laid-out, equality not proven: ") and "both sides are saved fingerprints" in reason
        for reason in found.kv.reasons
    )


def test_fast_fingerprints_prove_nothing(tmp_path: Path) -> None:
    old, new = write_release(tmp_path / "old", tensors(1)), write_release(tmp_path / "new", fused(tensors(1)))
    before, after = (load_release(side, mode=Mode.FAST) for side in (old, new))
    relaid = diff_fingerprints(before, after).tensors.relaid
    proved = prove_relayouts(before, after, relaid, weights=(readable_weights(old), readable_weights(new)))
    assert {one.reason for one in proved} == {"a fast fingerprint has digests of samples only"}


def test_an_artifact_without_relayouts_still_reads() -> None:
    text = b'{"added": [], "removed": ["a"], "changed": [], "renamed": [{"old": "b", "new": "c"}]}'
    assert msgspec.json.decode(text, type=TensorChanges).relaid == ()


# --- the outside world ---


@pytest.mark.parametrize("saved", ["old", "new"], ids=["the fused side is read", "the split side is read"])
def test_files_that_are_not_what_was_fingerprinted_prove_nothing(tmp_path: Path, saved: str) -> None:
    """Somebody wrote to the release after its fingerprint was made: an error, never a proof."""
    sides = {
        "old": write_release(tmp_path / "old", tensors(1)),
        "new": write_release(tmp_path / "new", fused(tensors(1))),
    }
    before, after = load_release(sides["old"]), load_release(sides["new"])
    relaid = diff_fingerprints(before, after).tensors.relaid
    read = "new" if saved == "old" else "old"
    weights = load_file(sides[read] / "model.safetensors")
    for name in weights:
        weights[name] = weights[name] + 1
    save_file(weights, sides[read] / "model.safetensors")
    found = readable_weights(sides[read])
    with pytest.raises(InputError, match="no longer what its fingerprint says"):
        prove_relayouts(before, after, relaid, weights=(None, found) if saved == "old" else (found, None), jobs=1)


def test_large_matrices_are_transposed_with_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrelease.release.relayout_proof.MEMORY_BYTES", 200)  # a matrix has 384
    rest = tensors(1)
    for direction in ("stacked", "split"):
        pair = [rest | experts(), rest | stacked(experts(), is_transposed=True)]
        place = tmp_path / direction
        sides = [
            write_release(place / name, weights)
            for name, weights in zip(("old", "new"), pair if direction == "stacked" else reversed(pair), strict=True)
        ]
        artifacts.write(place / "old.json", load_release(sides[0]))
        found = diff_of(place / "old.json", sides[1], jobs=1)
        assert {(one.status, one.layout) for one in found.tensors.relaid} == {(RelaidStatus.EQUAL, "transposed")}


def test_ctrl_c_comes_through(tmp_path: Path) -> None:
    old, new = write_release(tmp_path / "old", tensors(1)), write_release(tmp_path / "new", fused(tensors(1)))
    before, after = load_release(old), load_release(new)
    relaid = diff_fingerprints(before, after).tensors.relaid

    def stop(_event: ProgressEvent) -> None:
        raise KeyboardInterrupt

    weights = (readable_weights(old), readable_weights(new))
    with pytest.raises(KeyboardInterrupt):
        prove_relayouts(before, after, relaid, weights=weights, progress=stop)
    events: list[ProgressEvent] = []
    prove_relayouts(before, after, relaid, weights=weights, progress=events.append)
    assert events[-1].done == events[-1].total
    assert prove_relayouts(before, after, relaid, weights=weights, progress=silent)
