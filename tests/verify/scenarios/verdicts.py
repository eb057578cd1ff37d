"""Reading a report as an operator does: the verdict, what decided it, and the sentence that says so."""

from __future__ import annotations

from kvrelease.artifacts import Verdict
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.judge import VerifyReport

FAILED = CheckVerdict.FAIL


def check(report: VerifyReport, name: CheckId, *, replica: str | None = None) -> Check:
    """One check, of whatever replica unless one is named."""
    return next(one for one in report.checks if one.id is name and replica in (None, one.replica))


def says(report: VerifyReport, name: CheckId, *, replica: str | None = None) -> str:
    """`verdict: detail` of one check."""
    found = check(report, name, replica=replica)
    return f"{found.verdict}: {found.detail}"


def deciding(report: VerifyReport) -> set[CheckId]:
    """The checks that failed, or where none did, those that found too little."""
    wanted = CheckVerdict.FAIL if report.verdict is Verdict.FAIL else CheckVerdict.INCONCLUSIVE
    return {one.id for one in report.checks if one.verdict is wanted}


def assert_passes(report: VerifyReport) -> None:
    """A pass, with what speaks against it where there is none."""
    assert report.verdict is Verdict.PASS, "\n".join(f"{one.id} {one.verdict}: {one.detail}" for one in report.checks)


def assert_fails(report: VerifyReport, *by: CheckId) -> None:
    """A failure by these checks, and by no other."""
    assert (report.verdict, deciding(report)) == (Verdict.FAIL, set(by)), report.reason


def assert_open(report: VerifyReport, *by: CheckId) -> None:
    """Not enough evidence, for these reasons and no other."""
    assert (report.verdict, deciding(report)) == (Verdict.INCONCLUSIVE, set(by)), report.reason
