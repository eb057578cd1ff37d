"""Public reports about prewarming a fleet, each as a test; `docs/cases.md` names the report of each."""

from __future__ import annotations

import msgspec
import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.binding.deployment import prepare_all
from kvrelease.binding.ranks import RankProof
from kvrelease.binding.unready import ready_ones
from kvrelease.engines.base import Capabilities, Counters, EngineClient, EngineIdentity, EngineKind
from kvrelease.engines.foreign import as_object
from kvrelease.engines.metrics import parse_metrics
from kvrelease.engines.vllm_runtime import read_cache
from kvrelease.errors import PromptTooLong, Refused
from kvrelease.fleet.opening import Fleet
from kvrelease.ledger.store import IN_MEMORY, Ledger
from tests.engines.clients import ask, chat, use
from tests.engines.scripted import Break, ScriptedEngine
from tests.fleet.test_opening import reached, with_fleet
from tests.fleet.test_ranks import proofs
from tests.fleet.test_readiness import only, waiting
from tests.verify.deployments import deployment, with_clients


async def identity(client: EngineClient) -> EngineIdentity:
    return await client.identify()


def capabilities(engine: ScriptedEngine) -> Capabilities:
    return use(engine.url, identity).capabilities


# --- c1 to c3: what usage says --------------------------------------------------------------------------------------


def test_c1_null_usage_is_unknown_and_the_counters_still_tell() -> None:
    """https://github.com/vllm-project/vllm/issues/44961
    https://github.com/vllm-project/vllm/issues/16162
    """

    async def main(client: EngineClient) -> tuple[int | None, float | None]:
        await client.complete(chat())
        before = await client.counters()
        again = await client.complete(chat())
        after = await client.counters()
        assert before is not None
        assert after is not None
        grown = after.since(before)
        return again.cached_tokens, None if grown is None else grown.cached_tokens

    with ScriptedEngine(reports_cached_tokens=False) as engine:
        told, counted = use(engine.url, main)
        assert told is None
        assert counted == engine.cached_of[-1] > 0


def test_c2_a_server_that_reports_nothing_looks_alike_on_a_hit_and_on_a_miss_and_neither_is_zero() -> None:
    """https://github.com/sgl-project/sglang/pull/28801
    https://github.com/sgl-project/sglang/issues/4707
    """
    with ScriptedEngine(EngineKind.OPENAI, reports_cached_tokens=False) as engine:
        assert [found.cached_tokens for found in ask(engine.url, chat(), chat())] == [None, None]
        assert engine.cached_of[-1] > 0


@pytest.mark.parametrize("streams", [False, True])
def test_c3_usage_is_read_streamed_or_not_and_asked_for_in_a_stream(*, streams: bool) -> None:
    """https://github.com/jundot/omlx/issues/919
    https://github.com/modelscope/evalscope/issues/1506
    https://github.com/ai-dynamo/dynamo/issues/14938
    """
    with ScriptedEngine() as engine:
        _, again = ask(engine.url, chat(streams=streams), chat(streams=streams))
        assert again.cached_tokens == engine.cached_of[-1] > 0
        options = as_object(engine.generations()[-1].body.get("stream_options"))
        assert options.get("include_usage") is (True if streams else None)


# --- c4 to c7: which cache a request meets --------------------------------------------------------------------------


def test_c4_each_rank_is_asked_by_its_own_header_and_none_is_left_out() -> None:
    """https://github.com/sgl-project/sglang/pull/30748
    https://github.com/ai-dynamo/dynamo/pull/11526
    """
    with ScriptedEngine(ranks=4) as engine:
        found = with_fleet(msgspec.structs.replace(reached(engine.url), ranks=None), proofs)
        assert [proof for _, proof, _ in found] == [RankProof.PROVEN] * 4
        assert set(engine.rank_of) == set(range(4))


