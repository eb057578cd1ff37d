"""What `prompts check --fail-on` asks of a report: yes, no, or not known."""

from __future__ import annotations

import enum

from kvrelease.artifacts import Verdict
from kvrelease.workload.check import PromptsReport
from kvrelease.workload.log_report import LogReport


class Complaint(enum.StrEnum):
    """What may make a set or a log unfit."""

    SECRETS = "secrets"
    PERSONAL = "personal"
    VOLATILE = "volatile"
    UNCACHEABLE = "uncacheable"
    ANY = "any"


def complaint_verdict(report: PromptsReport | LogReport, complaint: Complaint) -> tuple[Verdict, str]:
    """Whether a report has what was asked for, and why.

    Returns:
        FAIL when it has, INCONCLUSIVE when it cannot be known, PASS otherwise.
    """
    asked = [one for one in Complaint if one is not Complaint.ANY] if complaint is Complaint.ANY else [complaint]
    answers = [(_answer(report, one), one) for one in asked]
    for wanted in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        found = [one for verdict, one in answers if verdict is wanted]
        if found:
            words = {Verdict.FAIL: "found", Verdict.INCONCLUSIVE: "not known"}[wanted]
            is_uncounted = wanted is Verdict.INCONCLUSIVE and Complaint.UNCACHEABLE in found and report.tokens is None
            return wanted, f"{words}: {', '.join(found)}{_how_to_count(report) if is_uncounted else ''}"
    return Verdict.PASS, f"none found: {', '.join(asked)}"


def _how_to_count(report: PromptsReport | LogReport) -> str:
    also = " or --engine-url URL" if isinstance(report, PromptsReport) else ""
    return f"; no tokens were counted: name --tokenizer MODEL{also}"


def _answer(report: PromptsReport | LogReport, complaint: Complaint) -> Verdict:
    has, is_known = _found(report, complaint)
    if has:
        return Verdict.FAIL
    return Verdict.PASS if is_known else Verdict.INCONCLUSIVE


def _found(report: PromptsReport | LogReport, complaint: Complaint) -> tuple[bool, bool]:
    """(it has what was asked for, all was looked at)."""
    match complaint:
        case Complaint.SECRETS:
            return any(one.is_secret for one in report.sensitive), report.is_searched
        case Complaint.PERSONAL:
            return any(not one.is_secret for one in report.sensitive), report.is_searched
        case Complaint.VOLATILE:
            return report.is_volatile, report.is_searched
        case _:
            return report.has_short, report.is_counted
