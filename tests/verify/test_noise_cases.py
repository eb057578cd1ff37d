"""Public reports of noise, and of caches that are wrong without being stale (docs/cases.md, "Verifying")."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from kvrelease.artifacts import Verdict
from kvrelease.verify.checks import CheckId
from kvrelease.verify.consistency import ProbeVerdict, judge_probes
from kvrelease.verify.noise import noise_floor
from tests.engines.scripted import Generation, ScriptedEngine
from tests.verify.builders import leg, observation, probe
from tests.verify.deployments import observed, serve_users, verified
from tests.verify.hit_path import HitPath
from tests.verify.scenarios.servers import DESK, LIMITS, UNSALTED
from tests.verify.scenarios.verdicts import assert_fails, assert_passes, says


def test_b1_a_warm_answer_that_differs_from_the_cold_one_is_not_stale() -> None:
    """https://github.com/vllm-project/vllm/issues/40896, https://github.com/vllm-project/vllm/issues/42699.

    Also https://github.com/vllm-project/vllm/issues/5543: near-ties, and another order of sums where a prompt hits.
    """
    with HitPath(shift_nats=0.12, release="new") as engine:
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert_passes(report)
        assert (report.noise_floor.max or 0.0) > 0.03


def test_b2_strict_where_the_engine_is_exact_and_tolerant_where_it_drifts() -> None:
    """https://github.com/vllm-project/vllm/pull/52701: up to 0.026, and bit-exact in batch-invariant mode."""
    with (
        ScriptedEngine(release="new", noise=True) as drifting,
        ScriptedEngine(release="old", strength_nats=0.1) as exact,
    ):
        assert verified(drifting, deployed=UNSALTED, limits=LIMITS).verdict is not Verdict.FAIL
        serve_users(exact, prompt_set=DESK)
        exact.reload("new")
        stale = verified(exact, deployed=UNSALTED, limits=LIMITS)
        assert stale.verdict is not Verdict.PASS
        assert max(one.distance or 0.0 for one in stale.probes) < 0.06


def test_b3_hits_are_compared_with_hits_and_what_should_hit_did() -> None:
    """https://github.com/sgl-project/sglang/issues/34683, https://github.com/sgl-project/sglang/pull/36401.

    Cold against cold is exact there, and cold against warm is not: a comparison across would call every hit stale.
    """
    with HitPath(shift_nats=0.12, release="new") as engine:
        serve_users(engine, prompt_set=DESK)
        found = observed(engine, deployed=UNSALTED, limits=LIMITS)
    (replica,) = found.evidence.replicas
    for one in replica.probes:
        assert all(hit.cached_tokens for hit in (*one.production, *one.clean, *one.rewritten))
    judged = judge_probes(replica.probes, floor=noise_floor(replica.probes), replica=engine.url)
    assert {one.verdict for one in judged} == {ProbeVerdict.CLEAN}


class Crowd(ScriptedEngine):
    """Counts how many generations are in flight at once, by the purpose that their salts name."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.in_flight = 0
        self.most_of: dict[str, int] = {}
        self.counting = threading.Lock()

    def generate(self, prompt: Sequence[int], body: dict[str, Any]) -> Generation:
        purpose = str(body.get("cache_salt") or "production").removeprefix("kvrelease-").partition("-")[0]
        with self.counting:
            self.in_flight += 1
            self.most_of[purpose] = max(self.most_of.get(purpose, 0), self.in_flight)
        try:
            return super().generate(prompt, body)
        finally:
            with self.counting:
                self.in_flight -= 1


def test_b4_noise_is_measured_on_this_server_and_judged_requests_have_no_company() -> None:
    """https://github.com/vllm-project/vllm/issues/57016, https://github.com/vllm-project/vllm/issues/51187.

    Also https://joshuaberkowitz.us/blog/papers-7/defeating-nondeterminism-in-llm-inference-1201: a thousand equal
    requests, eighty answers.
    """
    with Crowd(release="new", noise=True) as engine:
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is not Verdict.FAIL
        assert report.noise_floor.pairs >= len(DESK)
        assert 0.0 < (report.noise_floor.max or 0.0) < 0.04
        assert (engine.most_of["production"], engine.most_of["reference"]) == (1, 1)


def test_b5_nothing_is_judged_by_log_probabilities_of_the_prompt() -> None:
    """https://github.com/vllm-project/vllm/issues/42019: they depend on the order of requests.

    https://github.com/vllm-project/vllm/pull/57269, https://github.com/vllm-project/vllm/pull/28194,
    https://github.com/ai-dynamo/dynamo/pull/14323: and they skip reading the cache, so that a gate on them sees none.
    """
    with ScriptedEngine(release="new", ignores_salt=True) as engine:
        serve_users(engine, prompt_set=DESK)
        found = observed(engine, deployed=UNSALTED, limits=LIMITS)
        (replica,) = found.evidence.replicas
        assert all(one.production[0].cached_tokens for one in replica.probes)
        asked = [seen.body for seen in engine.generations()]
    assert all(not body.get("echo") for body in asked)
    # Only the legs that are to bypass the cache have them: for that alone.
    with_them = [body for body in asked if body.get("prompt_logprobs") is not None]
    assert 0 < len(with_them) < len(asked)
    assert {body["prompt_logprobs"] for body in with_them} == {0}


def test_b8_hits_that_are_wrong_each_time_fail_though_nothing_is_stale() -> None:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/2699: KV in FP8 reused gives wrong text, computed it is right.

    https://github.com/vllm-project/vllm/issues/53912, https://github.com/LMCache/LMCache/issues/4247: state of hybrid
    models is not restored where a hit ends. https://github.com/LMCache/LMCache/pull/2329,
    https://github.com/LMCache/LMCache/issues/939: the first answer A, then always B.
    """
    with HitPath(shift_nats=2.0, release="new") as engine:
        wrong = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert_fails(wrong, CheckId.REUSE)
        assert "the cache does not give back what was put in" in says(wrong, CheckId.REUSE)


def test_b15_another_text_from_a_near_tie_is_no_difference() -> None:
    """https://github.com/vllm-project/vllm/pull/57365, https://github.com/vllm-project/vllm-ascend/pull/7455.

    Also https://github.com/kserve/kserve/pull/5925: tests that want equal texts fail by themselves.
    """
    flipped = observation(0.02, texts=("b", "a", "c"))
    probes = [probe(production=[leg(seen=flipped)], clean=(leg(), leg(0.02)))]
    (judged,) = judge_probes(probes, floor=noise_floor(probes), replica="http://a")
    assert judged.first_divergence == 0
    assert judged.verdict is ProbeVerdict.CLEAN