def test_c5_a_rank_header_that_is_ignored_with_200_is_not_taken_for_success() -> None:
    """https://github.com/sgl-project/sglang/pull/38729
    https://github.com/vllm-project/vllm/pull/42330
    """
    with ScriptedEngine(ranks=2, honours_rank=False) as engine:
        found = with_fleet(msgspec.structs.replace(reached(engine.url), ranks=None), proofs)
        assert {proof for _, proof, _ in found} == {RankProof.IGNORED}


def test_c6_ranks_that_take_turns_are_pinned_so_that_a_repetition_hits() -> None:
    """https://github.com/vllm-project/vllm/issues/52463
    https://github.com/sgl-project/sglang/issues/26611
    """

    async def twice(fleet: Fleet) -> list[int | None]:
        found = []
        for _ in range(2):
            observation = await fleet.engines[0].complete(chat())  # type: ignore[union-attr]
            found.append(observation.cached_tokens)
        return found

    with ScriptedEngine(ranks=2) as engine:
        assert with_fleet(reached(engine.url), twice) == [0, 0]
    with ScriptedEngine(ranks=2) as engine:
        first, again = with_fleet(msgspec.structs.replace(reached(engine.url), ranks=None), twice)
        assert first == 0
        assert again is not None
        assert again > 0


def test_c7_ranks_behind_one_port_and_endpoints_of_their_own_are_both_replicas() -> None:
    """https://github.com/llm-d/llm-d-router/pull/750"""

    async def main(fleet: Fleet) -> list[tuple[str, int | None]]:
        return [(engine.url, engine.rank) for engine in fleet.engines]

    with ScriptedEngine(ranks=2) as inside, ScriptedEngine() as outside:
        access = msgspec.structs.replace(reached(inside.url, outside.url), ranks=None)
        assert with_fleet(access, main) == [(inside.url, 0), (inside.url, 1), (outside.url, None)]


# --- c8 to c12, c28: what can be cached -----------------------------------------------------------------------------


def test_c8_a_block_longer_than_the_context_is_said_to_cache_nothing() -> None:
    """https://github.com/vllm-project/vllm/pull/48402"""
    with ScriptedEngine(block_tokens=8320, context_tokens=4096) as engine:
        why = capabilities(engine).why_nothing_is_cached
        assert why is not None
        assert why.startswith("cannot be cached: ")
        assert "8320" in why
        assert "4096" in why


@pytest.mark.parametrize(
    ("labels", "block"),
    [
        ({"mamba_cache_mode": "align", "mamba_block_size": 528}, 528),
        ({"mamba_cache_mode": "none", "mamba_block_size": 528}, 16),
        ({"cache_hit_alignment_tokens": 1056, "mamba_cache_mode": "align", "mamba_block_size": 528}, 1056),
        ({"effective_attention_block_size": 64}, 64),
        ({"prefix_match_unit": 32, "effective_attention_block_size": 1024}, 32),
        ({"cache_hit_alignment_tokens": None, "prefix_match_unit": None}, 16),
    ],
)
def test_c8_the_block_is_the_one_that_a_hit_aligns_to(labels: dict[str, object], block: int) -> None:
    with ScriptedEngine(block_tokens=16) as engine:
        engine.cache_labels = labels
        assert capabilities(engine).block_tokens == block


def test_c9_what_a_hit_can_be_is_whole_blocks_of_what_is_shared() -> None:
    """https://github.com/vllm-project/vllm/issues/45238"""
    found = Capabilities(block_tokens=528)
    assert found.expected_hit(1500) == 1056
    assert found.why_not_cached(500) == "cannot be cached: 500 tokens, and below 529 nothing of a prompt can hit"


def speculating(**config: object) -> JsonObject:
    return {"vllm_config": {"speculative_config": dict(config)}}


PAGE = parse_metrics(
    '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size="16"} 1.0\n', source="page"
)


