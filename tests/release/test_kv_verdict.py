"""Which of weights, configuration, runtime and adapters decides about old KV, and what is not known."""

from __future__ import annotations

import msgspec
import pytest

from kvrelease.artifacts import ReleaseRef
from kvrelease.release.adapter import AdapterDigest
from kvrelease.release.algorithm import HEADERS_ALGORITHM
from kvrelease.release.comparison import compare_adapters, compare_tensors
from kvrelease.release.config_change import compare_config
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import KvImpact, KvStatus
from kvrelease.release.digests import kv_digests
from kvrelease.release.file_changes import changed_code, changed_files
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE
from kvrelease.release.kv_verdict import judge_kv
from kvrelease.release.mode import Mode
from kvrelease.release.runtime_change import NOT_COMPARED, RuntimeChange, RuntimeStatus
from tests.release.builders import config_json
from tests.release.fingerprints import NEW, OLD, PAYLOADS, fingerprint, replaced

K_PROJ = "model.layers.1.self_attn.k_proj.weight"
MOVED = fingerprint(PAYLOADS | {K_PROJ: NEW})
OTHER_ROPE = fingerprint(config=config_json(rope_theta=500000.0))
BY_K_PROJ = f"1 tensor changed that may touch KV from layer 1 on: '{K_PROJ}'"
BY_ROPE = "config.json changed in 'rope_parameters', on which KV depends: every layer is invalid"
DIFFERENT, HALF_KNOWN = (
    msgspec.structs.replace(NOT_COMPARED, status=status, sentence=sentence)
    for status, sentence in (
        (RuntimeStatus.DIFFERENT, "the runtime changed (version 1 → 2)"),
        (RuntimeStatus.UNKNOWN, "whether the runtime changed is not known: only one side states version"),
    )
)
SUPPORT = AdapterDigest(
    name="support",
    digest=f"{OLD.digests.kv}0a",
    kv_name=None,
    content="kvfp1-adapter:0a",
    source="./lora",
    tensors=2,
    bytes=8,
    config={},
    uncounted={},
    weights="kvfp1-full:0a",
)
RETRAINED = msgspec.structs.replace(
    SUPPORT, digest=f"{OLD.digests.kv}0b", content="kvfp1-adapter:0b", weights="kvfp1-full:0b"
)
BY_ADAPTER = (
    "the adapter 'support' is another one (its weights changed): KV made with it under that name is invalid, and "
    "engines key KV by the name: serve it under a new one"
)


def judge(
    old: Fingerprint, new: Fingerprint, *, runtime: RuntimeChange = NOT_COMPARED, ungiven: str | None = None
) -> KvImpact:
    return judge_kv(
        old,
        new,
        tensors=compare_tensors(old, new),
        config=compare_config(old, new),
        files=changed_files(old, new),
        code=changed_code(old, new),
        adapters=compare_adapters(old, new),
        ungiven=ungiven,
        runtime=runtime,
    )


def with_digests(base: Fingerprint, **changes: str) -> Fingerprint:
    return replaced(base, digests=msgspec.structs.replace(base.digests, **changes))


def renamed(digest: str, name: str) -> str:
    """A digest that another algorithm made."""
    return f"{name}:{digest.partition(':')[2]}"


UNREAD = replaced(OLD, unread=("weights lie elsewhere; copy them",))
WITHOUT_RULE = fingerprint(config=config_json("mamba"))


# --- the release ---


def test_the_first_layer_that_differs_is_the_first_invalid_one() -> None:
    assert judge(OLD, MOVED) == KvImpact(
        status=KvStatus.INVALID, layers=3, valid_layers=1, first_invalid_layer=1, reasons=(BY_K_PROJ,)
    )


def test_layers_that_say_nothing_leave_the_first_invalid_one_unknown() -> None:
    """As of a rule that only another version of kvrelease knows: no figure stands for what was not counted."""
    for old, new in (
        (replaced(OLD, layers=()), replaced(MOVED, layers=())),
        (OLD, replaced(MOVED, layers=())),
        (OLD, replaced(MOVED, layers=OLD.layers)),
    ):
        found = judge(old, new)
        assert (found.status, found.valid_layers, found.first_invalid_layer) == (KvStatus.INVALID, None, None)
        assert found.reasons == (BY_K_PROJ,)
        assert diff_fingerprints(old, new).summary == (
            "Old KV is invalid, from which layer on is not known: 1 tensor changed."
        )


