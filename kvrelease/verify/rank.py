"""Is the cache that was asked the one that the report names? Each data-parallel rank behind a URL has its own."""

from __future__ import annotations

from kvrelease.binding.ranks import RankProof
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.evidence import ReplicaEvidence


def check_rank(replica: ReplicaEvidence) -> Check | None:
    """Do requests for a rank reach it? None for an engine with one cache."""
    identity, proof = replica.identity, replica.rank_proof
    if identity.rank is None and len(identity.ranks) < 2:
        return None
    if identity.rank is None:
        verdict = CheckVerdict.NOTE
        detail = (
            f"asked as a whole: it has {len(identity.ranks)} ranks, each with a cache of its own, and a request goes "
            "to any of them. Ask each one by itself: --data-parallel auto"
        )
    elif proof is None:
        verdict, detail = CheckVerdict.INCONCLUSIVE, "the run ended before it was proved that requests reach this rank"
    else:
        verdict = CheckVerdict.PASS if proof is RankProof.PROVEN else CheckVerdict.INCONCLUSIVE
        detail = proof.finding if proof.hint is None else f"{proof.finding}: {proof.hint}"
    return Check(id=CheckId.RANK, verdict=verdict, detail=detail, replica=identity.shown)
