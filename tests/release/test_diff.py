"""Verdicts on old KV, from fingerprints alone."""

from __future__ import annotations

import random
import re

import msgspec
import pytest

from kvrelease import artifacts
from kvrelease.artifacts import JsonObject, ReleaseRef, Verdict
from kvrelease.release.adapter import AdapterDigest
from kvrelease.release.comparison import AdapterChanges, Compared, Renamed, TensorChanges
from kvrelease.release.content import Format
from kvrelease.release.diff import diff_fingerprints, diff_verdict
from kvrelease.release.diff_record import ConfigChange, Diff, KvImpact, KvStatus
from kvrelease.release.diff_summary import summarise
from kvrelease.release.digests import config_digest, kv_digests
from kvrelease.release.file_changes import FileChange, FileEdit
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE, rule_for
from kvrelease.release.mode import Mode
from kvrelease.release.model_config import canonical_config
from kvrelease.release.runtime_change import NOT_COMPARED, RuntimeChange, RuntimeField, RuntimeStatus
from kvrelease.report.diff import diff_document
from kvrelease.report.terminal import render_text
from tests.release.builders import config_json
from tests.release.fingerprints import NEW, OLD, PAYLOADS, STAYS_VALID, fingerprint, replaced

CHANGED_RUNTIME = RuntimeChange(
    status=RuntimeStatus.DIFFERENT,
    fields=(RuntimeField(field="version", old="1", new="2"),),
    unread=(),
    sentence="the runtime changed (version 1 → 2): the same weights make other KV",
)


def test_equal_releases() -> None:
    diff = diff_fingerprints(OLD, fingerprint())
    assert diff.changed == ()
    assert diff.tensors == TensorChanges(added=(), removed=(), changed=(), renamed=())
    assert diff.kv == KvImpact(status=KvStatus.VALID, layers=3, valid_layers=3, first_invalid_layer=None, reasons=())
    assert diff.summary == f"{STAYS_VALID}: nothing that counts changed."


def test_valid_kv_has_its_condition_in_the_first_line_unless_the_runtimes_are_the_same() -> None:
    same = RuntimeChange(status=RuntimeStatus.SAME, fields=(), unread=(), sentence="the runtime is the same")
    assert diff_fingerprints(OLD, fingerprint(), runtime=same).summary == (
        "Old KV stays valid in every layer: nothing that counts changed."
    )
    other = fingerprint(template="c:01")
    assert diff_fingerprints(OLD, other).summary == (
        f"{STAYS_VALID}, but prompts or answers may differ: the chat template changed."
    )


def test_what_came_or_went_is_not_called_changed_in_the_first_line() -> None:
    edits = (("a.json", FileEdit.ADDED), ("b.json", FileEdit.CHANGED), ("c.json", FileEdit.REMOVED))
    files = tuple(FileChange(name=name, edit=edit) for name, edit in edits)
    adapters = AdapterChanges(added=("x", "y"), removed=("z",))
    found = msgspec.structs.replace(diff_fingerprints(OLD, OLD), files=files[:2], adapters=adapters)
    assert summarise(found) == (
        f"{STAYS_VALID}: b.json changed; a.json was added; 2 adapters were added; 1 adapter was removed."
    )
    found = msgspec.structs.replace(diff_fingerprints(OLD, OLD), files=files[2:])
    assert summarise(found) == f"{STAYS_VALID}: c.json was removed."


def test_final_norm_alone_keeps_old_kv_valid() -> None:
    diff = diff_fingerprints(OLD, fingerprint(PAYLOADS | {"model.norm.weight": NEW}))
    assert diff.changed == ("release", "weights")
    assert diff.kv.status is KvStatus.VALID
    assert diff.kv.reasons == ("1 tensor changed, and KV depends on none: 'model.norm.weight'",)
    assert diff.summary == f"{STAYS_VALID}: 1 tensor changed."


