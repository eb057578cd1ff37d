"""The in-process engine, on tiny random releases."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import Counters, EngineKind, Observation, Request, Route
from kvrelease.engines.block_cache import TOKENS_ONLY, BlockCache, KeyScheme
from kvrelease.engines.block_files import BlockFiles
from kvrelease.engines.local import LocalEngine, open_local, stale_and_clean
from kvrelease.engines.local_kv import kv_shape
from kvrelease.engines.local_release import load
from kvrelease.errors import (
    DamagedFile,
    InputError,
    MissingExtra,
    NotFound,
    PromptTooLong,
    Refused,
    UnsupportedRelease,
    UsageError,
)
from tests.engines.in_process import opened
from tests.loops import run
from tests.tiny_models import BYTES, CHAT_TEMPLATE, END_ID, VOCABULARY, build_release, save_tokenizer

BLOCK = 16
# Widest difference between a hit and a cold run in float32: 5e-6 nats over the property test below; both compute the
# same sums in another order. A stale prefix of these releases differs by 2.4 nats or more.
MAX_HIT_GAP_NATS = 1e-4
MIN_STALE_GAP_NATS = 1.0


@pytest.fixture(scope="module")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_release(tmp_path_factory.mktemp("old") / "tiny", seed=1)


@pytest.fixture(scope="module")
def new_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_release(tmp_path_factory.mktemp("new") / "tiny", seed=2)


def prompt(tokens: int, *, seed: int = 0, **options: Any) -> Request:
    ids = np.random.default_rng(seed).integers(0, BYTES, tokens).tolist()
    fields: dict[str, Any] = {"body": {"prompt": ids}, "max_tokens": 6, "top_logprobs": VOCABULARY, **options}
    return Request(route=Route.COMPLETIONS, **fields)


def chat(text: str = "hello", *, body: JsonObject | None = None, max_tokens: int = 6) -> Request:
    messages = [{"role": "system", "content": "Be kind. " * 8}, {"role": "user", "content": text}]
    return Request(route=Route.CHAT, body={"messages": messages, **(body or {})}, max_tokens=max_tokens)


def ask(engine: LocalEngine, request: Request) -> Observation:
    return run(engine.complete(request))


def ids_of(observation: Observation) -> list[int | None]:
    return [token.token_id for token in observation.tokens]


def gap_nats(one: Observation, other: Observation) -> float:
    """Largest difference of any token's log-probability, over the positions that follow the same text in both."""
    gap = 0.0
    for left, right in zip(one.tokens, other.tokens, strict=True):
        theirs = {top.token: top.logprob for top in right.top}
        assert len(theirs) == len(left.top) == VOCABULARY
        gap = max([gap, *(abs(top.logprob - theirs[top.token]) for top in left.top)])
        if left.token_id != right.token_id:
            break
    return gap


