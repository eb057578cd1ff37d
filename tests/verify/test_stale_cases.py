"""Public reports of stale KV after an upgrade (docs/cases.md, "Verifying"): what the gate says of each.

Several ranks, images and stores that need hardware run on scripted servers whose replies are derived from source.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from kvrelease.engines.base import EngineKind
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.checks import CheckId
from kvrelease.verify.consistency import ProbeVerdict
from kvrelease.verify.distance import distance
from kvrelease.verify.judge import VerifyReport
from kvrelease.verify.suspicion import leg_distances
from kvrelease.verify.twins import Twins
from kvrelease.workload.prompt_set import PromptSet
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import deployment, observed, prompts, recorded, serve_users, verified
from tests.verify.hit_path import HitPath
from tests.verify.scenarios.servers import DESK, LIMITS, SALTED, UNSALTED
from tests.verify.scenarios.verdicts import assert_fails, assert_open, assert_passes, says


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(IN_MEMORY) as store:
        yield store


def gate(engine: ScriptedEngine, *, model: str | None = None, prompt_set: PromptSet = DESK) -> VerifyReport:
    return verified(engine, deployed=deployment(prompt_set=prompt_set), limits=LIMITS, model=model)


def test_a3_prompts_that_nobody_sent_before_show_nothing_and_those_of_the_set_do() -> None:
    """https://github.com/NVIDIA-NeMo/RL/pull/4018: KV up to 17 updates old under a shared prefix."""
    with ScriptedEngine(release="old") as engine:
        serve_users(engine, prompt_set=DESK)
        engine.reload("new")
        fresh = gate(engine, prompt_set=prompts(per_desk=4, desks=("nobody",), words=30))
        assert_passes(fresh)
        # Other questions than those that were asked, under the system prompt that all of them share.
        asked = prompts(per_desk=8, desks=("returns",), words=30)
        others = msgspec.structs.replace(asked, prompts=asked.prompts[4:])
        assert_fails(gate(engine, prompt_set=others), CheckId.CONSISTENCY)


def test_a4_a_clear_that_was_configured_and_not_done_is_seen_in_the_first_request() -> None:
    """https://github.com/NovaSky-AI/SkyRL/issues/2246: `clear_kv_cache_on_weight_sync` is a silent no-op."""
    cold = msgspec.structs.replace(LIMITS, expects_cold=True)
    with ScriptedEngine(release="old") as engine:
        serve_users(engine, prompt_set=DESK)
        engine.reload("new")
        stale = verified(engine, deployed=UNSALTED, limits=cold)
        assert_fails(stale, CheckId.FIRST_TOUCH, CheckId.CONSISTENCY)
        assert "nobody was to have sent it a request yet" in says(stale, CheckId.FIRST_TOUCH)
        engine.flush()
        assert_passes(verified(engine, deployed=UNSALTED, limits=cold))


def test_a5_what_is_warm_after_the_update_differs_while_cold_and_warm_of_the_new_weights_agree() -> None:
    """https://github.com/InternLM/lmdeploy/issues/4917: O3 is neither O5 nor the old answer, and O4 equals O5."""
    with ScriptedEngine(release="old") as engine:
        warm_old = recorded(engine, deployed=deployment("old", prompt_set=DESK))
        engine.reload("new")
        found = observed(engine, deployed=UNSALTED, limits=LIMITS)
    before = {one.id: one.leg.observation for one in warm_old.observations}
    for probe in found.evidence.replicas[0].probes:
        assert probe.cold is not None
        warm_after, warm_new = probe.production[0].observation, probe.clean[0].observation
        assert distance(probe.cold.observation, warm_new).nats == pytest.approx(0, abs=1e-6)
        assert min(one.nats or 0.0 for one in leg_distances(probe)) > 0.01
        assert (distance(warm_after, before[probe.id]).nats or 0.0) > 0.01


def test_a7_pages_that_a_flush_left_in_the_store_are_served_to_the_new_weights() -> None:
    """https://github.com/sgl-project/sglang/issues/26792, https://github.com/sgl-project/sglang/pull/29443."""
    with ScriptedEngine(EngineKind.SGLANG, release="old", store={}) as engine:
        serve_users(engine, prompt_set=DESK)
        engine.reload("new", reset=True)
        stale = gate(engine)
        assert_fails(stale, CheckId.CONSISTENCY)
        assert sum(probe.cached_tokens or 0 for probe in stale.probes) > 0


def test_a8_a_restart_with_other_weights_under_the_same_name_and_directory() -> None:
    """https://github.com/sgl-project/sglang/issues/24758, https://github.com/Tanguille/cluster/pull/4213.

    https://github.com/vllm-project/vllm/pull/51875: hashes no longer depend on the process, so that instances share a
    store out of the box.
    """
    with ScriptedEngine(EngineKind.SGLANG, release="old", store={}) as engine:
        serve_users(engine, prompt_set=DESK)
        engine.restart("new")
        stale = gate(engine)
        assert_fails(stale, CheckId.CONSISTENCY)
        assert "unsalted requests have no version in their keys" in says(stale, CheckId.KEYS)
        # The namespace has the fingerprint in it: nothing of another release can be found there.
        bound = verified(engine, deployed=SALTED, limits=LIMITS)
        assert_passes(bound)
        assert CheckId.KEYS not in {check.id for check in bound.checks}