def test_digests_that_differ_without_a_visible_cause_are_told_as_such() -> None:
    other = with_digests(OLD, kv=f"{OLD.digests.kv}0")
    assert judge(OLD, other).reasons == ("the kv digests differ; the artifacts do not say by what",)
    assert judge(OLD, other).status is KvStatus.INVALID


def test_what_was_not_read_leaves_equal_digests_and_unexplained_ones_unknown_and_no_explained_change() -> None:
    assert (judge(OLD, UNREAD).status, judge(OLD, UNREAD).reasons) == (KvStatus.UNKNOWN, UNREAD.unread)
    unexplained = judge(OLD, with_digests(UNREAD, kv=f"{OLD.digests.kv}0"))
    assert (unexplained.status, unexplained.reasons) == (KvStatus.UNKNOWN, UNREAD.unread)
    explained = judge(OLD, replaced(MOVED, unread=UNREAD.unread))
    assert (explained.status, explained.valid_layers, explained.reasons) == (KvStatus.INVALID, 1, (BY_K_PROJ,))


def test_without_a_rule_a_change_is_unknown_and_everything_is_said_about_it() -> None:
    new = fingerprint(PAYLOADS | {K_PROJ: NEW}, config_json("mamba"))
    found = judge(WITHOUT_RULE, replaced(new, unread=UNREAD.unread))
    assert (found.status, found.valid_layers, found.first_invalid_layer) == (KvStatus.UNKNOWN, None, None)
    assert found.reasons[0] == new.rule.reason
    assert K_PROJ in found.reasons[1]
    assert found.reasons[2:] == UNREAD.unread


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize(
    ("side", "why"),
    [
        (with_digests(MOVED, weights=renamed(MOVED.digests.weights, HEADERS_ALGORITHM)), "the weights were not read"),
        (replaced(MOVED, mode=Mode.FAST), "a fast fingerprint may miss a change, so it cannot say that old KV is "),
        (
            with_digests(MOVED, kv=renamed(MOVED.digests.kv, "kvfp1-stated/llama.1")),
            "the kv digests were made by different algorithms, ",
        ),
    ],
)
def test_weights_that_cannot_be_compared_decide_nothing(side: Fingerprint, why: str, *, is_new: bool) -> None:
    def pair(other: Fingerprint) -> tuple[Fingerprint, Fingerprint]:
        return (other, side) if is_new else (side, other)

    found = judge(*pair(OLD))
    assert (found.status, found.valid_layers, len(found.reasons)) == (KvStatus.UNKNOWN, None, 1)
    assert found.reasons[0].startswith(why)
    decided = judge(*pair(OTHER_ROPE))
    assert (decided.status, decided.valid_layers) == (KvStatus.INVALID, 0)
    assert decided.reasons[0] == BY_ROPE
    assert decided.reasons[1].startswith(f"of the weights nothing is known: {why}")


def test_without_a_rule_a_key_decides_nothing_where_weights_cannot_be_compared() -> None:
    fast = replaced(fingerprint(config=config_json("mamba", eos_token_id=9)), mode=Mode.FAST)
    found = judge(WITHOUT_RULE, fast)
    assert found.status is KvStatus.UNKNOWN
    assert found.reasons == ("a fast fingerprint may miss a change, so it cannot say that old KV is valid",)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_head_on_one_side_is_a_change_and_no_other_algorithm(*, is_new: bool) -> None:
    rule = msgspec.structs.replace(OLD.rule, name="llama.1+head")
    payloads = PAYLOADS | {"mtp.fc.weight": NEW}
    kv, layers = kv_digests(payloads, OLD.config, {}, rule)
    head = with_digests(replaced(fingerprint(payloads), rule=rule, layers=layers), kv=kv)
    found = judge(*((OLD, head) if is_new else (head, OLD)))
    assert (found.status, found.first_invalid_layer) == (KvStatus.INVALID, 0)
    assert "of a draft head" in found.reasons[0]


# --- the runtime ---


def test_another_runtime_decides_whatever_the_release_says() -> None:
    for new, rest in ((OLD, ()), (MOVED, (BY_K_PROJ,)), (UNREAD, ()), (WITHOUT_RULE, ())):
        found = judge(OLD, new, runtime=DIFFERENT)
        assert (found.status, found.valid_layers, found.first_invalid_layer) == (KvStatus.INVALID, 0, 0)
        assert found.reasons == (DIFFERENT.sentence, *rest)