class TestHits:
    @pytest.mark.parametrize("tokens", [1, 15, 16, 17, 32, 33, 100, 240, 241])
    def test_all_full_blocks_but_the_one_of_the_last_token_are_hit(self, new_release: Path, tokens: int) -> None:
        engine = opened(new_release)
        cold, hit = ask(engine, prompt(tokens)), ask(engine, prompt(tokens))
        assert (cold.cached_tokens, cold.prompt_tokens) == (0, tokens)
        assert (hit.cached_tokens, hit.prompt_tokens) == ((tokens - 1) // BLOCK * BLOCK, tokens)

    def test_a_hit_answers_as_a_cold_run_does(self, new_release: Path) -> None:
        gaps = []
        for seed in range(30):
            engine = opened(new_release, block_tokens=(1, 8, 16)[seed % 3])
            request = prompt(17 + 7 * seed, seed=seed)
            cold, hit = ask(engine, request), ask(engine, request)
            assert ids_of(cold) == ids_of(hit)
            assert hit.text == cold.text
            assert hit.cached_tokens
            gaps.append(gap_nats(cold, hit))
        assert max(gaps) < MAX_HIT_GAP_NATS

    def test_a_shared_beginning_is_hit_up_to_its_last_full_block(self, new_release: Path) -> None:
        engine = opened(new_release)
        shared = np.random.default_rng(5).integers(0, BYTES, 70).tolist()
        ask(engine, prompt(0, body={"prompt": [*shared, 1, 2, 3]}))
        assert ask(engine, prompt(0, body={"prompt": [*shared, 4, 5, 6, 7]})).cached_tokens == 64

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_half_precision_runs_and_hits(self, new_release: Path, dtype: str) -> None:
        engine = opened(new_release, dtype=dtype)
        cold, hit = ask(engine, prompt(64)), ask(engine, prompt(64))
        assert hit.cached_tokens == 48
        assert gap_nats(cold, hit) < 0.05  # nats; widest seen over the property test: 0.007
        assert run(engine.identify()).runtime["dtype"] == dtype

    def test_blocks_in_eight_bits_answer_hits_alike_and_a_little_apart_from_misses(self, new_release: Path) -> None:
        engine = opened(new_release, kv_cache_dtype="fp8_e4m3")
        cold, hit, again = (ask(engine, prompt(64)) for _ in range(3))
        assert (cold.cached_tokens, hit.cached_tokens, again.cached_tokens) == (0, 48, 48)
        assert gap_nats(hit, again) == 0.0
        assert MAX_HIT_GAP_NATS < gap_nats(cold, hit) < 0.5
        # A quarter of what float32 takes, of keys and of values.
        assert engine.cache.usage().size_bytes == engine.cache.usage().blocks * 2 * engine.shape.half_bytes
        assert engine.shape.half_bytes == opened(new_release).shape.half_bytes // 4
        runtime = run(engine.identify()).runtime
        assert (runtime["dtype"], runtime["kv_cache_dtype"]) == ("float32", "float8_e4m3fn")

    def test_what_eight_bits_cannot_hold_is_cut_off_and_no_nan(self, tmp_path: Path) -> None:
        release = build_release(tmp_path / "loud", seed=2)
        tensors = load_file(release / "model.safetensors")
        tensors["model.layers.0.self_attn.v_proj.weight"] *= 1000
        save_file(tensors, release / "model.safetensors")
        engine = opened(release, kv_cache_dtype="fp8_e4m3")
        ask(engine, prompt(64))
        hit = ask(engine, prompt(64))
        assert hit.cached_tokens == 48
        assert all(token.logprob is not None for token in hit.tokens)

    def test_blocks_of_another_kv_dtype_are_no_hit(self, new_release: Path) -> None:
        cache = BlockCache()
        ask(opened(new_release, cache=cache), prompt(64))
        assert ask(opened(new_release, cache=cache, kv_cache_dtype="fp8_e4m3"), prompt(64)).cached_tokens == 0

    def test_a_replica_has_the_same_weights_and_a_cache_and_process_of_its_own(self, new_release: Path) -> None:
        engine = opened(new_release)
        other = engine.replica()
        assert run(other.identify()).process != run(engine.identify()).process
        first = ask(engine, prompt(64))
        assert ask(other, prompt(64)).cached_tokens == 0
        assert ask(other, prompt(64)).cached_tokens == 48
        assert gap_nats(first, ask(other, prompt(64))) < MAX_HIT_GAP_NATS
        sharing = engine.replica(cache=engine.cache)
        assert engine.cache.is_shared
        run(sharing.aclose())
        assert not engine.cache.is_shared

    def test_requests_at_the_same_time_answer_as_one_by_one(self, new_release: Path) -> None:
        engine = opened(new_release)
        requests = [prompt(40, seed=seed) for seed in range(6)]

        async def together() -> list[Observation]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(engine.complete(request)) for request in requests]
            return [task.result() for task in tasks]

        alone = [ids_of(ask(opened(new_release), request)) for request in requests]
        assert [ids_of(observation) for observation in run(together())] == alone


