"""Would staleness show on these prompts? Measured as stale against clean, in process, against the run's threshold."""

from __future__ import annotations

import statistics

from kvrelease.artifacts import ReleaseRef
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.distance import ENOUGH_CANDIDATES, cut_to, distance, share_of_few
from kvrelease.verify.evidence import Limits, PowerPair
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.suspicion import threshold_nats

# With an unknown power, a run whose threshold lies higher proves nothing: 36 steps of fine-tuning move a stale answer
# by 0.27 nats, twelve by 0.11 (docs/statistics.md); three times the noise of eight concurrent requests to vLLM is 0.17,
# of a miss against a hit of llama.cpp (Q4_1) 0.15.
MAX_BLIND_THRESHOLD_NATS = 0.25

# The same, where production legs hit entries of unknown origin: then only a threshold below the staleness that a single
# step of fine-tuning makes (median 0.054 nats, docs/statistics.md) lets "no difference" mean "not stale".
MAX_FOREIGN_THRESHOLD_NATS = 0.02


def stale_clean_distance(pairs: tuple[PowerPair, ...], *, candidates: int | None = None) -> float | None:
    """Median distance of stale against clean answers in nats; None when it was not computed.

    Args:
        pairs: in process, where as many candidates are told as are asked for.
        candidates: that the engine tells; the others are left out.
    """
    found = [distance(cut_to(pair.stale, candidates), cut_to(pair.clean, candidates)).nats for pair in pairs]
    known = [nats for nats in found if nats is not None]
    return statistics.median(known) if known else None


def check_power(
    pairs: tuple[PowerPair, ...],
    *,
    floor: NoiseFloor,
    limits: Limits,
    first_touch_decided: bool,
    unexplained_tokens: int,
    same_kv_as: ReleaseRef | None = None,
) -> Check:
    """Would staleness show on these prompts?

    Args:
        pairs: stale against clean, in process.
        floor: of the run.
        limits: of the run.
        first_touch_decided: `first-touch` failed.
        unexplained_tokens: that production legs hit, and that this release is not known to have computed.
        same_kv_as: the old release, where it makes the same KV: nothing of it could be stale. None elsewhere.
    """
    if same_kv_as is not None:
        return Check(
            id=CheckId.POWER,
            verdict=CheckVerdict.NOTE,
            detail=f"not asked: {same_kv_as.name} makes the same KV ({same_kv_as.kv_name}), so its old KV is valid "
            "under this release, served with the same engine and settings, and none of it could be stale",
        )
    median = stale_clean_distance(pairs, candidates=floor.candidates)
    threshold = threshold_nats(floor)
    if median is None:
        most = MAX_FOREIGN_THRESHOLD_NATS if unexplained_tokens else MAX_BLIND_THRESHOLD_NATS
        is_blind = threshold > most * share_of_few(floor.candidates)
        return Check(
            id=CheckId.POWER,
            verdict=CheckVerdict.INCONCLUSIVE if limits.requires_power or is_blind else CheckVerdict.NOTE,
            detail="power unknown: stale against clean is computed in process, from --old-release and --release"
            + (
                f"; clean answers differ so much from each other (threshold {threshold:.4f} nats{_few(floor)}) that "
                "staleness may hide"
                + (f", and {unexplained_tokens} hit tokens are of unknown origin" if unexplained_tokens else "")
                + ". Verify on a quiet engine, or name both releases"
                if is_blind
                else ""
            ),
        )
    detail = f"stale against clean, in process: median {median:.3f} nats on {len(pairs)} prompts{_few(floor)}; "
    if median > threshold:
        return Check(
            id=CheckId.POWER,
            verdict=CheckVerdict.PASS,
            detail=detail + f"staleness would show (threshold {threshold:.4f})",
        )
    return Check(
        id=CheckId.POWER,
        verdict=CheckVerdict.NOTE if first_touch_decided else CheckVerdict.INCONCLUSIVE,
        detail=detail + f"staleness would hide in the noise (threshold {threshold:.4f})",
    )


def _few(floor: NoiseFloor) -> str:
    """What makes the instrument blunt, where the server tells few candidates."""
    told = floor.candidates
    if told is None or told >= ENOUGH_CANDIDATES:
        return ""
    return f", of {told} candidates, which is all that the server tells: raise its limit"