def test_changed_k_proj_keeps_earlier_layers_valid() -> None:
    diff = diff_fingerprints(OLD, fingerprint(PAYLOADS | {"model.layers.1.self_attn.k_proj.weight": NEW}))
    assert diff.changed == ("release", "weights", "kv")
    assert diff.kv == KvImpact(
        status=KvStatus.INVALID,
        layers=3,
        valid_layers=1,
        first_invalid_layer=1,
        reasons=("1 tensor changed that may touch KV from layer 1 on: 'model.layers.1.self_attn.k_proj.weight'",),
    )
    assert diff.summary == (
        "Old KV is invalid from layer 1 on (the first 1 layer would still agree): 1 tensor changed."
    )


def test_reasons_come_in_the_order_of_layers() -> None:
    changed = dict.fromkeys(PAYLOADS, NEW)
    reasons = diff_fingerprints(OLD, fingerprint(changed)).kv.reasons
    assert [reason.partition(" on: ")[0].rpartition(" ")[2] for reason in reasons] == ["0", "1", "2"]


def test_unknown_tensor_invalidates_everything_and_says_so() -> None:
    diff = diff_fingerprints(OLD, fingerprint(PAYLOADS | {"model.layers.2.mlp.experts.0.weight": NEW}))
    assert diff.tensors.added == ("model.layers.2.mlp.experts.0.weight",)
    assert (diff.kv.status, diff.kv.first_invalid_layer) == (KvStatus.INVALID, 0)
    assert "which the rule llama.1 does not know" in diff.kv.reasons[0]


def test_renamed_tensor_is_told_and_invalidates() -> None:
    payloads = dict(PAYLOADS)
    payloads["layers.0.attention.wk.weight"] = payloads.pop("model.layers.0.self_attn.k_proj.weight")
    diff = diff_fingerprints(OLD, fingerprint(payloads))
    assert diff.tensors == TensorChanges(
        added=(),
        removed=(),
        changed=(),
        renamed=(Renamed(old="model.layers.0.self_attn.k_proj.weight", new="layers.0.attention.wk.weight"),),
    )
    assert diff.kv.status is KvStatus.INVALID


def test_affecting_and_unknown_configuration_invalidate_every_layer() -> None:
    diff = diff_fingerprints(OLD, fingerprint(config=config_json(rms_norm_eps=1e-5, new_key=1)))
    assert diff.config == (
        ConfigChange(key="new_key", old=None, new=1, affects_kv=True),
        ConfigChange(key="rms_norm_eps", old=1e-6, new=1e-5, affects_kv=True),
    )
    assert (diff.kv.status, diff.kv.valid_layers, diff.kv.first_invalid_layer) == (KvStatus.INVALID, 0, 0)
    assert "'new_key', which the rule llama.1 does not know" in diff.kv.reasons[0]
    assert "'rms_norm_eps', on which KV depends" in diff.kv.reasons[1]


def test_harmless_configuration_keeps_old_kv_valid() -> None:
    diff = diff_fingerprints(OLD, fingerprint(config=config_json(eos_token_id=[2, 3])))
    assert diff.config == (ConfigChange(key="eos_token_id", old=2, new=[2, 3], affects_kv=False),)
    assert (diff.kv.status, diff.changed) == (KvStatus.VALID, ("release", "config"))


def test_more_layers_invalidate_every_layer() -> None:
    diff = diff_fingerprints(OLD, fingerprint(config=config_json(num_hidden_layers=4)))
    assert (diff.kv.status, diff.kv.layers, diff.kv.valid_layers) == (KvStatus.INVALID, 4, 0)


def test_tying_embeddings_to_another_output_layer_has_a_reason() -> None:
    diff = diff_fingerprints(OLD, fingerprint(config=config_json(tie_word_embeddings=True)))
    assert diff.kv.status is KvStatus.INVALID
    assert "'lm_head.weight'" in diff.kv.reasons[0]


def test_tokenizer_and_template_keep_kv_valid_with_a_note() -> None:
    diff = diff_fingerprints(OLD, fingerprint(tokenizer="t:01", template="c:01", generation="g:01"))
    assert diff.kv.status is KvStatus.VALID
    assert diff.kv.reasons == ()
    assert [note.partition(" changed")[0] for note in diff.kv.notes] == [
        "the tokenizer",
        "the chat template",
        "the generation defaults",
    ]
    assert diff.changed == ("release", "tokenizer", "template", "generation")
    assert diff.summary == (
        f"{STAYS_VALID}, but prompts or answers may differ: the tokenizer, the chat template and "
        "the generation defaults changed."
    )


