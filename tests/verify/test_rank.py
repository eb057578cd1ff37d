"""Data-parallel ranks behind one URL: what is said of a rank is of that rank's cache, or is not proved."""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import Verdict
from kvrelease.fleet.access import Access
from kvrelease.fleet.opening import Fleet
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.checks import CheckId, CheckVerdict
from kvrelease.verify.evidence import Limits
from kvrelease.verify.judge import VerifyReport
from kvrelease.verify.run import conclude, observe
from kvrelease.verify.twins import Twins
from tests.engines.scripted import ScriptedEngine
from tests.fleet.test_opening import reached, with_fleet
from tests.verify.deployments import deployment, prompts, serve_users
from tests.verify.scenarios.verdicts import says

SMALL = prompts(per_desk=2, desks=("returns",))
LIMITS = Limits(stale_below=0.8)  # two probes
SALTED = deployment(salt="release", prompt_set=SMALL)


def each_rank(engine: ScriptedEngine, *, ranks: int | None = None) -> Access:
    return msgspec.structs.replace(reached(engine.url), ranks=ranks)


def judged(access: Access, *, ledger: Ledger | None = None) -> VerifyReport:
    async def main(fleet: Fleet) -> VerifyReport:
        with Ledger(IN_MEMORY) as store:
            seen = await observe(fleet.engines, deployment=SALTED, ledger=ledger or store, limits=LIMITS, twins=Twins())
            return conclude(seen, deployment=SALTED, ledger=ledger or store)[0]

    return with_fleet(access, main)


def verdicts(report: VerifyReport, name: CheckId) -> list[CheckVerdict]:
    return [check.verdict for check in report.checks if check.id is name]


def test_ranks_that_are_reached_pass_and_what_proves_it_is_sent_after_everything_that_is_judged() -> None:
    with ScriptedEngine(release="new", ranks=2) as engine:
        report = judged(each_rank(engine))
        assert report.verdict is Verdict.PASS, report.reason
        assert verdicts(report, CheckId.RANK) == [CheckVerdict.PASS] * 2
        # A process that nobody had asked is one until the first production leg.
        assert verdicts(report, CheckId.FIRST_TOUCH) == [CheckVerdict.PASS] * 2
        salts = [str(seen.body.get("cache_salt")) for seen in engine.generations()]
        assert all(salt.startswith("kvrelease-rank-") for salt in salts[-4:])


def test_a_rank_whose_header_is_ignored_passes_nothing_and_fails_nothing() -> None:
    with ScriptedEngine(release="new", ranks=2, honours_rank=False) as engine:
        serve_users(engine, salt=SALTED.salt, prompt_set=SMALL)
        with Ledger(IN_MEMORY) as ledger:
            report = judged(each_rank(engine), ledger=ledger)
            assert report.verdict is Verdict.INCONCLUSIVE, report.reason
            assert "do not reach it" in says(report, CheckId.RANK)
            assert CheckVerdict.FAIL not in {check.verdict for check in report.checks}


def test_without_counters_of_the_rank_it_is_not_proved() -> None:
    with ScriptedEngine(release="new", ranks=2, has_metrics=False) as engine:
        report = judged(each_rank(engine, ranks=2))
        assert verdicts(report, CheckId.RANK) == [CheckVerdict.INCONCLUSIVE] * 2
        assert "open /metrics" in says(report, CheckId.RANK)
        assert report.verdict is Verdict.INCONCLUSIVE


def test_ranks_that_are_asked_as_a_whole_are_told_as_not_covered() -> None:
    with ScriptedEngine(release="new", ranks=2) as engine:
        report = judged(reached(engine.url))
        assert verdicts(report, CheckId.RANK) == [CheckVerdict.NOTE]
        assert any("each rank of an engine by itself" in one for one in report.not_covered)
    with ScriptedEngine(release="new") as engine:
        assert verdicts(judged(reached(engine.url)), CheckId.RANK) == []
