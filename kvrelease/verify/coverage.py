"""What a run did not cover, whatever its verdict: said in full, so that nobody takes a pass for more than it is."""

from __future__ import annotations

from collections.abc import Iterable

from kvrelease.config import HOW_TO_DECLARE_A_SALT
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.evidence import Evidence, ProbeEvidence, ReplicaEvidence
from kvrelease.verify.old_release import make_the_same_kv

_UNPROVEN = {
    CheckId.IDENTITY: "whether the engine runs this release at all: it was compared with itself. Name --golden, or "
    "--release as a model directory",
    CheckId.RANK: "each rank of an engine by itself: it was asked as a whole, and its ranks have caches of their own. "
    "Name --data-parallel auto",
    CheckId.POWER: "whether staleness would show on these prompts. Name --release and --old-release as directories",
    CheckId.RESPONSE_CACHE: "whether something in front of the engine answered in its place",
    CheckId.RESIDENCY: "whether what was warm before the run still is",
}
_SAME_KV = (
    "whether KV of any release but {old} would show: that one makes the same KV as the release. Name the last one "
    "whose KV differs as --old-release"
)
_UNDECLARED_SALT = (
    "what users meet whose requests carry a salt: nobody declared which salt users send, so unsalted keys were judged; "
    f"{HOW_TO_DECLARE_A_SALT}"
)


def not_covered(evidence: Evidence, checks: Iterable[Check]) -> tuple[str, ...]:
    """What was asked of nobody, or could not be told; one clause each, with what it would take."""
    open_checks = {check.id for check in checks if check.verdict is CheckVerdict.NOTE}
    unproven = dict(_UNPROVEN)
    if evidence.old_release is not None and make_the_same_kv(evidence.old_release, evidence.release):
        unproven[CheckId.POWER] = _SAME_KV.format(old=evidence.old_release.name)
    found = [sentence for name, sentence in unproven.items() if name in open_checks]
    if not evidence.is_salt_declared:
        found.append(_UNDECLARED_SALT)
    if unseen := sum(map(_asked_once, evidence.replicas)):
        found.append(
            f"what {unseen} shared prefixes that hit nothing at first give to those who ask later: only some are asked "
            "again, and a tier below may answer late. Verify again"
        )
    if evidence.replicas and not any(one.old_pairs or one.old_identity_pairs for one in evidence.replicas):
        found.append("whether an answer that differs is the old release's. Name --baseline, or --old-release")
    return tuple(found)


def _asked_once(replica: ReplicaEvidence) -> int:
    """Shared prefixes whose first request hit nothing, and which the end of the run did not look at again."""
    if replica.identity.capabilities.reference_heals:
        return 0  # each is asked again at once
    first: dict[str, ProbeEvidence] = {}
    for probe in replica.probes:
        first.setdefault(probe.prefix, probe)
    looked_at = {probe.prefix for probe in replica.probes if len(probe.production) > 1}
    return sum(probe.production[0].cached_tokens == 0 and prefix not in looked_at for prefix, probe in first.items())