def test_unknown_architecture_is_unknown_unless_nothing_changed() -> None:
    gemma = config_json("mamba")
    old = fingerprint(config=gemma)
    diff = diff_fingerprints(old, fingerprint(PAYLOADS | {"model.norm.weight": NEW}, gemma))
    assert (diff.kv.status, diff.kv.valid_layers) == (KvStatus.UNKNOWN, None)
    assert "no dependency rule is known for model type 'mamba'" in diff.summary
    assert diff_fingerprints(old, fingerprint(config=gemma)).kv.status is KvStatus.VALID


def test_where_no_rule_applies_no_key_is_said_to_count() -> None:
    old, new = (fingerprint(config=config_json("mamba", eos_token_id=one)) for one in (2, 3))
    found = diff_fingerprints(old, new)
    assert found.kv.status is KvStatus.UNKNOWN
    assert found.kv.reasons[1] == "config.json changed in 'eos_token_id', and no rule tells whether KV depends on it"
    assert found.config == (ConfigChange(key="eos_token_id", old=2, new=3, affects_kv=None),)
    runtime = diff_fingerprints(old, new, runtime=CHANGED_RUNTIME)
    assert (runtime.kv.status, runtime.kv.reasons[1]) == (KvStatus.INVALID, found.kv.reasons[1])


def test_what_cannot_be_compared_is_unknown() -> None:
    digests = msgspec.structs.replace(OLD.digests, kv=OLD.digests.kv.replace("kvfp1", "kvfp9"))
    for other, reason in (
        (fingerprint(config=config_json("mamba")), "different dependency rules, llama.1 and all.1"),
        (replaced(OLD, mode=Mode.FAST), "a fast fingerprint may miss a change"),
        (replaced(OLD, config=None), "one side has no config.json"),
        (replaced(OLD, digests=digests), "different algorithms"),
    ):
        diff = diff_fingerprints(OLD, other)
        assert (diff.kv.status, diff.kv.first_invalid_layer) == (KvStatus.UNKNOWN, None)
        assert reason in diff.kv.reasons[0]


def test_what_is_unknown_says_first_how_it_becomes_known() -> None:
    digests = msgspec.structs.replace(OLD.digests, kv=OLD.digests.kv.replace("kvfp1", "kvfp9"))
    release = ReleaseRef(name="my model", version=None, source="my model", kv_name=None)
    alone = msgspec.structs.replace(OLD.rule, name=ADAPTER_RULE, layers=None)
    again = "fingerprint it in full, and compare again: kvrelease fingerprint 'my model' -o FILE.json"
    for other, step in (
        (replaced(OLD, mode=Mode.FAST, release=release), again),
        (replaced(OLD, digests=digests, release=release), again),
        (
            replaced(OLD, config=None, release=release),
            "give the model's directory, with its config.json: 'my model' is weights alone",
        ),
        (
            replaced(OLD, rule=alone, release=release),
            "kvrelease fingerprint support -o BASE.json, kvrelease fingerprint support --adapter 'my model' -o "
            "WITH.json, then kvrelease diff ",
        ),
    ):
        for pair in ((OLD, other), (other, OLD)):
            found = diff_fingerprints(*pair)
            assert step in found.advice[0]
            assert "bind the new release to a namespace of its own" in found.advice[1]
    runtime = RuntimeChange(
        status=RuntimeStatus.UNKNOWN,
        fields=(RuntimeField(field="version", old="1", new=None),),
        unread=("dtype",),
        sentence="whether the runtime changed is not known: only one side states version",
    )
    found = diff_fingerprints(OLD, OLD, runtime=runtime)
    assert found.advice[0] == (
        "state engine, version and whatever else one side states of its runtime (version) in both files, and compare "
        "again"
    )


def test_advice_about_what_is_known_begins_with_what_to_do() -> None:
    found = diff_fingerprints(OLD, replaced(OLD, mode=Mode.FAST), runtime=CHANGED_RUNTIME)
    assert found.kv.status is KvStatus.INVALID
    assert "bind the new release" in found.advice[0]