class TestTheIncident:
    def test_a_tokens_only_key_serves_the_new_release_the_old_ones_blocks(
        self, old_release: Path, new_release: Path
    ) -> None:
        store = BlockCache()
        old, new = opened(old_release, cache=store), opened(new_release, cache=store)
        clean = ask(opened(new_release), prompt(100))
        ask(old, prompt(100))
        stale = ask(new, prompt(100))
        assert stale.cached_tokens == 96
        assert stale.text != clean.text
        assert gap_nats(stale, clean) > MIN_STALE_GAP_NATS

    def test_a_namespace_in_the_key_keeps_them_apart(self, old_release: Path, new_release: Path) -> None:
        store = BlockCache()
        old = opened(old_release, cache=store, key_scheme=KeyScheme(namespace="v1"))
        new = opened(new_release, cache=store, key_scheme=KeyScheme(namespace="v2"))
        clean = ask(opened(new_release), prompt(100))
        ask(old, prompt(100))
        observed = ask(new, prompt(100))
        assert observed.cached_tokens == 0
        assert observed.tokens == clean.tokens
        assert ask(old, prompt(100)).cached_tokens == ask(new, prompt(100)).cached_tokens == 96

    def test_it_survives_a_restart_over_a_directory(self, old_release: Path, new_release: Path, tmp_path: Path) -> None:
        ask(opened(old_release, cache=BlockCache(files=BlockFiles(tmp_path))), prompt(100))
        new = opened(new_release, cache=BlockCache(files=BlockFiles(tmp_path)))
        stale = ask(new, prompt(100))
        assert stale.cached_tokens == 96
        assert gap_nats(stale, ask(opened(new_release), prompt(100))) > MIN_STALE_GAP_NATS
        assert run(new.counters()) == Counters(queried_tokens=100, cached_tokens=0, external_cached_tokens=96)

    def test_another_process_hits_the_blocks_in_the_directory(self, new_release: Path, tmp_path: Path) -> None:
        script = (
            "import asyncio, sys\n"
            "from pathlib import Path\n"
            "from tests.engines.in_process import opened\n"
            "from tests.engines.test_local import ask, prompt\n"
            "from kvrelease.engines.block_cache import BlockCache\n"
            "from kvrelease.engines.block_files import BlockFiles\n"
            "cache = BlockCache(files=BlockFiles(Path(sys.argv[2])))\n"
            "ask(opened(Path(sys.argv[1]), cache=cache), prompt(100))\n"
        )
        arguments = [sys.executable, "-c", script, str(new_release), str(tmp_path)]
        subprocess.run(arguments, check=True, timeout=120, cwd=Path(__file__).parents[2])
        hit = ask(opened(new_release, cache=BlockCache(files=BlockFiles(tmp_path))), prompt(100))
        clean = ask(opened(new_release), prompt(100))
        assert hit.cached_tokens == 96
        assert ids_of(hit) == ids_of(clean)
        assert gap_nats(hit, clean) < MAX_HIT_GAP_NATS

    def test_a_damaged_block_in_the_directory_costs_a_hit_and_no_answer(
        self, new_release: Path, tmp_path: Path
    ) -> None:
        files = BlockFiles(tmp_path)
        clean = ask(opened(new_release, cache=BlockCache(files=files)), prompt(100))
        keys = TOKENS_ONLY.block_keys(_ids(prompt(100)), block_tokens=BLOCK)
        damaged = files.path(keys[2])
        damaged.write_bytes(damaged.read_bytes()[:-1])
        cache = BlockCache(files=files)
        observed = ask(opened(new_release, cache=cache), prompt(100))
        assert observed.cached_tokens == 2 * BLOCK
        assert ids_of(observed) == ids_of(clean)
        assert cache.usage().unusable == 1
        again = ask(opened(new_release, cache=BlockCache(files=files)), prompt(100))
        assert again.cached_tokens == 96  # written anew

    def test_a_release_of_another_shape_never_uses_the_blocks(self, new_release: Path, tmp_path: Path) -> None:
        store = BlockCache()
        ask(opened(build_release(tmp_path / "deeper", seed=3, layers=3), cache=store), prompt(100))
        observed = ask(opened(new_release, cache=store), prompt(100))
        assert observed.cached_tokens == 0
        assert observed.tokens == ask(opened(new_release), prompt(100)).tokens
        assert store.usage().unusable > 0


class TestKeySpaces:
    def test_salts_isolate(self, new_release: Path) -> None:
        engine = opened(new_release)
        hits = [ask(engine, prompt(64, salt=salt)).cached_tokens for salt in (None, "a", "b", "a", None, "b")]
        assert hits == [0, 0, 0, 48, 48, 48]

    def test_a_store_that_ignores_salts_accepts_them_and_isolates_nothing(self, new_release: Path) -> None:
        engine = opened(new_release, key_scheme=KeyScheme(honours_salt=False))
        assert ask(engine, prompt(64)).cached_tokens == 0
        assert ask(engine, prompt(64, salt="a")).cached_tokens == 48

    def test_a_bypass_reads_nothing_and_still_writes(self, new_release: Path) -> None:
        engine = opened(new_release)
        first = ask(engine, prompt(64, bypasses_cache=True))
        assert (first.cached_tokens, ask(engine, prompt(64)).cached_tokens) == (0, 48)
        again = ask(engine, prompt(64, bypasses_cache=True))
        assert again.cached_tokens == 0
        assert again.tokens == first.tokens
        assert run(engine.counters()) == Counters(queried_tokens=64, cached_tokens=48)

    def test_a_bypass_is_clean_and_heals_nothing(self, old_release: Path, new_release: Path) -> None:
        store = BlockCache()
        ask(opened(old_release, cache=store), prompt(100))
        new = opened(new_release, cache=store)
        stale = ask(new, prompt(100))
        assert ask(new, prompt(100, bypasses_cache=True)).tokens == ask(opened(new_release), prompt(100)).tokens
        assert ask(new, prompt(100)).tokens == stale.tokens

    def test_memory_is_bounded(self, new_release: Path) -> None:
        cache = BlockCache(max_bytes=20_000)
        engine = opened(new_release, cache=cache)
        for seed in range(5):
            ask(engine, prompt(64, seed=seed))
        assert 0 < cache.usage().size_bytes <= 20_000
        assert cache.usage().evicted > 0
        capacity = run(engine.identify()).capacity_tokens
        assert capacity == 20_000 // (2 * 2 * 2 * 16 * 4 * BLOCK) * BLOCK


