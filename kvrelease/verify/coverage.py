"""What a run did not cover, whatever its verdict: said in full, so that nobody takes a pass for more than it is."""

from __future__ import annotations

from collections.abc import Iterable

from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.evidence import Evidence

_UNPROVEN = {
    CheckId.IDENTITY: "whether the engine runs this release at all: it was compared with itself. Name --golden, or "
    "--release as a model directory",
    CheckId.POWER: "whether staleness would show on these prompts. Name --release and --old-release as directories",
    CheckId.RESPONSE_CACHE: "whether something in front of the engine answered in its place",
    CheckId.RESIDENCY: "whether what was warm before the run still is",
}


def not_covered(evidence: Evidence, checks: Iterable[Check]) -> tuple[str, ...]:
    """What was asked of nobody, or could not be told; one clause each, with what it would take."""
    open_checks = {check.id for check in checks if check.verdict is CheckVerdict.NOTE}
    found = [sentence for name, sentence in _UNPROVEN.items() if name in open_checks]
    if evidence.replicas and not any(one.old_pairs or one.old_identity_pairs for one in evidence.replicas):
        found.append("whether an answer that differs is the old release's. Name --baseline, or --old-release")
    return tuple(found)
