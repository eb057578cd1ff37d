"""What went wrong elsewhere, in public, and the sentence that `diff` says about it: one test per report.

Each test names its report; docs/cases.md lists them with the others.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kvrelease import artifacts
from kvrelease.artifacts import Verdict
from kvrelease.binding.runtime_file import read_stated_runtime
from kvrelease.config import RUNTIME_FIELDS
from kvrelease.release.adapted import with_adapters
from kvrelease.release.diff import diff_fingerprints, diff_verdict
from kvrelease.release.diff_record import Diff, KvStatus
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.release.local_source import open_directory
from kvrelease.release.pair import load_pair
from kvrelease.release.runtime_change import RuntimeChange, compare_runtimes
from kvrelease.report.diff import diff_document
from kvrelease.report.terminal import render_text
from tests.release.adapters import adapter_json, adapter_tensors, write_adapter
from tests.release.builders import config_json, tensors, write_hub_model, write_json, write_release, write_text_side
from tests.release.fingerprints import STAYS_VALID
from tests.release.gguf_writer import f32, small_model, text, write_gguf
from tests.release.hub_server import Hub
from tests.release.quantized import quantized_tensors, write_quantized


def diff(old: Path | str, new: Path | str) -> Diff:
    pair = load_pair(old, new)
    return diff_fingerprints(pair.old, pair.new, texts=pair.texts)


def page(found: Diff) -> str:
    """What the command prints, on one line."""
    return " ".join(render_text(diff_document(found), width=2000).split())


def saved(what: Path) -> Path:
    """The fingerprint of a release, saved beside its directory."""
    path = what.parent / f"{what.name}.json"
    artifacts.write(path, load_release(what))
    return path


def runtimes(tmp_path: Path, old: str, new: str) -> RuntimeChange:
    """What comparing two declarations says."""
    for name, fields in (("old", old), ("new", new)):
        (tmp_path / f"{name}.yaml").write_text(f"runtime: {{{fields}}}\n")
    sides = [read_stated_runtime(tmp_path / f"{name}.yaml") for name in ("old", "new")]
    return compare_runtimes(*sides, known_fields=RUNTIME_FIELDS)


def under(release: Path, runtime: RuntimeChange) -> Diff:
    """One release compared with itself, under two runtimes."""
    found = load_release(release)
    return diff_fingerprints(found, found, runtime=runtime)


# --- new weights over old KV ---


def test_any_changed_tensor_that_kv_depends_on_makes_old_kv_invalid(tmp_path: Path) -> None:
    """https://github.com/vllm-project/vllm/issues/9744 (a1)"""
    old = write_release(tmp_path / "old")
    weights = tensors()
    weights["model.layers.0.self_attn.k_proj.weight"] += 1
    found = diff(old, write_release(tmp_path / "new", weights))
    assert found.summary == "Old KV is invalid from layer 0 on: 1 tensor changed."
    assert diff_verdict(found, part="kv") is Verdict.FAIL
    assert (
        "none can be relied on to clear it when weights change: bind the new release to a namespace of its own"
        in page(found)
    )


def test_the_page_gives_both_kv_names_and_the_command_for_a_namespace(tmp_path: Path) -> None:
    """One directory and served name for two weights: https://github.com/sgl-project/sglang/issues/24758,
    https://github.com/Tanguille/cluster/pull/4213 (a8)
    """
    old, new = write_release(tmp_path / "old"), write_release(tmp_path / "new", tensors(1))
    found = diff(old, new)
    assert found.old.kv_name != found.release.kv_name
    assert f"kvrelease namespace {new} --engine KIND" in page(found)
    assert str(found.old.kv_name) in page(found)
    assert str(found.release.kv_name) in page(found)


def test_content_decides_and_no_revision(hub: Hub, tmp_path: Path) -> None:
    """Two revisions share a cache: https://github.com/vllm-project/vllm/issues/49261 (a9)"""
    model = write_hub_model(tmp_path / "model")
    first = hub.push("acme/support", model)
    (model / "README.md").write_text("# Other words")
    second = hub.push("acme/support", model, ref="v2")
    assert first != second
    found = diff(f"hf:acme/support@{first}", f"hf:acme/support@{second}")
    assert found.summary == f"{STAYS_VALID}: nothing that counts changed."
    write_release(model, tensors(1), shards=3)
    third = hub.push("acme/support", model, ref="v3")
    found = diff(f"hf:acme/support@{first}", f"hf:acme/support@{third}")
    assert found.kv.status is KvStatus.INVALID