class TestFlush:
    def test_memory_is_emptied(self, new_release: Path) -> None:
        engine = opened(new_release)
        ask(engine, prompt(64))
        assert run(engine.flush()) is True
        assert ask(engine, prompt(64)).cached_tokens == 0

    def test_blocks_that_remain_on_disk_are_admitted(self, new_release: Path, tmp_path: Path) -> None:
        engine = opened(new_release, cache=BlockCache(files=BlockFiles(tmp_path)))
        ask(engine, prompt(64))
        assert run(engine.flush()) is False
        assert ask(engine, prompt(64)).cached_tokens == 48

    def test_a_shared_store_is_left_alone_while_another_holds_it(self, old_release: Path, new_release: Path) -> None:
        store = BlockCache()
        old, new = opened(old_release, cache=store), opened(new_release, cache=store)
        ask(old, prompt(64))
        assert run(new.flush()) is False
        assert store.usage().blocks > 0
        for _ in range(2):
            run(old.aclose())
        assert run(new.flush()) is True
        assert store.usage().blocks == 0


class TestGeneration:
    def test_greedy_text_is_that_of_transformers_own_generate(self, new_release: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(new_release, dtype="float32")
        engine = opened(new_release)
        for seed, hits in itertools.product(range(4), range(2)):
            request = prompt(50 + seed, seed=seed, max_tokens=24)
            inputs = torch.tensor([_ids(request)])
            mask = torch.ones_like(inputs)
            generated = model.generate(inputs, attention_mask=mask, max_new_tokens=24, do_sample=False, pad_token_id=0)
            observed = ask(engine, request)
            assert observed.cached_tokens == hits * 48
            assert ids_of(observed) == generated[0, inputs.shape[1] :].tolist()

    def test_log_probabilities_are_nats_of_the_whole_vocabulary(self, new_release: Path) -> None:
        observed = ask(opened(new_release), prompt(20, top_logprobs=10_000, max_tokens=1))
        (token,) = observed.tokens
        assert len(token.top) == VOCABULARY
        assert sum(math.exp(top.logprob) for top in token.top) == pytest.approx(1, abs=1e-5)
        assert [top.logprob for top in token.top] == sorted((top.logprob for top in token.top), reverse=True)
        assert token.logprob == token.top[0].logprob
        assert token.token == token.top[0].token
        assert len({top.token for top in token.top}) == VOCABULARY  # parts of characters are told apart

    def test_no_top_is_given_where_none_was_asked_for(self, new_release: Path) -> None:
        observed = ask(opened(new_release), prompt(20, top_logprobs=0, max_tokens=3))
        assert [(token.top, token.logprob is not None) for token in observed.tokens] == [((), True)] * 3

    def test_an_end_token_of_the_generation_config_stops(self, new_release: Path, tmp_path: Path) -> None:
        expected = ids_of(ask(opened(new_release), prompt(40)))
        third = expected[2]
        assert isinstance(third, int)
        assert third not in expected[:2]
        ending = opened(build_release(tmp_path / "ending", seed=2, eos_ids=(END_ID, third)))
        observed = ask(ending, prompt(40))
        assert (ids_of(observed), observed.finish_reason) == (expected[:3], "stop")
        body = {"prompt": list(_ids(prompt(40))), "ignore_eos": True}
        observed = ask(ending, prompt(40, body=body))
        assert (ids_of(observed), observed.finish_reason) == (expected, "length")

    def test_without_a_generation_config_the_model_config_names_the_end(
        self, new_release: Path, tmp_path: Path
    ) -> None:
        first = ids_of(ask(opened(new_release), prompt(40)))[0]
        release = build_release(tmp_path / "tiny", seed=2, config={"eos_token_id": first})
        (release / "generation_config.json").unlink()
        assert ids_of(ask(opened(release), prompt(40))) == [first]

    def test_stop_texts_and_stop_tokens_of_the_body_are_followed(self, new_release: Path) -> None:
        engine = opened(new_release)
        plain = ask(engine, chat(max_tokens=24))
        stop_text = plain.text[2:4]
        cut = ask(engine, chat(body={"stop": ["never", stop_text]}, max_tokens=24))
        assert (cut.text, cut.finish_reason) == (plain.text[: plain.text.find(stop_text)], "stop")
        assert len(cut.tokens) < len(plain.tokens)
        ended = ask(engine, chat(body={"stop_token_ids": [ids_of(plain)[1]]}, max_tokens=24))
        assert ids_of(ended) == ids_of(plain)[:2]

    def test_sampling_parameters_of_production_do_not_make_it_random(self, new_release: Path) -> None:
        engine = opened(new_release)
        sampled = chat(body={"temperature": 1.5, "top_p": 0.5, "seed": 7, "model": "other", "stream": True})
        assert ask(engine, sampled).tokens == ask(opened(new_release), chat()).tokens

    def test_not_a_number_is_not_a_log_probability(self, tmp_path: Path) -> None:
        release = build_release(tmp_path / "broken", seed=1)
        tensors = load_file(release / "model.safetensors")
        tensors["lm_head.weight"][:] = np.nan
        save_file(tensors, release / "model.safetensors")
        observed = ask(opened(release), prompt(20, max_tokens=2))
        assert [(token.logprob, token.top) for token in observed.tokens] == [(None, ())] * 2

    def test_times_are_measured(self, new_release: Path) -> None:
        observed = ask(opened(new_release), prompt(20))
        assert observed.ttft_s is not None
        assert 0 < observed.ttft_s <= observed.total_s


class TestPrompts:
    def test_chat_goes_through_the_release_s_template(self, new_release: Path) -> None:
        engine = opened(new_release)
        messages = [{"role": "user", "content": "hi"}]
        request = Request(route=Route.CHAT, body={"messages": messages})
        text = "<|user|>hi<|end|><|assistant|>"
        assert run(engine.tokenize(request)) == _encode(engine, text)
        bare = Request(route=Route.CHAT, body={"messages": messages, "add_generation_prompt": False})
        assert run(engine.tokenize(bare)) == _encode(engine, "<|user|>hi<|end|>")
        dressed = Request(
            route=Route.CHAT,
            body={"messages": messages, "tools": [{"name": "f"}], "chat_template_kwargs": {"style": "dry"}},
        )
        expected = '<|system|>[{"name": "f"}]<|end|><|user|>hi<|end|><|system|>dry<|end|><|assistant|>'
        assert run(engine.tokenize(dressed)) == _encode(engine, expected)

    def test_what_is_tokenised_is_what_is_run(self, new_release: Path) -> None:
        engine = opened(new_release)
        ids = run(engine.tokenize(chat()))
        assert len(ids) == ask(engine, chat()).prompt_tokens
        same = Request(route=Route.COMPLETIONS, body={"prompt": list(ids)}, max_tokens=6)
        observed = ask(engine, same)
        assert observed.cached_tokens == (len(ids) - 1) // BLOCK * BLOCK
        assert ids_of(observed) == ids_of(ask(engine, chat()))

    def test_a_prompt_that_fills_the_context_is_run_and_a_longer_one_is_not(self, new_release: Path) -> None:
        engine = opened(new_release)
        assert len(ask(engine, prompt(506, max_tokens=6)).tokens) == 6
        with pytest.raises(PromptTooLong, match=r"507 prompt tokens and 6 to generate .* 512"):
            ask(engine, prompt(507, max_tokens=6))

    @pytest.mark.parametrize("ids", [[], [VOCABULARY], [-1]])
    def test_token_ids_outside_the_vocabulary_are_refused(self, new_release: Path, ids: list[int]) -> None:
        with pytest.raises(Refused):
            ask(opened(new_release), prompt(0, body={"prompt": ids}))

    @pytest.mark.parametrize("options", [{"max_tokens": 0}, {"top_logprobs": -1}])
    def test_amounts_out_of_range_are_usage_errors(self, new_release: Path, options: dict[str, int]) -> None:
        with pytest.raises(UsageError):
            ask(opened(new_release), prompt(5, **options))

    def test_chat_without_a_template_is_refused_with_the_way_out(self, tmp_path: Path) -> None:
        release = build_release(tmp_path / "base", seed=1)
        save_tokenizer(release, chat_template=None)
        with pytest.raises(Refused) as caught:
            ask(opened(release), chat())
        assert caught.value.hint is not None
        assert ask(opened(release), prompt(20)).prompt_tokens == 20

    def test_messages_that_the_template_refuses_are_refused(self, tmp_path: Path) -> None:
        release = build_release(tmp_path / "strict", seed=1)
        save_tokenizer(release, chat_template="{{ raise_exception('roles must alternate') }}" + CHAT_TEMPLATE)
        with pytest.raises(Refused, match="roles must alternate"):
            ask(opened(release), chat())


class TestIdentity:
    def test_it_says_what_it_is(self, new_release: Path) -> None:
        import torch
        import transformers

        identity = run(opened(new_release, block_tokens=8).identify())
        assert (identity.kind, identity.model, identity.url) == (EngineKind.LOCAL, "tiny", str(new_release))
        assert identity.version == f"torch {torch.__version__} transformers {transformers.__version__}"
        assert identity.context_tokens == 512
        assert identity.capabilities.block_tokens == 8
        assert identity.runtime["attention"] == "sdpa"
        assert identity.runtime_unread == ()

    def test_every_opening_is_another_process(self, new_release: Path) -> None:
        engine = run(open_local(new_release))
        processes = {run(engine.identify()).process, run(engine.identify()).process}
        assert len(processes) == 1
        assert run(run(open_local(new_release)).identify()).process not in processes

    def test_a_directory_of_blocks_outlives_the_process_and_is_not_emptied(
        self, new_release: Path, tmp_path: Path
    ) -> None:
        over_files = run(opened(new_release, cache=BlockCache(files=BlockFiles(tmp_path))).identify()).capabilities
        assert (over_files.cache_outlives_process, over_files.has_flush) == (True, False)
        engine = opened(new_release)
        shared = run(engine.replica(cache=engine.cache).identify()).capabilities
        assert shared.cache_outlives_process
        alone = run(opened(new_release).identify()).capabilities
        assert (alone.cache_outlives_process, alone.has_flush) == (False, True)

    def test_a_directory_that_is_only_read_stays_as_it_is(self, new_release: Path, tmp_path: Path) -> None:
        run(opened(new_release, cache=BlockCache(files=BlockFiles(tmp_path))).complete(prompt(40)))
        before = sorted(path.name for path in tmp_path.iterdir())
        reader = opened(new_release, cache=BlockCache(files=BlockFiles(tmp_path), writes_files=False))
        assert (run(reader.complete(prompt(40))).cached_tokens or 0) > 0
        assert run(reader.complete(prompt(40, seed=1))).cached_tokens == 0
        assert (run(reader.complete(prompt(40, seed=1))).cached_tokens or 0) > 0
        assert sorted(path.name for path in tmp_path.iterdir()) == before

    def test_it_closes_with_its_context(self, new_release: Path) -> None:
        async def work() -> bool:
            store = BlockCache()
            async with await open_local(new_release, cache=store), await open_local(new_release, cache=store):
                shared = store.is_shared
            return shared and not store.is_shared

        assert run(work())


class TestStaleAndClean:
    def test_the_pair_is_the_incident_and_its_absence(self, old_release: Path, new_release: Path) -> None:
        old, new = opened(old_release), opened(new_release)
        stale, clean = run(stale_and_clean(old, new, prompt(100)))
        assert old.cache.usage().blocks == new.cache.usage().blocks == 0
        store = BlockCache()
        ask(opened(old_release, cache=store), prompt(100))
        assert stale.tokens == ask(opened(new_release, cache=store), prompt(100)).tokens
        ask(new, prompt(100))
        assert clean.tokens == ask(new, prompt(100)).tokens
        assert stale.cached_tokens == clean.cached_tokens == 96
        assert gap_nats(stale, clean) > MIN_STALE_GAP_NATS

    def test_a_cache_that_the_old_release_wrote_to_is_not_taken_for_clean(
        self, old_release: Path, new_release: Path
    ) -> None:
        apart = run(stale_and_clean(opened(old_release), opened(new_release), prompt(100)))
        store = BlockCache()
        old, new = opened(old_release, cache=store), opened(new_release, cache=store)
        ask(old, prompt(100))
        assert [one.tokens for one in run(stale_and_clean(old, new, prompt(100)))] == [one.tokens for one in apart]

    def test_what_the_engines_computed_before_is_used_and_not_counted(
        self, old_release: Path, new_release: Path
    ) -> None:
        apart = run(stale_and_clean(opened(old_release), opened(new_release), prompt(100)))
        old, new = opened(old_release), opened(new_release)
        for engine in (old, new):
            ask(engine, prompt(100))
        together = run(stale_and_clean(old, new, prompt(100)))
        assert new.scratch.usage().blocks == 0
        assert [one.tokens for one in together] == [one.tokens for one in apart]
        assert run(new.counters()) == Counters(queried_tokens=100, cached_tokens=0)

    def test_the_same_weights_are_never_stale(self, new_release: Path) -> None:
        stale, clean = run(stale_and_clean(opened(new_release), opened(new_release), prompt(100)))
        assert stale.tokens == clean.tokens

    def test_a_scratch_cache_computes_a_shared_prefix_once_and_changes_no_answer(
        self, old_release: Path, new_release: Path
    ) -> None:
        old, new, scratch = opened(old_release), opened(new_release), BlockCache()
        shared = np.random.default_rng(5).integers(0, BYTES, 64).tolist()
        for last in range(3):
            request = prompt(0, body={"prompt": [*shared, *[last] * 8]})
            kept, fresh = (
                run(stale_and_clean(old, new, request, scratch=scratch)),
                run(stale_and_clean(old, new, request)),
            )
            assert [ids_of(one) for one in kept] == [ids_of(one) for one in fresh]
            assert scratch.usage().blocks == 2 * 4

    def test_a_scratch_cache_without_room_changes_no_answer(self, old_release: Path, new_release: Path) -> None:
        old, new = opened(old_release), opened(new_release)
        pairs = [run(stale_and_clean(old, new, prompt(100), scratch=BlockCache(max_bytes=size))) for size in (0, 10**9)]
        assert [one.tokens for one in pairs[0]] == [one.tokens for one in pairs[1]]

    def test_a_prompt_within_one_block_has_nothing_to_be_stale_in(self, old_release: Path, new_release: Path) -> None:
        stale, clean = run(stale_and_clean(opened(old_release), opened(new_release), prompt(16)))
        assert stale.cached_tokens == clean.cached_tokens == 0
        assert stale.tokens == clean.tokens

    def test_releases_that_cannot_share_blocks_are_said_to_be_safe(self, new_release: Path, tmp_path: Path) -> None:
        deeper = build_release(tmp_path / "deeper", seed=3, layers=3)
        with pytest.raises(UnsupportedRelease, match="none can be stale"):
            run(stale_and_clean(opened(deeper), opened(new_release), prompt(40)))


class TestModelsThatDoNotRun:
    def test_one_that_cannot_run_a_token_is_told_when_it_is_opened(self, tmp_path: Path) -> None:
        # Three heads of K and V for four of Q: transformers loads it.
        directory = build_release(tmp_path / "odd", seed=1, kv_heads=3)
        with pytest.raises(InputError, match=r"running .*odd in process: \w+Error: ") as caught:
            opened(directory)
        assert "saved fingerprint" in (caught.value.hint or "")

    def test_memory_that_runs_out_in_a_pass_is_an_error_of_ours_on_every_way(self, new_release: Path) -> None:
        release = load(new_release, dtype="float32")
        shape = kv_shape(release, new_release, block_tokens=BLOCK, dtype="float32")

        def exhausted(**_: object) -> object:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:128]\n  DefaultCPUAllocator: can't allocate memory")

        whole, broken = (
            LocalEngine(
                new_release, one, BlockCache(), TOKENS_ONLY, shape=shape, dtype="float32", threads=1, noise=None
            )
            for one in (release, replace(release, model=exhausted))
        )
        ways = (
            broken.complete(prompt(40)),
            broken.reread(prompt(40), times=2),
            broken.complete_together([prompt(40)]),
            stale_and_clean(broken, whole, prompt(40)),
        )
        for way in ways:
            with pytest.raises(InputError, match=r"RuntimeError: .enforce fail .* DefaultCPUAllocator"):
                run(way)
        assert len(run(whole.complete(prompt(40))).tokens) > 0