def test_a11_hits_that_a_new_engine_version_reads_in_another_layout() -> None:
    """https://github.com/ai-dynamo/dynamo/issues/14416: what is computed is right, hits are corrupt, no error."""
    with HitPath(shift_nats=3.0, release="new") as engine:
        corrupt = gate(engine)
        assert_fails(corrupt, CheckId.REUSE)
        assert "the cache does not give back what was put in" in says(corrupt, CheckId.REUSE)
    with HitPath(shift_nats=0.01, release="new") as engine:
        assert_passes(gate(engine))


def test_a13_an_adapter_reads_what_another_one_wrote_into_a_store_without_adapters_in_its_keys() -> None:
    """https://github.com/vllm-project/vllm/issues/44250, https://github.com/LMCache/LMCache/issues/2961."""
    with ScriptedEngine(release="new", loras={"a": "a-1", "b": "b-1"}, store={}) as engine:
        gate(engine, model="a")  # its users, by a ledger that is thrown away
        engine.flush()
        stale = gate(engine, model="b")
        assert_fails(stale, CheckId.CONSISTENCY)


def test_a20_workers_of_two_releases_behind_one_service() -> None:
    """https://github.com/vllm-project/vllm/pull/55776, https://github.com/vllm-project/vllm/pull/29503.

    Also https://github.com/kserve/kserve/issues/5725, https://github.com/llm-d/llm-d/pull/1552,
    https://github.com/kserve/website/pull/704: every backend of a split is asked, and what it computes is compared.
    """
    with (
        ScriptedEngine(release="new", strength_nats=1.0) as new,
        ScriptedEngine(release="old", strength_nats=1.0) as old,
    ):
        golden = recorded(new, deployed=UNSALTED)
        new.flush()
        mixed = verified(new, old, deployed=UNSALTED, limits=LIMITS, twins=Twins(golden=golden))
        assert_fails(mixed, CheckId.IDENTITY, CheckId.REPLICAS)
        assert says(mixed, CheckId.REPLICAS) == f"fail: other weights than the rest: {old.url}"


def test_a29_weights_that_were_not_all_brought_back_agree_with_themselves_and_with_no_clean_process() -> None:
    """https://github.com/NVIDIA-NeMo/RL/issues/2631; https://github.com/vllm-project/vllm/pull/54338.

    Fluent nonsense is consistent: only answers that are known from elsewhere tell.
    """
    with ScriptedEngine(release="new", strength_nats=1.0) as staging:
        golden = recorded(staging, deployed=UNSALTED)
    with ScriptedEngine(release="new-in-part", strength_nats=1.0) as engine:
        broken = verified(engine, deployed=UNSALTED, limits=LIMITS, twins=Twins(golden=golden))
        assert_fails(broken, CheckId.IDENTITY)
        assert says(broken, CheckId.CONSISTENCY).startswith("pass")


def test_a33_block_keys_that_can_be_made_to_collide_are_told() -> None:
    """https://github.com/vllm-project/vllm/pull/12621, https://github.com/vllm-project/vllm/pull/15297.

    Also https://github.com/vllm-project/vllm/pull/29163.
    """
    with ScriptedEngine(release="new") as engine:
        engine.cache_labels["prefix_caching_hash_algo"] = "xxhash"
        report = gate(engine)
        assert_passes(report)
        assert "blocks are hashed with xxhash" in says(report, CheckId.KEYS)


def test_a38_a_runner_that_still_serves_what_was_loaded_under_a_name_that_moved() -> None:
    """https://github.com/ollama/ollama/issues/2617, https://github.com/mondoohq/mql/pull/9372."""
    with (
        ScriptedEngine(EngineKind.OPENAI, release="old") as runner,
        ScriptedEngine(EngineKind.VLLM, release="new") as reference,
    ):
        alone = gate(runner)
        assert_open(alone, CheckId.BYPASS, CheckId.CONSISTENCY)
        runner.flush()
        report = verified(runner, deployed=UNSALTED, limits=LIMITS, reference=reference)
        assert_open(report, CheckId.IDENTITY, CheckId.POWER)
        assert "One of the two engines runs other weights" in says(report, CheckId.IDENTITY)


def test_a41_entries_that_hold_something_else_than_what_was_put_there() -> None:
    """https://github.com/sgl-project/sglang/issues/35484: two ranks wrote one file; read after a restart.

    Also https://github.com/local-inference-lab/vllm/issues/480: a block that was evicted, and is hit all the same; and
    https://github.com/vllm-project/vllm/issues/49250, https://github.com/LMCache/LMCache/pull/1835: a load that failed
    and was called recovered.
    """
    store: dict[str, str] = {}
    with ScriptedEngine(release="new", store=store) as engine:
        serve_users(engine, prompt_set=DESK)
        engine.restart()
        assert_passes(gate(engine))
        for key in list(store)[::2]:
            store[key] = "another rank"
        engine.restart()
        broken = gate(engine)
        assert_fails(broken, CheckId.CONSISTENCY)
        assert {probe.verdict for probe in broken.probes} <= {ProbeVerdict.STALE, ProbeVerdict.SUSPECT}