@pytest.mark.parametrize(
    ("info", "lost"),
    [
        (speculating(method="mtp"), 16),
        (speculating(method="eagle3"), 16),
        (speculating(method="eagle", disable_eagle_block_drop=True), 0),
        (speculating(method="ngram"), 0),
        ({"vllm_config": {"speculative_config": None}}, 0),
        (None, 0),
    ],
)
def test_c10_a_decoder_that_reads_hidden_states_gives_up_the_last_block(info: JsonObject | None, lost: int) -> None:
    """https://github.com/vllm-project/vllm/issues/53504"""
    assert read_cache(info, PAGE).lost_tokens == lost


def test_c11_a_full_hit_is_never_the_whole_prompt() -> None:
    """https://github.com/vllm-project/vllm/pull/11186
    https://github.com/vllm-project/vllm/pull/9972
    """
    found = Capabilities(block_tokens=16)
    assert [found.expected_hit(tokens) for tokens in (16, 17, 32, 33)] == [0, 16, 16, 32]
    assert Capabilities(block_tokens=16, lost_tokens=16).expected_hit(33) == 16


def test_c12_where_windows_may_discard_a_prompt_the_way_out_is_named() -> None:
    """https://github.com/ggml-org/llama.cpp/issues/14157
    https://github.com/ggml-org/llama.cpp/pull/13194
    """
    with ScriptedEngine(EngineKind.LLAMACPP) as engine:
        assert any("--swa-full" in cause for cause in capabilities(engine).miss_causes)


def test_c28_prefix_caching_that_a_flag_turned_off_is_told_before_anything_is_sent() -> None:
    """https://github.com/rwlove/home-ops/pull/13384"""
    with ScriptedEngine() as engine:
        engine.cache_labels = {"enable_prefix_caching": False, "cache_dtype": "fp8"}
        why = capabilities(engine).why_nothing_is_cached
        assert why == "cannot be cached: this server has prefix caching off (enable_prefix_caching is false)"
        assert not engine.generations()


def test_c28_what_lets_an_identical_prompt_miss_is_listed_for_every_engine() -> None:
    for kind in (EngineKind.VLLM, EngineKind.LLAMACPP, EngineKind.OPENAI):
        with ScriptedEngine(kind) as engine:
            assert len(capabilities(engine).miss_causes) >= 2


# --- c14, c24: readiness --------------------------------------------------------------------------------------------


def test_c14_what_readiness_generates_is_unique_and_in_a_key_space_of_its_own() -> None:
    """https://github.com/waybarrios/vllm-mlx/pull/373"""
    with ScriptedEngine() as engine:
        for _ in range(2):
            with_fleet(waiting(engine.url), only)
        first, second = engine.generations()
        assert first.body["prompt"] != second.body["prompt"]
        assert all(str(seen.body["cache_salt"]).startswith("kvrelease-ready-") for seen in (first, second))
        assert [seen.body["max_tokens"] for seen in (first, second)] == [1, 1]


def test_c24_a_server_that_is_healthy_and_cannot_answer_is_not_ready() -> None:
    """https://github.com/kubernetes-sigs/gateway-api-inference-extension/issues/558
    https://github.com/llm-d/llm-d/pull/330
    https://github.com/civitai/civitai/pull/2193
    https://github.com/aprin-labs/archimedes/issues/1713
    """
    with ScriptedEngine() as engine:
        engine.break_with(Break.LOADING, times=2)
        assert with_fleet(waiting(engine.url), only) == engine.url
        assert len(engine.generations()) == 3


# --- c20, c21: what is tried again ----------------------------------------------------------------------------------


def test_c20_prompt_and_budget_together_must_fit_and_are_not_sent_where_they_do_not() -> None:
    """https://github.com/kubernetes-sigs/inference-perf/issues/617
    https://github.com/vllm-project/vllm/issues/20409
    """

    async def main(clients: list[EngineClient]) -> list[str]:
        with Ledger(IN_MEMORY) as ledger:
            found = await prepare_all(clients, deployment=deployment(), memory=ledger, max_tokens=4000)
        _, unready = ready_ones(found)
        assert all(isinstance(one.error, PromptTooLong) for one in unready)
        return [one.error.message for one in unready]

    with ScriptedEngine(context_tokens=4050) as engine:
        (message,) = with_clients([engine], main)
        assert "with 4000 to generate" in message
        assert not engine.generations()