def test_another_layout_or_dtype_of_kv_is_another_runtime(tmp_path: Path) -> None:
    """A persistent cache not separated by layout: https://github.com/vllm-project/vllm/issues/55904,
    https://github.com/vllm-project/vllm/pull/49266 (a10)
    """
    model = write_release(tmp_path / "model")
    change = runtimes(tmp_path, "engine: vllm, block_size: 16", "engine: vllm, block_size: 32")
    found = under(model, change)
    assert found.summary == (
        "Old KV is invalid in every layer, because the runtime changed (block_size 16 → 32): the same weights make "
        "other KV, or KV in another layout; of the release, nothing that counts changed."
    )
    assert diff_verdict(found, part="kv") is Verdict.FAIL
    assert diff_verdict(found, part="runtime") is Verdict.FAIL
    assert diff_verdict(found, part="weights") is Verdict.PASS


def test_a_new_engine_version_makes_kv_of_the_same_weights_unusable(tmp_path: Path) -> None:
    """The layout of KV changed between versions: https://github.com/ai-dynamo/dynamo/issues/14416 (a11)"""
    model = write_release(tmp_path / "model")
    change = runtimes(tmp_path, "engine: vllm, version: 0.25.1", "engine: vllm, version: 0.26.0")
    assert "because the runtime changed (version 0.25.1 → 0.26.0)" in under(model, change).summary
    assert under(model, change).kv.first_invalid_layer == 0
    unsaid = diff(model, model)
    assert unsaid.kv.status is KvStatus.VALID
    assert "not compared: under another engine version, dtype or layout old KV is unusable by default" in page(unsaid)
    assert diff_verdict(unsaid, part="runtime") is Verdict.INCONCLUSIVE


def test_a_partial_identity_is_never_valid(tmp_path: Path) -> None:
    """Keys of model name and tokens: https://github.com/LMCache/LMCache/pull/4903 (a12)"""
    model = write_text_side(write_release(tmp_path / "model"))
    identity = load_release(model)
    assert None not in (identity.release.kv_name, identity.digests.weights, identity.digests.tokenizer)
    (tmp_path / "bare").mkdir()
    bare = tmp_path / "bare" / "model.safetensors"
    bare.write_bytes((model / "model.safetensors").read_bytes())
    found = diff(model, bare)
    assert found.kv.status is KvStatus.UNKNOWN
    assert found.summary.startswith(
        "Whether old KV is valid is unknown, so treat it as invalid: one side has no config.json, on which KV depends"
    )
    assert diff_verdict(found, part="kv") is Verdict.INCONCLUSIVE


# --- adapters ---


def adapted(base: Path, **versions: Path) -> Fingerprint:
    return with_adapters(load_release(base), {name: open_directory(path) for name, path in versions.items()})


def test_each_adapter_has_to_have_a_namespace_of_its_own(tmp_path: Path) -> None:
    """Adapter B hits KV of adapter A in a store outside: https://github.com/vllm-project/vllm/issues/44250,
    https://github.com/LMCache/LMCache/issues/2961 (a13)
    """
    base = write_release(tmp_path / "base")
    one = write_adapter(tmp_path / "one", adapter_tensors(layers=[0]))
    found = diff_fingerprints(adapted(base), adapted(base, a=one))
    assert found.kv.status is KvStatus.VALID
    (note,) = [note for note in found.kv.notes if "stores outside the engine" in note]
    assert "give each a namespace of its own ('a': kv1-" in note


def test_an_adapter_reloaded_under_its_name_is_told_with_what_changed(tmp_path: Path) -> None:
    """Keys are the adapter's name: https://github.com/vllm-project/vllm/issues/42125,
    https://github.com/vllm-project/vllm/pull/48352 (a14)
    """
    base = write_release(tmp_path / "base")
    one = write_adapter(tmp_path / "one", adapter_tensors(layers=[0]))
    weights = adapter_tensors(layers=[0])
    weights[next(iter(weights))] += 1
    two = write_adapter(tmp_path / "two", weights)
    found = diff_fingerprints(adapted(base, support=one), adapted(base, support=two))
    assert found.summary == "Old KV is invalid for the adapters 'support', and valid without them: 1 adapter changed."
    assert found.kv.reasons[0] == (
        "the adapter 'support' is another one (its weights changed): KV made with it under that name is invalid, and "
        "engines key KV by the name: serve it under a new one"
    )
    assert diff_verdict(found, part="adapters") is Verdict.FAIL


