"""Public reports about prewarming, each as a promise of ours. docs/cases.md has the links."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from kvrelease.artifacts import Verdict
from kvrelease.binding.left_out import Why
from kvrelease.config import Production
from kvrelease.engines.base import EngineKind
from kvrelease.prewarm.pace import Slower
from kvrelease.prewarm.result import PrewarmReport, ReplicaResult
from kvrelease.report.terminal import render_text
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet
from tests.engines.never_hits import NeverHits
from tests.engines.scripted import Break, Generation, ScriptedEngine
from tests.engines.scripted_cache import Slot, SlotCache
from tests.report.pages import page_of
from tests.verify.deployments import DOZEN, deployment, prompts, serve_users, warmed

TWELVE = deployment(prompt_set=DOZEN)


def only(report: PrewarmReport) -> ReplicaResult:
    (found,) = report.replicas
    return found


def of_words(*texts: str) -> PromptSet:
    made = [
        Prompt(id=f"p{number}", weight=1.0, kind=PromptKind.COMPLETIONS, body={"prompt": text})
        for number, text in enumerate(texts)
    ]
    return PromptSet(name="words", prompts=tuple(made), source="words.yaml")


def words(count: int, *, of: str = "w") -> str:
    return " ".join(f"{of}{number}" for number in range(count))


# --- c8, c9, c11, c12: what can be cached ---------------------------------------------------------------------------


def test_c8_prompts_below_the_effective_block_cannot_be_cached_which_is_not_failed() -> None:
    """https://github.com/vllm-project/vllm/pull/48402"""
    with ScriptedEngine(release="new", block_tokens=8320, context_tokens=4096) as engine:
        report = warmed(engine)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "cannot be cached: a hit takes a whole block of 8320 tokens" in report.reason
        assert "fail" not in report.reason
        assert engine.generations() == []


def test_c9_the_shared_prefix_is_warmed_though_a_unique_suffix_follows_it() -> None:
    """https://github.com/vllm-project/vllm/issues/45238
    https://github.com/Reederey87/glm53-flash-exl3-2x-dgx-spark/issues/16
    """
    shared = words(40)
    with ScriptedEngine(release="new") as engine:
        report = warmed(engine, deployed=deployment(prompt_set=of_words(f"{shared} alpha", f"{shared} beta")))
        assert report.verdict is Verdict.PASS, report.reason
        assert report.plan.cacheable_tokens == 2 * 32
        assert only(report).hit_rate_after == 1.0


def test_c11_a_full_hit_is_all_blocks_before_the_last_token_and_100_percent_of_the_prompt_is_not_asked_for() -> None:
    """https://github.com/vllm-project/vllm/pull/11186
    https://github.com/vllm-project/vllm/pull/9972
    """
    with ScriptedEngine(release="new") as engine:
        report = warmed(engine, deployed=deployment(prompt_set=of_words(words(63))), min_hit_rate=1.0)
        assert report.verdict is Verdict.PASS, report.reason
        assert (report.plan.prompt_tokens, report.plan.cacheable_tokens) == (64, 48)


class ForgetsTheWindow(ScriptedEngine):
    """A sliding window without `--swa-full`: the whole prompt is processed again, whatever the slot held."""

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        self.flush()
        return super().generate(prompt, body, **more)


def test_c12_a_cache_that_a_sliding_window_empties_is_reported_with_what_to_look_at() -> None:
    """https://github.com/ggml-org/llama.cpp/issues/14157
    https://github.com/ggml-org/llama.cpp/pull/13194
    """
    with ForgetsTheWindow(EngineKind.LLAMACPP, release="new") as engine:
        report = warmed(engine)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "did not hit the second time" in report.reason
        assert "--swa-full" in report.reason


# --- a cache that is smaller than anybody said ------------------------------------------------------------------------