@pytest.mark.parametrize(
    ("runtime", "step"),
    [
        (CHANGED_RUNTIME, "declare what it is served under as runtime: in kvrelease.yaml first"),
        (NOT_COMPARED, "kvrelease namespace support --engine KIND --new-epoch"),
    ],
    ids=["runtime", "release"],
)
def test_advice_never_sends_back_into_the_namespace_of_the_old_release(runtime: RuntimeChange, step: str) -> None:
    """Equal kv names are equal namespaces, unless something else is said."""
    named = replaced(OLD, release=msgspec.structs.replace(OLD.release, kv_name="kv1-a"))
    draft = {**(OLD.config or {}), "architectures": ["EagleLlamaForCausalLM"]}
    found = diff_fingerprints(named, replaced(named, config=draft), runtime=runtime)
    assert found.kv.status is not KvStatus.VALID
    assert f"a namespace of its own ({step}" in found.advice[-3]
    moved = replaced(
        fingerprint(dict.fromkeys(PAYLOADS, NEW)), release=msgspec.structs.replace(OLD.release, kv_name="kv1-b")
    )
    found = diff_fingerprints(named, moved, runtime=runtime)
    assert "a namespace of its own (kvrelease namespace support --engine KIND), so" in found.advice[-3]


def test_a_release_without_a_kv_name_is_told_first_what_gives_it_one() -> None:
    why = "code that it names is absent; copy its *.py files beside config.json"
    found = diff_fingerprints(OLD, replaced(OLD, unread=(why,)))
    assert (
        "(it has no kv name yet: copy its *.py files beside config.json; then kvrelease namespace support --engine "
        "KIND), so" in found.advice[0]
    )


def test_a_replaced_adapter_is_not_sent_to_the_namespace_of_its_base() -> None:
    def served(content: str) -> Fingerprint:
        one = AdapterDigest(
            name="support",
            digest=f"{OLD.digests.kv}{content}",
            kv_name=f"kv1-{content}",
            content=f"kvfp1-adapter:{content}",
            source="./lora",
            tensors=2,
            bytes=8,
            config={},
            uncounted={},
        )
        release = msgspec.structs.replace(OLD.release, kv_name="kv1-base")
        return replaced(OLD, adapters=(one,), release=release)

    found = diff_fingerprints(served("0a"), served("0b"))
    assert found.advice[0] == (
        "serve 'support' under names that no adapter was served under before, or salt the requests with each by its kv "
        "name ('support': kv1-0b): the namespace of the base says nothing of them; the base keeps its namespace, and "
        "its cache"
    )
    assert not any("kvrelease namespace" in line for line in found.advice)


def random_release(generator: random.Random) -> Fingerprint:
    """A release near OLD: a few tensors and keys changed, added or removed."""
    payloads, config = dict(PAYLOADS), config_json()
    for name in generator.sample(sorted(payloads), generator.choice([0, 0, 1, 2])):
        if generator.random() < 0.2:
            del payloads[name]
        else:
            payloads[name] = f"{generator.getrandbits(2):064x}"
    if generator.random() < 0.2:
        payloads["model.unknown"] = NEW
    changes: list[JsonObject] = [
        {},
        {"eos_token_id": 9},
        {"rms_norm_eps": 1e-3},
        {"unknown": 1},
        {"model_type": "mamba"},
        {"tie_word_embeddings": True},
        {"num_hidden_layers": 2},
    ]
    config |= generator.choice([*changes, {}, {}])
    return fingerprint(payloads, config, tokenizer=generator.choice(["t:00", "t:01"]))


@pytest.mark.parametrize("seed", range(4))
def test_verdict_always_follows_the_kv_digest(seed: int) -> None:
    generator = random.Random(seed)
    statuses = set()
    for _ in range(60):
        old, new = random_release(generator), random_release(generator)
        diff = diff_fingerprints(old, new)
        statuses.add(diff.kv.status)
        is_same = old.digests.kv == new.digests.kv
        assert (diff.kv.status is KvStatus.VALID) == is_same
        assert ("kv" in diff.changed or "kv" in diff.unknown) != is_same
        if diff.kv.status is KvStatus.INVALID:
            first = diff.kv.first_invalid_layer
            assert first == diff.kv.valid_layers
            assert first is not None
            assert old.layers[:first] == new.layers[:first]
            assert old.layers[first] != new.layers[first]
            assert diff.kv.reasons
            assert "artifacts do not say" not in diff.kv.reasons[0]
        else:
            assert diff.kv.first_invalid_layer is None
    assert statuses == set(KvStatus)