def test_the_strength_of_an_adapter_counts_as_its_weights(tmp_path: Path) -> None:
    """Alpha missing or 0: https://github.com/sgl-project/sglang/pull/34359,
    https://github.com/adapter-hub/adapters/pull/770, https://github.com/verl-project/verl/pull/1821 (d26)
    """
    base = write_release(tmp_path / "base")
    weights = adapter_tensors(layers=[0])
    one = write_adapter(tmp_path / "one", weights, config=adapter_json(lora_alpha=16))
    two = write_adapter(
        tmp_path / "two", weights, config=adapter_json(lora_alpha=0, base_model_name_or_path="acme/other")
    )
    found = diff_fingerprints(adapted(base, support=one), adapted(base, support=two))
    assert found.kv.status is KvStatus.INVALID
    assert (
        "its weights are the same; its configuration changed in lora_alpha 16 → 0; it was made for another base: "
        "base_model_name_or_path acme/support → acme/other" in found.kv.reasons[0]
    )


# --- what made the KV ---


def test_the_dtype_of_kv_is_part_of_what_made_it(tmp_path: Path) -> None:
    """fp16 and int8 producers under one key: https://github.com/InternLM/lmdeploy/issues/4930 (a18)"""
    model = write_release(tmp_path / "model")
    change = runtimes(tmp_path, "engine: lmdeploy, kv_cache_dtype: auto", "engine: lmdeploy, kv_cache_dtype: int8")
    assert "because the runtime changed (kv_cache_dtype auto → int8)" in under(model, change).summary
    half = runtimes(tmp_path, "engine: lmdeploy", "engine: lmdeploy, kv_cache_dtype: int8")
    assert under(model, half).kv.status is KvStatus.UNKNOWN
    assert "only one side states kv_cache_dtype" in under(model, half).summary


def test_weights_that_make_old_kv_invalid_do_so_under_whatever_runtime(tmp_path: Path) -> None:
    old, new = (load_release(write_release(tmp_path / str(seed), tensors(seed))) for seed in (0, 1))
    half = runtimes(tmp_path, "engine: vllm", "engine: vllm, version: 1.0.0")
    assert diff_fingerprints(old, new, runtime=half).kv.status is KvStatus.INVALID


def test_an_adapter_that_is_another_one_makes_old_kv_invalid_under_whatever_runtime(tmp_path: Path) -> None:
    base = load_release(write_release(tmp_path / "model"))
    old, new = (
        with_adapters(
            base, {"support": open_directory(write_adapter(tmp_path / f"lora{seed}", adapter_tensors(seed=seed)))}
        )
        for seed in (0, 1)
    )
    half = runtimes(tmp_path, "engine: vllm", "engine: vllm, version: 1.0.0")
    told = diff_fingerprints(old, new, runtime=half).kv
    assert told.status is KvStatus.INVALID
    assert told.reasons[0].startswith("the adapter 'support' is another one")


def test_equal_geometry_is_never_compatible(tmp_path: Path) -> None:
    """https://github.com/antirez/ds4/issues/805 (a22)"""
    old, new = write_release(tmp_path / "old"), write_release(tmp_path / "new", tensors(1))
    assert (old / "model.safetensors").stat().st_size == (new / "model.safetensors").stat().st_size
    found = diff(old, new)
    assert found.kv.status is KvStatus.INVALID
    assert "equal shapes prove nothing" in page(found)


def test_kv_without_a_namespace_counts_as_anothers(tmp_path: Path) -> None:
    """A file of KV that carries no producer: https://github.com/MemTensor/MemOS/issues/2300 (a24)"""
    found = diff(write_release(tmp_path / "old"), write_release(tmp_path / "new", tensors(1)))
    assert "KV without a namespace of ours, in whatever store, directory or file, counts as another release's" in page(
        found
    )


def test_keys_are_the_same_in_every_process(tmp_path: Path) -> None:
    """Hashes without a random seed are shared: https://github.com/vllm-project/vllm/pull/51875 (a34)"""
    found = diff(write_release(tmp_path / "old"), write_release(tmp_path / "new", tensors(1)))
    assert "engines and stores key KV by tokens, in every process and under every release alike" in page(found)