def test_a_cache_that_does_not_hold_the_set_never_passes_and_what_is_cold_is_named() -> None:
    unlike = of_words(*(words(40, of=f"p{number}-") for number in range(20)))
    with ScriptedEngine(release="new", capacity_blocks=4000) as engine:
        engine.cache.capacity_blocks = 20  # type: ignore[attr-defined]
        report = warmed(engine, deployed=deployment(prompt_set=unlike))
        found = only(report)
        assert report.verdict is Verdict.FAIL, report.reason
        assert found.hit_rate_touched is not None
        assert found.hit_rate_touched < 0.2
        assert len(found.lost) > 8
        assert "is the cache smaller" in report.reason


def test_a_cache_that_was_emptied_while_it_was_touched_is_found_by_the_sample() -> None:
    unlike = of_words(*(words(40, of=f"p{number}-") for number in range(20)))
    with ScriptedEngine(release="new") as engine:

        def wipe(event: Any) -> None:
            if event.done == 20 + 2 + 15:
                engine.flush()

        report = warmed(engine, deployed=deployment(prompt_set=unlike), progress=wipe)
        assert report.verdict is Verdict.FAIL, report.reason


# --- c10, c28: no hit on an identical repeat -------------------------------------------------------------------------


class MissesFirst(ScriptedEngine):
    """Draft heads: the first repeat of a prompt misses, later ones hit."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seen: dict[tuple[int, ...], int] = {}

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        times = self.seen[tuple(prompt)] = self.seen.get(tuple(prompt), 0) + 1
        if times == 3 and len(prompt) > 100:  # sent, touched, and asked again for the first time
            self.flush()
        return super().generate(prompt, body, **more)


@pytest.mark.parametrize(("passes", "verdict"), [(1, Verdict.FAIL), (2, Verdict.PASS)])
def test_c10_with_two_passes_the_last_one_counts(passes: int, verdict: Verdict) -> None:
    """https://github.com/vllm-project/vllm/issues/53504"""
    with MissesFirst(release="new") as engine:
        report = warmed(engine, deployed=deployment(prompt_set=of_words(words(200))), passes=passes)
        assert report.verdict is verdict, report.reason


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not-told"])
@pytest.mark.parametrize("block_tokens", [16, 64, 128])
def test_c10_a_cache_that_gives_up_the_last_block_of_every_hit_passes(block_tokens: int, is_told: bool) -> None:
    """https://github.com/vllm-project/vllm/issues/53504"""
    long, two_blocks = words(20 * block_tokens), words(2 * block_tokens, of="v")
    with ScriptedEngine(
        release="new", block_tokens=block_tokens, gives_up_a_block=True, has_dev_routes=is_told
    ) as engine:
        report = warmed(engine, deployed=deployment(prompt_set=of_words(long, two_blocks)))
        found = only(report)
        assert report.verdict is Verdict.PASS, report.reason
        assert (found.hit_rate_after == 1.0) is is_told
        # Where nobody tells that a block is lost, a prompt of two that keeps one has kept half.
        assert (found.evicted, found.ttft_cold_ms.p50 is None) == (0 if is_told else 1, False)


class MissesOnce(ScriptedEngine):
    """Draft heads: the first repeat of every prompt misses totally, the next ones hit."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seen: dict[tuple[int, ...], int] = {}

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        times = self.seen[tuple(prompt)] = self.seen.get(tuple(prompt), 0) + 1
        made = super().generate(prompt, body, **more)
        if times == 2 and len(prompt) > 100:
            made.cached = 0
        return made


def test_c10_a_touch_pass_that_misses_is_made_once_more() -> None:
    with MissesOnce(release="new") as engine:
        report = warmed(engine, deployed=deployment(prompt_set=of_words(words(200), words(200, of="v"))))
        found = only(report)
        assert report.verdict is Verdict.PASS, report.reason
        assert (found.touched, found.lost, found.hit_rate_touched) == (4, (), 1.0)


def test_c28_no_hit_on_an_identical_repeat_is_no_pass_and_lists_the_likely_causes() -> None:
    """https://github.com/rwlove/home-ops/pull/13384"""
    with NeverHits(release="new") as engine:
        report = warmed(engine)
        assert report.verdict is Verdict.INCONCLUSIVE
        for cause in ("prefix caching is off", "KV dtype", "shorter than the block", "router", "Eagle or MTP"):
            assert cause in report.reason


