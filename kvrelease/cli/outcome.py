"""From an artifact to the exit code of the program."""

from __future__ import annotations

from collections.abc import Iterable

from kvrelease.artifacts import Fault, Verdict
from kvrelease.errors import ExitCode, worst

_OF_VERDICT = {
    Verdict.PASS: ExitCode.OK,
    Verdict.FAIL: ExitCode.FAILED,
    Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}


def exit_code(*, verdict: Verdict | None = None, faults: Iterable[Fault] = (), interrupted: bool = False) -> ExitCode:
    """The one exit code of a run's result."""
    codes = [ExitCode(fault.exit_code) for fault in faults]
    if verdict is not None:
        codes.append(_OF_VERDICT[verdict])
    if interrupted:
        codes.append(ExitCode.INTERRUPTED)
    return worst(codes)