def test_c20_a_400_is_not_tried_again() -> None:
    with ScriptedEngine() as engine:
        engine.break_with(Break.BAD_REQUEST)
        with pytest.raises(Refused):
            ask(engine.url, chat())
        assert len(engine.generations()) == 1


def test_c21_a_full_queue_is_outlasted_and_told_to_who_paces_the_requests() -> None:
    """https://github.com/huggingface/speech-to-speech/pull/353
    https://github.com/fw-ai/benchmark/pull/133
    https://github.com/kaito-project/kaito/pull/2205
    """
    with ScriptedEngine() as engine:
        engine.break_with(Break.BUSY, times=6)
        (found,) = ask(engine.url, chat())
        assert (found.retries, found.was_throttled, found.retry_after_s) == (6, True, 0.0)
        (calm,) = ask(engine.url, chat())
        assert (calm.retries, calm.was_throttled, calm.retry_after_s) == (0, False, None)


def test_c21_a_queue_that_stays_full_is_an_error_that_says_so() -> None:
    with ScriptedEngine() as engine:
        engine.break_with(Break.BUSY)
        with pytest.raises(Refused) as caught:
            ask(engine.url, chat())
        assert (caught.value.status, caught.value.was_throttled, caught.value.retry_after_s) == (429, True, 0.0)


def test_c21_connections_that_drop_are_tried_again() -> None:
    with ScriptedEngine() as engine:
        engine.break_with(Break.DROP, times=3)
        (found,) = ask(engine.url, chat())
        assert (found.retries, found.was_throttled) == (3, False)


# --- c25: counters --------------------------------------------------------------------------------------------------


def test_c25_a_restart_makes_the_window_unknown_and_never_negative() -> None:
    """https://github.com/vllm-project/vllm/pull/30522
    https://github.com/LMCache/LMCache/issues/2912
    https://github.com/LMCache/LMCache/issues/2574
    """
    before = Counters(queried_tokens=1000, cached_tokens=500)
    assert Counters(queried_tokens=10, cached_tokens=5).since(before) is None
    assert Counters(queried_tokens=1010, cached_tokens=5).since(before) is None
    assert Counters(queried_tokens=1010, cached_tokens=520).since(before) is None  # more found than looked up


def test_c25_an_external_counter_that_goes_back_is_unknown_by_itself() -> None:
    before = Counters(queried_tokens=1000, cached_tokens=500, external_cached_tokens=300)
    after = Counters(queried_tokens=1100, cached_tokens=550, external_cached_tokens=0, waiting_requests=4)
    assert after.since(before) == Counters(
        queried_tokens=100, cached_tokens=50, external_cached_tokens=None, waiting_requests=4
    )


def test_c25_both_historic_names_are_read_and_series_add_up() -> None:
    page = parse_metrics(
        "# TYPE vllm:gpu_prefix_cache_hits counter\n"
        'vllm:gpu_prefix_cache_hits{engine="0"} 3\nvllm:gpu_prefix_cache_hits{engine="1"} 4\n',
        source="page",
    )
    assert page.total("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits") == 7
    assert page.total("vllm:gpu_prefix_cache_hits", only={"engine": "1"}) == 4
    assert page.total("vllm:gpu_prefix_cache_hits", only={"engine": "2"}) is None


def test_the_queue_of_an_engine_is_told() -> None:
    async def main(client: EngineClient) -> float | None:
        counters = await client.counters()
        return None if counters is None else counters.waiting_requests

    with ScriptedEngine() as engine:
        engine.waiting = 7
        assert use(engine.url, main) == 7