# --- c13: slots ------------------------------------------------------------------------------------------------------


def test_c13_more_prompts_than_slots_are_warned_of_and_the_most_valuable_stays() -> None:
    """https://github.com/ggml-org/llama.cpp/issues/10993
    https://github.com/ggml-org/llama.cpp/pull/22083
    https://github.com/ggml-org/llama.cpp/issues/28139
    """
    unlike = of_words(words(30, of="a"), words(30, of="b"), words(30, of="c"))
    heavy = msgspec.structs.replace(unlike.prompts[0], weight=9.0)
    deployed = deployment(prompt_set=msgspec.structs.replace(unlike, prompts=(heavy, *unlike.prompts[1:])))
    with ScriptedEngine(EngineKind.LLAMACPP, release="new", slots=2) as engine:
        report = warmed(engine, deployed=deployed)
        assert report.verdict is Verdict.PASS, report.reason
        assert any("2 slots" in note for note in report.notes)
        assert report.plan.order[-1] == "p0"
        assert report.plan.without_slot == ("p2",)
        assert "of what stays in slots hit; 1 of 3 prompts sent has no slot of its own" in report.reason
        assert report.plan.expected_hit_rate == pytest.approx((10 * 30 + 1) / (11 * 31)), "all begin with one token"
        assert [seen.body["prompt"][:2] for seen in engine.generations()[-2:]] == ["a0", "b0"]


def test_c13_every_slot_ends_warm_where_prompts_are_unlike_each_other() -> None:
    unlike = of_words(*(words(30, of=letter) for letter in "abc"))
    with ScriptedEngine(EngineKind.LLAMACPP, release="new", slots=3) as engine:
        report = warmed(engine, deployed=deployment(prompt_set=unlike))
        assert report.verdict is Verdict.PASS, report.reason
        assert (only(report).hit_rate_after, only(report).evicted) == (1.0, 0)
        assert len(report.plan.proof_first) == 3


def of_one_desk(count: int) -> PromptSet:
    """Prompts with one start, of which no server would spread two over its slots."""
    return of_words(*(f"{words(60)} {words(8, of=letter)}" for letter in "abcdefgh"[:count]))


def test_c13_every_slot_ends_warm_where_prompts_share_their_start() -> None:
    """https://github.com/ggml-org/llama.cpp/issues/26676
    https://github.com/ggml-org/llama.cpp/issues/25913
    https://github.com/ggml-org/llama.cpp/pull/27624
    """
    with ScriptedEngine(EngineKind.LLAMACPP, release="new", slots=4) as engine:
        report = warmed(engine, deployed=deployment(prompt_set=of_one_desk(6)))
        assert report.verdict is Verdict.PASS, report.reason
        found = only(report)
        assert found.hit_rate_after == 1.0
        assert found.over_lower_bound == pytest.approx(1.0, abs=0.01), "of any two texts the first token is the same"
        assert [(one.slot, one.is_warm) for one in found.slots] == [(slot, True) for slot in range(4)]
        assert any("each of 4 slots, asked by its number" in note for note in report.notes)
        by_number = [seen.body.get("id_slot") for seen in engine.generations()]
        assert by_number.count(None) == 2 + 1 + 4, "what does not stay, once beside the control, what production asks"