def test_a_runtime_half_known_leaves_nothing_valid_and_invalid_what_is() -> None:
    found = judge(OLD, fingerprint(PAYLOADS | {"model.norm.weight": NEW}), runtime=HALF_KNOWN)
    assert (found.status, found.layers, found.valid_layers) == (KvStatus.UNKNOWN, 3, None)
    assert found.reasons == (
        HALF_KNOWN.sentence,
        "1 tensor changed, and KV depends on none: 'model.norm.weight'",
    )
    for new in (MOVED, UNREAD):
        assert judge(OLD, new, runtime=HALF_KNOWN) == judge(OLD, new)


# --- adapters ---


def test_an_adapter_replaced_under_its_name_is_invalid_and_the_base_stays_what_it_is() -> None:
    old, new = (replaced(OLD, adapters=(one,)) for one in (SUPPORT, RETRAINED))
    assert judge(old, new) == KvImpact(
        status=KvStatus.INVALID,
        layers=3,
        valid_layers=0,
        first_invalid_layer=0,
        reasons=(BY_ADAPTER, "KV of the base alone stays valid in every layer"),
        adapters=("support",),
        base=KvStatus.VALID,
    )
    for base, runtime, why in (
        (new, HALF_KNOWN, HALF_KNOWN.sentence),
        (replaced(new, unread=UNREAD.unread), NOT_COMPARED, UNREAD.unread[0]),
        (replaced(new, mode=Mode.FAST), NOT_COMPARED, "a fast fingerprint may miss a change, so it cannot say that "),
    ):
        found = judge(old, base, runtime=runtime)
        assert (found.status, found.adapters, found.base) == (KvStatus.INVALID, ("support",), KvStatus.UNKNOWN)
        assert found.reasons[:2] == (BY_ADAPTER, "whether KV of the base alone stays valid is not known")
        assert found.reasons[2].startswith(why)
        told = diff_fingerprints(old, base, runtime=runtime)
        assert "and whether it is valid without them is unknown" in told.summary
        step, bind = told.advice[-4:-2]
        assert step.startswith("serve 'support' under names that no adapter was served under before: the namespace of")
        assert bind.startswith("engines and stores key KV by tokens")
        assert (told.advice[0] == step) == (base.unread != ())


def test_where_all_old_kv_is_invalid_adapters_decide_nothing() -> None:
    old, new = replaced(OLD, adapters=(SUPPORT,)), replaced(MOVED, adapters=(RETRAINED,))
    assert judge(old, new) == judge(OLD, MOVED)
    same = replaced(OLD, adapters=(RETRAINED,))
    assert judge(old, same, runtime=DIFFERENT) == judge(OLD, OLD, runtime=DIFFERENT)


def test_an_adapter_that_only_its_base_made_another_one_is_as_unknown_as_the_base() -> None:
    moved = fingerprint(PAYLOADS | {K_PROJ: NEW}, config_json("mamba"))
    on_another_base = msgspec.structs.replace(SUPPORT, digest=f"{OLD.digests.kv}0b")
    old, new = replaced(WITHOUT_RULE, adapters=(SUPPORT,)), replaced(moved, adapters=(on_another_base,))
    assert compare_adapters(old, new).changed == ("support",)
    assert judge(old, new) == judge(WITHOUT_RULE, moved)


def test_an_adapter_without_its_base_is_served_under_no_name() -> None:
    rule = msgspec.structs.replace(OLD.rule, name=ADAPTER_RULE, layers=None)
    named = ReleaseRef(name="support", version=None, source="support", kv_name=None)
    alone = [replaced(OLD, rule=rule, release=named, adapters=(one,)) for one in (SUPPORT, RETRAINED)]
    served = replaced(OLD, adapters=(SUPPORT,))
    for pair in (alone, (served, alone[1]), (alone[1], served)):
        found = judge(*pair)
        assert (found.status, found.adapters, found.base) == (KvStatus.UNKNOWN, (), None)


def test_adapters_that_nobody_gave_leave_the_rest_unknown() -> None:
    found = judge(OLD, OLD, ungiven="which adapters it is served with was not given")
    assert (found.status, found.reasons) == (KvStatus.UNKNOWN, ("which adapters it is served with was not given",))