def test_artifact_is_read_back_whole() -> None:
    diff = diff_fingerprints(OLD, fingerprint(PAYLOADS | {"model.norm.weight": NEW}, config_json(new_key={"a": [1]})))
    assert artifacts.from_json(artifacts.to_json(diff).encode(), Diff, source="-") == diff


def test_a_rule_that_one_side_alone_follows_lists_no_keys_that_only_its_table_fills_in() -> None:
    code = {"auto_map": {"AutoModel": "model.Model"}}
    stated = config_json()
    found = diff_fingerprints(OLD, stated_only(stated | code))
    assert [(one.key, one.old) for one in found.config] == [("auto_map", None)]
    assert found.config[0].affects_kv is None  # the new side follows no rule
    assert "config" in found.changed
    assert "kv" in found.unknown
    assert "not known: the config" not in found.summary
    both = diff_fingerprints(stated_only(stated | code), fingerprint(config=stated | {"rms_norm_eps": 1e-5}))
    assert [one.key for one in both.config] == ["auto_map", "rms_norm_eps"]
    assert [one.affects_kv for one in both.config] == [None, None]
    other = diff_fingerprints(OLD, stated_only(stated | {"model_type": "mamba"}))
    # Two model types write rotary parameters in two ways.
    assert {one.key for one in other.config} == {"model_type", "rope_theta"}


def stated_only(config: JsonObject) -> Fingerprint:
    """As a release under `all.1` is fingerprinted: its entries are those that the file states."""
    canonical = canonical_config(config)
    rule = rule_for(canonical)
    assert rule.name == "all.1"
    kv, layers = kv_digests(PAYLOADS, canonical.stated, {}, rule)
    digests = msgspec.structs.replace(OLD.digests, kv=kv, config=config_digest(canonical.stated, {}, rule))
    return replaced(OLD, config=canonical.stated, rule=rule, layers=layers, digests=digests)


def test_two_formats_have_no_tensors_and_no_keys_in_common() -> None:
    converted = fingerprint({f"blk.{name}": digest for name, digest in PAYLOADS.items()}, config_json(general_x=1))
    found = diff_fingerprints(OLD, replaced(converted, format=Format.GGUF))
    assert found.kv.status is KvStatus.UNKNOWN
    assert (found.tensors.added, found.tensors.removed, found.config) == ((), (), ())
    assert {"weights", "kv", "config", "release"} <= {*found.unknown}
    assert found.changed == ()
    assert found.summary.endswith(
        "digests of the two say nothing about each other; no change was seen; not known: the weights and the "
        "configuration."
    )
    assert found.tensors.compared is Compared.NOTHING
    assert re.search("tensors +not compared\n", render_text(diff_document(found)))


def test_adapters_that_nobody_gave_are_not_gone() -> None:
    adapter = AdapterDigest(
        name="s",
        digest=f"{OLD.digests.kv}+a",
        kv_name=None,
        content="a:00",
        source="./s",
        tensors=1,
        bytes=8,
        config={},
        uncounted={},
    )
    served = replaced(OLD, adapters=(adapter,))
    for age, pair in (("new", (served, OLD)), ("old", (OLD, served))):
        found = diff_fingerprints(*pair, ungiven=(age,))
        assert (found.kv.status, found.adapters.count, found.changed) == (KvStatus.UNKNOWN, 0, ())
        assert found.kv.reasons[0].startswith(f"which adapters the {age} release is served with was not given")
        for part in ("kv", "adapters", "any"):
            assert diff_verdict(found, part=part) is Verdict.INCONCLUSIVE
        assert diff_verdict(found, part="weights") is Verdict.PASS
    assert diff_fingerprints(served, OLD).adapters.removed == ("s",)
    assert diff_fingerprints(OLD, OLD, ungiven=("old", "new")).kv.status is KvStatus.VALID