class EmptiesIdleSlots(ScriptedEngine):
    """`--kv-unified`: what is in the slots moves to host memory as soon as another request comes."""

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        with self.lock:
            cache = self.caches[0]
            assert isinstance(cache, SlotCache)
            for slot in cache.slots:
                if slot.tokens and not wanted(slot.tokens, prompt, body.get("id_slot"), cache.slots.index(slot)):
                    cache.ram.append(Slot(slot.tokens, slot.provenance))
                    slot.tokens, slot.provenance = [], []
        return super().generate(prompt, body, **more)


def wanted(held: list[int], prompt: Any, named: int | None, slot: int) -> bool:
    return slot == named if named is not None else held[: len(prompt)] == list(prompt)


def test_c13_a_server_that_empties_idle_slots_is_warm_from_host_memory_and_that_is_told() -> None:
    alike, unlike = of_one_desk(3), of_words(words(30, of="x"), words(30, of="y"))
    both = [msgspec.structs.replace(one, id=f"u{one.id}") for one in unlike.prompts]
    deployed = deployment(prompt_set=msgspec.structs.replace(alike, prompts=(*alike.prompts, *both)))
    with EmptiesIdleSlots(EngineKind.LLAMACPP, release="new", slots=4, keeps_in_ram=True) as engine:
        report = warmed(engine, deployed=deployed)
        assert report.verdict is Verdict.PASS, report.reason
        found = only(report)
        assert (found.hit_rate_after, found.slots, found.sent) == (1.0, (), 5)
        assert len(report.plan.proof_first) == 3, "one of each start"
        assert any("empties idle slots into host memory" in note for note in report.notes)
        by_number = [seen.body.get("id_slot") for seen in engine.generations()]
        assert by_number.count(None) == len(by_number) - 2, "the control alone"


def test_c13_production_that_names_its_slot_is_sent_as_it_is() -> None:
    deployed = msgspec.structs.replace(
        deployment(prompt_set=of_one_desk(3)), production=Production(body={"id_slot": 1})
    )
    with ScriptedEngine(EngineKind.LLAMACPP, release="new", slots=2) as engine:
        report = warmed(engine, deployed=deployed)
        assert report.verdict is Verdict.PASS, report.reason
        assert {seen.body.get("id_slot") for seen in engine.generations()} == {1}
        assert only(report).slots == ()
        assert any("name their slot themselves" in note for note in report.notes)


# --- c14, c23: cold numbers are cold --------------------------------------------------------------------------------


def test_c14_nothing_is_generated_before_the_first_request_of_the_plan() -> None:
    """https://github.com/waybarrios/vllm-mlx/pull/373"""
    with ScriptedEngine(release="new") as engine:
        report = warmed(engine)
        first = engine.generations()[0].body["messages"]
        sent = {prompt.id: prompt.body["messages"] for prompt in prompts()}
        assert first == sent[report.plan.order[0]]
        assert engine.cached_of[0] == 0


def test_c23_times_of_requests_that_hit_are_not_called_cold() -> None:
    """https://github.com/vllm-project/vllm/issues/54227
    https://github.com/vllm-project/vllm/pull/53920
    https://github.com/vllm-project/guidellm/pull/217
    """
    with ScriptedEngine(release="new") as engine:
        serve_users(engine, salt="warm-already")
        report = warmed(engine, deployed=deployment(salt="warm-already"))
        assert report.verdict is Verdict.FAIL
        assert only(report).ttft_cold_ms.p50 is None


# --- c15: what is sent is what production sends ----------------------------------------------------------------------