def test_a_changed_scale_of_kv_counts_though_no_weight_changed(tmp_path: Path) -> None:
    """Scales never loaded, or dropped: https://github.com/vllm-project/vllm/issues/54623,
    https://github.com/kekzl/imp/pull/1189 (b9)
    """
    weights = tensors()
    scale = "model.layers.1.self_attn.k_scale"
    old = write_release(tmp_path / "old", weights | {scale: np.ones(1, np.float32)})
    new = write_release(tmp_path / "new", weights | {scale: np.full(1, 2, np.float32)})
    found = diff(old, new)
    assert found.kv.reasons[0] == f"1 tensor changed that may touch KV from layer 1 on: '{scale}'"
    stored = quantized_tensors("fp8")
    scheme = {"num_bits": 8, "type": "float"}
    one = write_quantized(tmp_path / "one", "fp8", stored)
    two = write_quantized(tmp_path / "two", "fp8", stored)
    config = json.loads((two / "config.json").read_text())
    config["quantization_config"]["kv_cache_scheme"] = scheme
    write_json(two / "config.json", config)
    assert "config.json changed in 'quantization_config', on which KV depends" in diff(one, two).kv.reasons[0]


def test_a_namespace_is_preferred_to_a_flush_and_its_cost_told(tmp_path: Path) -> None:
    """Hours of prefill after a flush: https://github.com/kvcache-ai/Mooncake/issues/1920 (c27)"""
    found = diff(write_release(tmp_path / "old"), write_release(tmp_path / "new", tensors(1)))
    assert "prefer that to a flush: a flush also empties what the old release and other models still serve" in page(
        found
    )


# --- files and their notations ---


def test_extra_weight_files_are_named_and_called_not_compared(tmp_path: Path) -> None:
    """A stray file is merged into the model: https://github.com/Blaizzy/mlx-vlm/pull/1464,
    https://github.com/ml-explore/mlx-swift-lm/pull/408, https://github.com/ml-explore/mlx-swift-lm/pull/562 (d4)
    """
    old, new = (write_release(tmp_path / name, shards=2) for name in ("old", "new"))
    (new / "draft.safetensors").write_bytes((old / "model-00001-of-00002.safetensors").read_bytes())
    found = diff(old, new)
    assert found.kv.status is KvStatus.VALID
    assert found.kv.notes == (
        "weight files beside the new release that are not part of it were not compared: 'draft.safetensors'; an "
        "engine that loads every file of a directory loads them",
        "weight files that are not part of the release differ by name or size: 'draft.safetensors' added",
    )
    assert diff_verdict(found, part="any") is Verdict.FAIL


def test_another_metadata_of_the_file_is_no_change(tmp_path: Path) -> None:
    """Another hash of the file at each save: https://github.com/safetensors/safetensors/issues/584,
    https://github.com/ahrefs/ocannl/issues/1007 (d8)
    """
    old = write_release(tmp_path / "old", metadata={"format": "pt"})
    new = write_release(tmp_path / "new", metadata={"format": "np", "by": "us"})
    assert (old / "model.safetensors").read_bytes() != (new / "model.safetensors").read_bytes()
    found = diff(old, new)
    assert found.summary == f"{STAYS_VALID}: nothing that counts changed."


def test_a_stored_copy_of_tied_embeddings_is_an_alias(tmp_path: Path) -> None:
    """`lm_head.weight` comes and goes between saves: https://github.com/huggingface/transformers/issues/30202,
    https://github.com/google-deepmind/gemma/issues/8, https://github.com/huggingface/transformers/issues/38870,
    https://github.com/huggingface/transformers/issues/41038 (d10)
    """
    weights = tensors(is_tied=True)
    config = config_json(tie_word_embeddings=True)
    old = write_release(tmp_path / "old", weights, config=config)
    copy = weights | {"lm_head.weight": weights["model.embed_tokens.weight"].copy()}
    new = write_release(tmp_path / "new", copy, config=config)
    found = diff(old, new)
    assert (found.changed, found.kv.status) == ((), KvStatus.VALID)
    assert found.kv.notes == ("the new release stores 'lm_head.weight', an alias of what it is tied to: no change",)
    assert "leaves out 'lm_head.weight', an alias" in diff(new, old).kv.notes[0]


def test_an_edited_template_of_a_gguf_file_changes_prompts_and_no_weights(tmp_path: Path) -> None:
    """Another hash of the file: https://github.com/ggml-org/llama.cpp/pull/8048,
    https://github.com/ggml-org/llama.cpp/issues/8768, https://github.com/ggml-org/llama.cpp/issues/7836 (d19)
    """
    write_gguf(tmp_path / "old.gguf", small_model(tokenizer__chat_template=text("{{ a }}\n{{ b }}")))
    write_gguf(tmp_path / "new.gguf", small_model(tokenizer__chat_template=text("{{ a }}\n{{ c }}")))
    found = diff(tmp_path / "old.gguf", tmp_path / "new.gguf")
    assert found.changed == ("release", "template")
    assert found.summary == (f"{STAYS_VALID}, but prompts or answers may differ: the chat template changed.")
    assert found.kv.notes == (
        "the chat template changed: 'default' changed (+1 −1 of 2 lines); the same messages become another "
        "prompt, so they may miss old entries",
    )
    assert found.templates[0].excerpt == ("@@ -1,2 +1,2 @@", " {{ a }}", "-{{ b }}", "+{{ c }}")