class TestOpening:
    def test_importing_the_module_imports_neither_torch_nor_transformers(self) -> None:
        script = (
            "import sys, kvrelease.engines.local\n"
            "print({'torch', 'transformers', 'safetensors.torch', 'numpy', 'jinja2'} & set(sys.modules))\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.strip() == "set()"

    @pytest.mark.parametrize("module", ["torch", "transformers"])
    def test_without_the_extra_the_pip_line_is_given(
        self, new_release: Path, module: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra) as caught:
            run(open_local(new_release))
        hint = str(caught.value.hint)
        assert hint.startswith("pip install 'kvrelease[local]'")
        assert "whl/cpu" in hint
        assert module in caught.value.message

    @pytest.mark.parametrize(
        "options", [{"dtype": "int4"}, {"kv_cache_dtype": "int4"}, {"block_tokens": 0}, {"threads": 0}]
    )
    def test_arguments_out_of_range_are_usage_errors(self, new_release: Path, options: dict[str, Any]) -> None:
        with pytest.raises(UsageError):
            opened(new_release, **options)

    def test_no_directory_is_not_found(self, tmp_path: Path) -> None:
        with pytest.raises(NotFound):
            opened(tmp_path / "absent")

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model_type": 5, "model": 5}', b"\xff" * 64])
    def test_a_file_of_rubbish_is_an_input_error(self, tmp_path: Path, name: str, content: bytes) -> None:
        release = build_release(tmp_path / "rubbish", seed=1)
        (release / name).write_bytes(content)
        if (name, content) == ("tokenizer_config.json", b'{"model_type": 5, "model": 5}'):
            return  # well-formed, and says nothing
        with pytest.raises(InputError, match="rubbish"):
            opened(release)

    def test_an_empty_directory_is_an_input_error(self, tmp_path: Path) -> None:
        with pytest.raises(InputError):
            opened(tmp_path)

    @pytest.mark.parametrize("change", ["truncated", "missing", "misshapen"])
    def test_weights_that_are_not_all_there_are_never_made_up(self, tmp_path: Path, change: str) -> None:
        release = build_release(tmp_path / "partial", seed=1)
        path = release / "model.safetensors"
        tensors = load_file(path)
        if change == "truncated":
            path.write_bytes(path.read_bytes()[:-10])
        else:
            name = "model.layers.1.self_attn.k_proj.weight"
            kept = {key: value for key, value in tensors.items() if key != name or change == "misshapen"}
            save_file(kept | ({name: tensors[name][:16]} if change == "misshapen" else {}), path)
        with pytest.raises(InputError) as caught:
            opened(release)
        assert "partial" in caught.value.message
        assert isinstance(caught.value, DamagedFile) or change != "missing"

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda config: config.update(model_type="mistral", sliding_window=64), "sliding window"),
            (lambda config: config.update(model_type="mamba"), "recurrent"),
            (lambda config: config.update(quantization_config={"quant_method": "fp8"}), "quantised"),
            (lambda config: config.update(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "dynamic"),
            (lambda config: config.update(model_type="t5"), "encoder-decoder"),
        ],
        ids=["sliding", "recurrent", "quantised", "dynamic-rope", "encoder"],
    )
    def test_what_has_no_reusable_blocks_is_unsupported_with_the_reason(
        self, tmp_path: Path, change: Callable[[dict[str, object]], None], reason: str
    ) -> None:
        release = build_release(tmp_path / "other", seed=1)
        config = json.loads((release / "config.json").read_text())
        change(config)
        (release / "config.json").write_text(json.dumps(config))
        with pytest.raises(UnsupportedRelease, match=reason):
            opened(release)

    def test_an_adapter_and_other_formats_of_weights_are_unsupported(self, tmp_path: Path) -> None:
        release = build_release(tmp_path / "adapter", seed=1)
        (release / "adapter_config.json").write_text("{}")
        with pytest.raises(UnsupportedRelease, match="adapter"):
            opened(release)
        release = build_release(tmp_path / "pickle", seed=1)
        (release / "model.safetensors").rename(release / "pytorch_model.bin")
        with pytest.raises(UnsupportedRelease, match="safetensors"):
            opened(release)

    def test_nothing_is_printed_and_transformers_settings_are_put_back(
        self, new_release: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        from transformers.utils import logging as settings

        before = (settings.get_verbosity(), settings.is_progress_bar_enabled())
        run(open_local(new_release))
        assert (settings.get_verbosity(), settings.is_progress_bar_enabled()) == before
        assert capfd.readouterr() == ("", "")


def _ids(request: Request) -> tuple[int, ...]:
    ids = request.body["prompt"]
    assert isinstance(ids, list)
    return tuple(ids)


def _encode(engine: LocalEngine, text: str) -> tuple[int, ...]:
    return run(engine.tokenize(Request(route=Route.COMPLETIONS, body={"prompt": text})))