def test_c15_body_route_tools_and_template_arguments_are_those_of_production() -> None:
    """https://github.com/Blaizzy/mlx-vlm/issues/1077"""
    tools = [{"type": "function", "function": {"name": "refund", "parameters": {"type": "object"}}}]
    body = {
        "messages": [{"role": "system", "content": words(40)}, {"role": "user", "content": "May I?"}],
        "tools": tools,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    one = Prompt(id="p", weight=1.0, kind=PromptKind.CHAT, body=body)
    deployed = msgspec.structs.replace(
        deployment(prompt_set=PromptSet(name="s", prompts=(one,), source="s.yaml")),
        production=Production(body={"user": "shop"}),
    )
    with ScriptedEngine(release="new") as engine:
        assert warmed(engine, deployed=deployed).verdict is Verdict.PASS
        sent = [seen for seen in engine.generations() if seen.body["messages"] == body["messages"]]
        assert len(sent) == 3  # the plan, the touch pass, the proof
        for seen in sent:
            assert seen.path == "/v1/chat/completions"
            assert {name: seen.body[name] for name in ("tools", "chat_template_kwargs", "user")} == {
                "tools": tools,
                "chat_template_kwargs": {"enable_thinking": False},
                "user": "shop",
            }


# --- c18, c20, c21, e14: answers that are none -----------------------------------------------------------------------


class Thinks(ScriptedEngine):
    """One token is spent on reasoning: no content, finish reason `length`."""

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        made = super().generate(prompt, body, **more)
        made.words = [""] * len(made.words)
        return made


def test_c18_an_answer_without_content_warms_as_well() -> None:
    """https://github.com/BerriAI/litellm/issues/26987
    https://github.com/NousResearch/hermes-agent/issues/46131
    """
    with Thinks(release="new") as engine:
        report = warmed(engine)
        assert report.verdict is Verdict.PASS, report.reason
        assert only(report).errors == 0


def test_c20_a_prompt_that_the_server_refuses_as_too_long_is_named_not_retried_and_ends_nothing() -> None:
    """https://github.com/kubernetes-sigs/inference-perf/issues/617
    https://github.com/vllm-project/vllm/issues/20409
    """
    fits, long = words(60, of="a"), words(150, of="b")
    with ScriptedEngine(EngineKind.OPENAI, release="new", context_tokens=100) as engine:
        report = warmed(engine, deployed=deployment(prompt_set=of_words(fits, long)))
        found = only(report)
        assert [(one.prompt, one.why) for one in found.skipped] == [("p1", Why.TOO_LONG)]
        assert found.retries == 0
        assert sum(seen.body["prompt"] == long for seen in engine.generations()) == 1
        assert found.sent == 1
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "too long" in report.reason


def test_c21_a_server_that_is_busy_during_the_warm_up_is_asked_again_with_fewer_in_flight() -> None:
    """https://github.com/huggingface/speech-to-speech/pull/353
    https://github.com/fw-ai/benchmark/pull/133
    https://github.com/kaito-project/kaito/pull/2205
    """
    with ScriptedEngine(release="new") as engine:
        engine.break_with(Break.BUSY, times=3)
        report = warmed(engine)
        assert report.verdict is Verdict.PASS, report.reason
        assert only(report).retries == 3
        assert only(report).lowered_by[Slower.ASKED] >= 1
        assert any("because the server asked for it, 429 or 503" in note for note in report.notes)


def test_e14_a_failed_request_within_the_budget_of_errors_turns_nothing_red() -> None:
    """https://github.com/fw-ai/benchmark/pull/112"""
    with ScriptedEngine(release="new") as engine:
        engine.break_with(Break.CRASHING, times=1)
        report = warmed(engine, deployed=TWELVE, max_retries=0, max_error_rate=0.1)
        assert report.verdict is Verdict.PASS, report.reason
        assert only(report).errors == 1


@pytest.mark.parametrize("answered", [1, 26], ids=["control", "proof"])
def test_e14_the_budget_of_errors_is_one_for_all_parts_of_the_run(answered: int) -> None:
    with ScriptedEngine(release="new") as engine:

        def crash(event: Any) -> None:
            if event.done == answered:
                engine.break_with(Break.CRASHING, times=1)

        report = warmed(engine, deployed=TWELVE, max_retries=0, max_error_rate=0.1, concurrency=1, progress=crash)
        found = only(report)
        assert report.verdict is Verdict.PASS, report.reason
        assert (found.errors, found.fault) == (1, None)
        assert found.control is not None
        assert found.asked_again == 12 - (answered == 26)


class FailsFor(ScriptedEngine):
    """No proper answer to prompts that hold a word, so many times each."""

    def __init__(self, word: str, *, times: int) -> None:
        super().__init__(release="new")
        self.word, self.times = word, times

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        if self.word in str(body.get("prompt")) and self.times:
            self.times -= 1
            raise ConnectionResetError
        return super().generate(prompt, body, **more)


@pytest.mark.parametrize(("times", "failed"), [(99, ("p3",)), (1, ())])
def test_e14_a_prompt_without_an_answer_is_sent_late_counted_once_and_named(
    times: int, failed: tuple[str, ...]
) -> None:
    many = of_words(*(words(40, of=f"{letter}-") for letter in "abcdefghijklmnop"))
    with FailsFor("d-1 ", times=times) as engine:
        report = warmed(engine, deployed=deployment(prompt_set=many), max_retries=0, max_error_rate=0.1)
        found = only(report)
        assert report.verdict is Verdict.PASS, report.reason
        assert (found.errors, found.failed, found.lost) == (1, failed, ())
        assert (found.sent, found.touched) == (16 - len(failed), 15)
        assert (found.over_lower_bound, found.hit_rate_touched) == (1.0, 1.0)
        page = render_text(page_of(report))
        assert ("without a proper answer: p3" in page) is bool(failed)


def test_e14_one_error_more_than_the_budget_ends_the_replica() -> None:
    with ScriptedEngine(release="new") as engine:

        def crash(event: Any) -> None:
            if event.done in (1, 26):
                engine.break_with(Break.CRASHING, times=1)

        report = warmed(engine, deployed=TWELVE, max_retries=0, max_error_rate=0.1, concurrency=1, progress=crash)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert only(report).errors == 2
        assert [fault.exit_code for fault in report.faults] == [5]


def test_a_control_without_an_answer_is_no_control() -> None:
    with ScriptedEngine(release="new") as engine:

        def crash(event: Any) -> None:
            if event.done == 1:
                engine.break_with(Break.CRASHING, times=3)

        report = warmed(engine, max_retries=0, max_error_rate=0.5, progress=crash)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "the control got no proper answer" in report.reason
        assert (only(report).control, only(report).errors) == (None, 3)


class BreaksOffOnce(ScriptedEngine):
    """Computes the control's first request, and breaks the connection off before it answers."""

    has_broken_off = False

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        made = super().generate(prompt, body, **more)
        if len(self.cached_of) == 2 and not self.has_broken_off:
            self.has_broken_off = True
            raise ConnectionResetError
        return made


def test_a_control_whose_first_attempt_was_computed_and_never_heard_of_is_sent_anew() -> None:
    with BreaksOffOnce(release="new") as engine:
        report = warmed(engine)
        assert engine.has_broken_off
        assert report.verdict is Verdict.PASS, report.reason
        assert len(engine.cached_of) == 1 + 4 + 5 + 6 + 6, "the first, the control anew, the rest, touched, proved"


def test_e14_a_server_that_is_busy_past_all_retries_gets_fewer_at_once() -> None:
    with ScriptedEngine(release="new") as engine:
        engine.break_with(Break.BUSY, times=1)
        found = only(warmed(engine, deployed=TWELVE, max_retries=0, max_error_rate=0.1))
        assert (found.errors, found.throttled >= 1, found.over_lower_bound) == (1, True, 1.0)


def test_e14_without_a_budget_it_ends_the_replica_and_is_told() -> None:
    with ScriptedEngine(release="new") as engine:
        engine.break_with(Break.CRASHING, times=1)
        report = warmed(engine, max_retries=0)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert report.faults[0].exit_code == 5


# --- c22: concurrency ------------------------------------------------------------------------------------------------


class Counting(ScriptedEngine):
    """Knows how many generations ran at once, and which prefixes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.guard = threading.Lock()
        self.running: list[tuple[int, ...]] = []
        self.most = 0
        self.computed_twice = 0

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        mine = tuple(prompt)
        with self.guard:
            cached = len(self.cache.read(mine, salt=None, bypasses=False).provenance)
            block = mine[: cached + self.block_tokens]
            self.computed_twice += any(other[: len(block)] == block for other in self.running)
            self.running.append(mine)
            self.most = max(self.most, len(self.running))
        try:
            return super().generate(prompt, body, **more)
        finally:
            with self.guard:
                self.running.remove(mine)


def test_c22_the_cap_holds_from_the_first_request_and_no_prefix_is_computed_by_two_at_once() -> None:
    """https://github.com/sgl-project/sglang/pull/39398
    https://github.com/vllm-project/vllm/pull/2494
    """
    with Counting(release="new", capacity_blocks=1000) as engine:
        report = warmed(engine, deployed=deployment(prompt_set=prompts(per_desk=8)), concurrency=5)
        assert report.verdict is Verdict.PASS, report.reason
        assert engine.most <= 5
        assert only(report).most_in_flight <= 5
        assert engine.computed_twice == 0
        assert only(report).over_lower_bound == 1.0
        # vLLM's own block, one for each in flight, and those of a control of three blocks and a token.
        assert report.plan.head_room_blocks == 1 + 5 + 4


# --- a35: stores that nobody shares ----------------------------------------------------------------------------------


def test_a35_replicas_that_never_find_anything_in_their_store_are_told_why_that_may_be() -> None:
    """https://github.com/LMCache/LMCache/issues/2979
    https://github.com/LMCache/LMCache/issues/1139
    https://github.com/LMCache/LMCache/issues/2136
    """
    for has_store, found_before, is_told in ((True, 0, True), (True, 32, False), (False, 0, False)):
        first, second = (ScriptedEngine(release="new", store=dict[str, str]() if has_store else None) for _ in range(2))
        with first, second:
            second.external_hit_tokens = found_before
            report = warmed(first, second, deployed=deployment(prompt_set=prompts(per_desk=1)))
        assert report.verdict is Verdict.PASS, report.reason
        assert any("PYTHONHASHSEED" in note for note in report.notes) is is_told, report.notes


# --- c26: salts ------------------------------------------------------------------------------------------------------


def tenants() -> PromptSet:
    """The same prompts for two tenants and for nobody in particular."""
    common = prompts(per_desk=2, desks=("returns",)).prompts
    return PromptSet(
        name="tenants",
        prompts=tuple(
            msgspec.structs.replace(prompt, id=f"{prompt.id}-{salt}", salt=salt)
            for salt in (None, "tenant-a", "tenant-b")
            for prompt in common
        ),
        source="tenants.yaml",
    )


def test_c26_each_tenants_key_space_is_warmed_costed_and_proved_within_the_releases_own() -> None:
    """https://github.com/kubernetes-sigs/gateway-api-inference-extension/issues/1631"""
    deployed = deployment(salt="release", prompt_set=tenants())
    with ScriptedEngine(release="new") as engine:
        report = warmed(engine, deployed=deployed)
        assert report.verdict is Verdict.PASS, report.reason
        assert only(report).hit_rate_after == 1.0
        salts = {seen.body["cache_salt"] for seen in engine.generations()}
        assert len(salts) == 3
        assert deployed.namespace in salts
        assert all(salt.startswith(deployed.namespace) for salt in salts)
        first, *others = report.plan.key_spaces
        assert [space.requests for space in (first, *others)] == [2, 2, 2]
        assert {space.lower_bound_tokens for space in others} == {first.lower_bound_tokens}
        assert only(report).computed_tokens == report.plan.lower_bound_tokens
        assert b"tenant-" not in msgspec.json.encode(report.plan.key_spaces)


# --- c29, b10: what is told ------------------------------------------------------------------------------------------


def test_c29_the_cold_cost_and_the_hit_rate_before_and_after_are_told() -> None:
    """https://tianpan.co/blog/2026-05-24-the-model-migration-that-broke-your-prompt-cache"""
    with ScriptedEngine(release="new") as engine:
        report = warmed(engine)
        found = only(report)
        assert report.plan.lower_bound_tokens == found.computed_tokens
        assert report.plan.expected_hit_rate is not None
        assert (found.hit_rate_before, found.hit_rate_after) == (0.0, 1.0)


class StampsAtLookUp(ScriptedEngine):
    """From some moment on, usage reports blocks as cached that were not read."""

    is_lying = False

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        if self.is_lying:
            self.flush()
        made = super().generate(prompt, body, **more)
        if self.is_lying:
            made.cached = (made.prompt_tokens - 1) // self.block_tokens * self.block_tokens
        return made


def test_b10_hits_that_the_counters_did_not_see_are_no_proof() -> None:
    """https://github.com/Avarok-Cybersecurity/atlas/issues/919"""
    with StampsAtLookUp(release="new") as engine:

        def lie(event: Any) -> None:
            engine.is_lying = event.done >= 14  # the plan, the control and the touch pass are through

        report = warmed(engine, progress=lie)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "two witnesses disagree" in report.reason


def test_both_witnesses_are_told_where_they_agree() -> None:
    with ScriptedEngine(release="new") as engine:
        second = only(warmed(engine)).second
        assert second is not None
        assert second.usage_tokens == second.counter_tokens
        assert second.usage_tokens


# --- times as the last witness ---------------------------------------------------------------------------------------


def test_c1_where_nobody_tells_hits_the_run_asks_for_times_and_never_passes_by_itself() -> None:
    """https://github.com/vllm-project/vllm/issues/44961
    https://github.com/vllm-project/vllm/issues/16162
    """
    with ScriptedEngine(release="new", reports_cached_tokens=False, has_metrics=False) as engine:
        report = warmed(engine, deployed=deployment(prompt_set=prompts(per_desk=1)))
        found = only(report)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert found.times is not None
        assert found.times.pairs == 3
        assert "time to the first token" in report.reason
        assert found.hit_rate_after is None
        # The uncached twin of each is asked in a key space of its own, where it evicts nothing that users hit.
        assert len({seen.body.get("cache_salt") for seen in engine.generations()}) == 1 + 3


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_first_token_that_takes_too_long_fails_though_all_is_warm() -> None:
    with ScriptedEngine(release="new") as engine:
        report = warmed(engine, max_ttft_ms=0.001)
        assert report.verdict is Verdict.FAIL
        assert "p95" in report.reason


def test_a_budget_of_tokens_ends_the_plan_before_it_is_exceeded() -> None:
    with ScriptedEngine(release="new") as engine:
        report = warmed(engine, budget_tokens=200)
        found = only(report)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert 0 < (found.computed_tokens or 0) <= 200
        now, whole = found.expected_hit_rate, report.plan.expected_hit_rate
        assert now is not None
        assert whole is not None
        assert (
            f"the token budget ended after {found.sent} of 6 requests: expect {now:.0%} of this set's traffic to hit, "
            f"{whole:.0%} with all of them"
        ) in report.reason
        # The most valuable go first: they are worth more than their part of the requests.
        assert found.sent / 6 * whole < now < whole


def test_a_budget_that_no_request_fits_is_said_to_be_too_small_and_not_to_be_run_again() -> None:
    with ScriptedEngine(release="new") as engine:
        fault = only(warmed(engine, budget_tokens=5)).fault
        assert fault is not None
        hint = fault.hint or ""
        assert "raise --budget-tokens: the next request computes" in hint
        assert "run it again" not in hint
        least = int("".join(filter(str.isdigit, hint)))
        assert only(warmed(engine, budget_tokens=least)).sent == 1