def test_the_effective_template_counts_and_two_that_differ_are_told(tmp_path: Path) -> None:
    """Engines read one or the other: https://github.com/huggingface/text-generation-inference/issues/3247,
    https://github.com/pytorch/torchtitan/pull/2455 (d20)
    """
    old, new = (write_text_side(write_release(tmp_path / name)) for name in ("old", "new"))
    (new / "chat_template.jinja").write_text("{{ messages }}")
    assert diff(old, new).changed == ()
    (new / "chat_template.jinja").write_text("{{ jinja }}")
    found = diff(old, new)
    assert "template" in found.changed
    assert any(
        "the new release has two chat templates that differ: the .jinja file counts here" in note
        for note in found.kv.notes
    )


def test_generation_defaults_are_told_by_key_and_keep_kv_valid(tmp_path: Path) -> None:
    """Outputs change though weights do not: https://github.com/vllm-project/vllm/pull/15281,
    https://github.com/OpenPipe/ART/pull/140 (d21)
    """
    old, new = (write_text_side(write_release(tmp_path / name)) for name in ("old", "new"))
    write_json(new / "generation_config.json", {"temperature": 0.9, "top_k": 20})
    for found in (diff(old, new), diff(saved(old), saved(new))):
        assert found.summary == (
            f"{STAYS_VALID}, but prompts or answers may differ: the generation defaults "
            "(temperature 0.6 → 0.9, top_k none → 20) changed."
        )
        assert diff_verdict(found, part="generation") is Verdict.FAIL
        assert diff_verdict(found, part="kv") is Verdict.PASS


def test_rope_in_another_notation_is_no_change_and_another_rope_is(tmp_path: Path) -> None:
    """Old readers take 10000: https://github.com/vllm-project/vllm/pull/28542,
    https://github.com/sgl-project/sglang/pull/14745, https://github.com/deepspeedai/DeepSpeed/pull/8345 (d23)
    """
    old = write_release(tmp_path / "old", config=config_json(rope_theta=500000.0))
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    new = write_release(tmp_path / "new", config=config_json(rope_theta=None, rope_parameters=rope))
    found = diff(old, new)
    assert (found.changed, found.kv.status) == ((), KvStatus.VALID)
    assert "as transformers 5 does: it needs an engine that reads them" in found.kv.notes[0]
    other = write_release(
        tmp_path / "other", config=config_json(rope_theta=None, rope_parameters=rope | {"rope_theta": 10000.0})
    )
    found = diff(old, other)
    assert found.summary == "Old KV is invalid from layer 0 on: 1 configuration key changed."
    assert found.kv.reasons[0] == (
        "config.json changed in 'rope_parameters', on which KV depends: every layer is invalid"
    )


def test_a_renamed_key_is_no_change(tmp_path: Path) -> None:
    """`torch_dtype` became `dtype`: https://github.com/unslothai/unsloth-zoo/pull/286,
    https://github.com/EfficientMoE/MoE-Infinity/pull/106 (d24)
    """
    old = write_release(tmp_path / "old")
    new = write_release(tmp_path / "new", config=config_json(torch_dtype=None, dtype="float32"))
    assert diff(old, new).summary == f"{STAYS_VALID}: nothing that counts changed."


def test_the_first_line_says_what_changed_to_whoever_decides(tmp_path: Path) -> None:
    """A tag that moved, and nobody can tell what changed: https://github.com/ollama/ollama/issues/13409 (d31)"""
    write_gguf(tmp_path / "old.gguf", small_model(general__sampling__temp=None))
    write_gguf(
        tmp_path / "new.gguf",
        small_model(tokenizer__chat_template=text("{{ other }}"), general__sampling__temp=f32(0.5)),
    )
    found = diff(tmp_path / "old.gguf", tmp_path / "new.gguf")
    assert (
        page(found)
        .split("? ", 1)[1]
        .startswith(
            f"VALID {STAYS_VALID}, but prompts or answers may differ: the chat template and the "
            "generation defaults (general.sampling.temp none → 0.5) changed."
        )
    )
