"""Public reports of release gates that said yes for the wrong reason (docs/cases.md, "Verifying")."""

from __future__ import annotations

import pytest

from kvrelease.artifacts import Verdict
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.judge import judge
from tests.engines.scripted import Break, ScriptedEngine
from tests.verify.deployments import observed, recorded, verified, warmed
from tests.verify.scenarios.servers import LIMITS, SALTED, UNSALTED
from tests.verify.scenarios.verdicts import assert_passes


@pytest.mark.parametrize("how", [Break.UNAUTHORIZED, Break.EMPTY, Break.CRASHING])
def test_e3_a_run_that_nobody_answered_could_not_run_and_is_no_pass(how: Break) -> None:
    """https://github.com/i-dot-ai/themefinder/pull/119: every call failed, and the job was green.

    https://github.com/NVIDIA/TensorRT-LLM/pull/17427, https://github.com/vllm-project/guidellm/issues/444,
    https://github.com/sgl-project/sglang/pull/40555: 200 without a token is counted as success.
    """
    with ScriptedEngine(release="new") as engine:
        engine.break_with(how)
        found = observed(engine, deployed=UNSALTED, limits=LIMITS, max_retries=0)
        assert [fault.exit_code for fault in found.faults] == [5]
        report = judge(found.evidence)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert report.probes == ()


@pytest.mark.parametrize("after", [3, 20])
def test_e4_one_request_that_fails_leaves_no_pass_however_many_were_right(after: int) -> None:
    """https://github.com/NVIDIA/TensorRT-LLM/pull/17427: many requests get 500, and the exit code is 0."""

    class FailsOnce(ScriptedEngine):
        def take_breakage(self, path: str) -> Break | None:
            is_next = path.startswith("/v1/c") and len(self.cached_of) == after
            return Break.CRASHING if is_next else None

    with FailsOnce(release="new") as engine:
        found = observed(engine, deployed=UNSALTED, limits=LIMITS, max_retries=0)
        assert [fault.exit_code for fault in found.faults] == [5]
        assert judge(found.evidence).verdict is Verdict.INCONCLUSIVE


def test_e10_prewarm_then_verify_then_traffic() -> None:
    """https://github.com/civitai/civitai/pull/2193, https://github.com/aprin-labs/archimedes/issues/1713.

    A pod that is cold is slow, and not wrong: the gate judges answers, and a prewarmed pod is still warm after it.
    """
    with Ledger(IN_MEMORY) as ledger, ScriptedEngine(release="new") as engine:
        assert_passes(verified(engine, deployed=SALTED, limits=LIMITS))
        engine.restart()
        assert warmed(engine, deployed=SALTED, ledger=ledger).verdict is Verdict.PASS
        gate = verified(engine, deployed=SALTED, ledger=ledger, limits=LIMITS)
        assert_passes(gate)
        assert all(probe.foreign_tokens == 0 and probe.cached_tokens for probe in gate.probes)
        users = recorded(engine, deployed=SALTED, ledger=ledger)
        assert all(one.leg.cached_tokens for one in users.observations)
