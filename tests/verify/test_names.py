"""What became of the fleet's names while the gate ran."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelease.artifacts import Verdict
from kvrelease.engines.address import parse_address
from kvrelease.engines.base import EngineClient
from kvrelease.errors import ExitCode, Unreachable
from kvrelease.fleet.names import AddressChange
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.checks import CheckId
from kvrelease.verify.evidence import Limits
from kvrelease.verify.judge import VerifyReport
from kvrelease.verify.run import conclude, observe
from kvrelease.verify.twins import Twins
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import deployment, prompts, with_clients

DEPLOYED = deployment(prompt_set=prompts(per_desk=2))
POD = parse_address("http://llm.example:8000").at("10.0.0.5")


def after(changes: Sequence[AddressChange] | Unreachable) -> tuple[VerifyReport, int]:
    """The report of a gate at whose end the names are as told, and the worst exit code of its faults."""

    async def told() -> Sequence[AddressChange]:
        if isinstance(changes, Unreachable):
            raise changes
        return changes

    async def main(clients: list[EngineClient]) -> tuple[VerifyReport, int]:
        with Ledger(IN_MEMORY) as ledger:
            found = await observe(
                clients,
                deployment=DEPLOYED,
                ledger=ledger,
                limits=Limits(stale_below=0.8),
                twins=Twins(),
                max_probes=2,
                changes=told,
            )
            report, faults = conclude(found, deployment=DEPLOYED, ledger=ledger)
        assert report.faults == faults
        return report, max((fault.exit_code for fault in faults), default=0)

    with ScriptedEngine(release="new") as engine:
        return with_clients([engine], main)


def test_a_pod_that_came_meanwhile_is_named_unjudged_and_inconclusive() -> None:
    report, code = after([AddressChange(address=POD, appeared=True)])
    assert (report.verdict, code) == (Verdict.INCONCLUSIVE, ExitCode.INCONCLUSIVE)
    (replicas,) = [check for check in report.checks if check.id is CheckId.REPLICAS]
    assert "not judged: http://10.0.0.5:8000 (llm.example) appeared" in replicas.detail
    assert report.reason == "not enough evidence: replicas"


def test_a_pod_that_went_is_said_and_costs_nothing() -> None:
    report, code = after([AddressChange(address=POD, appeared=False)])
    assert (report.verdict, code) == (Verdict.PASS, ExitCode.OK), report.reason
    assert len(report.faults) == 1


def test_a_name_that_cannot_be_looked_up_any_more_is_a_fault_in_the_result() -> None:
    report, code = after(Unreachable("looking up llm.example: the name has no address"))
    assert (report.verdict, code) == (Verdict.INCONCLUSIVE, ExitCode.SERVICE)
    assert len(report.probes) == 2


def test_without_a_name_nothing_is_looked_up() -> None:
    report, code = after([])
    assert (report.verdict, code, report.faults) == (Verdict.PASS, ExitCode.OK, ())
