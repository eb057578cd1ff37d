"""Identity and power from releases in process, on tiny models."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvrelease.artifacts import Verdict
from kvrelease.binding.deployment import Deployment
from kvrelease.engines.block_cache import BlockCache
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.checks import CheckId, CheckVerdict
from kvrelease.verify.evidence import Limits
from kvrelease.verify.judge import judge
from kvrelease.verify.run import Observed, observe
from kvrelease.verify.twins import Twins
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet
from tests.engines.in_process import opened
from tests.loops import run
from tests.tiny_models import build_release
from tests.verify.deployments import deployment
from tests.verify.scenarios.verdicts import check

LIMITS = Limits(stale_below=0.4)
# One token is one byte here.
PROMPTS = PromptSet(
    name="tiny",
    source="tiny.yaml",
    prompts=tuple(
        Prompt(
            id=f"q{number}",
            weight=1.0,
            kind=PromptKind.CHAT,
            body={"messages": [{"role": "user", "content": f"The rules of the returns desk, number {number}: may I?"}]},
            prefix="returns",
        )
        for number in range(6)
    ),
)
DEPLOYED: Deployment = deployment(prompt_set=PROMPTS)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("releases")
    return {
        "old": build_release(root / "old", seed=1),
        "new": build_release(root / "new", seed=2),
        "wide": build_release(root / "wide", seed=1, kv_heads=4),
        "short": build_release(root / "short", seed=2, context_tokens=48),
    }


def observed(
    releases: dict[str, Path],
    *,
    serving: str = "new",
    before: str | None = None,
    release: str | None = "new",
    old_release: str | None = "old",
) -> Observed:
    """Serves `serving` over a cache that `before` filled, and verifies it with releases in process."""

    cache = BlockCache()

    def seen(name: str, twins: Twins) -> Observed:
        async def main() -> Observed:
            async with engine:
                return await observe([engine], deployment=DEPLOYED, ledger=ledger, limits=LIMITS, twins=twins)

        engine = opened(releases[name], cache=cache)
        with Ledger(IN_MEMORY) as ledger:
            return run(main())

    if before is not None:
        seen(before, Twins())
    new, old = (None if name is None else opened(releases[name]) for name in (release, old_release))
    return seen(serving, Twins(release=new, old_release=old))


def test_a_clean_engine_passes_with_identity_and_power_proved(releases: dict[str, Path]) -> None:
    report = judge(observed(releases).evidence)
    assert report.verdict is Verdict.PASS, report.reason
    assert check(report, CheckId.IDENTITY).verdict is CheckVerdict.PASS
    assert check(report, CheckId.POWER).verdict is CheckVerdict.PASS
    assert report.power.status == "sufficient"
    assert report.noise_floor.max is not None
    assert report.noise_floor.max < 1e-3


def test_old_blocks_under_new_weights_fail(releases: dict[str, Path]) -> None:
    report = judge(observed(releases, before="old").evidence)
    assert report.verdict is Verdict.FAIL
    assert check(report, CheckId.CONSISTENCY).verdict is CheckVerdict.FAIL
    # A cache that others wrote to before is a store: a new process may hit there, and what it answers decides.
    assert check(report, CheckId.FIRST_TOUCH).verdict is CheckVerdict.NOTE
    assert check(report, CheckId.IDENTITY).verdict is CheckVerdict.PASS


def test_power_stays_unknown_without_the_old_release_or_with_other_shapes(releases: dict[str, Path]) -> None:
    for old in (None, "wide"):
        report = judge(observed(releases, old_release=old).evidence)
        assert report.verdict is Verdict.PASS, report.reason
        assert report.power.status == "unknown"


def test_required_power_that_is_unknown_is_inconclusive(releases: dict[str, Path]) -> None:
    evidence = observed(releases, old_release=None).evidence
    asked = msgspec.structs.replace(evidence, limits=Limits(stale_below=0.4, requires_power=True))
    assert judge(asked).verdict is Verdict.INCONCLUSIVE


def test_the_same_release_twice_has_no_power_and_no_stale_probe(releases: dict[str, Path]) -> None:
    report = judge(observed(releases, old_release="new").evidence)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.power.status == "below-floor"


def test_a_release_that_cannot_answer_in_process_costs_no_evidence(releases: dict[str, Path]) -> None:
    found = observed(releases, release="short", old_release=None)
    assert found.faults == ()
    (replica,) = found.evidence.replicas
    assert len(replica.probes) == 6
    assert replica.identity_failure is not None
    (identity,) = [check for check in judge(found.evidence).checks if check.id is CheckId.IDENTITY]
    assert identity.verdict is CheckVerdict.NOTE
    assert "did not run in process" in identity.detail
