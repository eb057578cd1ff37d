"""What the releases in process answer to the prompts of stale prefixes: the old one, the new one over its KV, clean."""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.binding.deployment import Replica
from kvrelease.engines.local import LocalEngine, stale_and_clean
from kvrelease.errors import UnsupportedRelease
from kvrelease.progress import Progress, ProgressEvent
from kvrelease.verify.bisect import MAX_PREFIXES
from kvrelease.verify.diagnosis import searched_prefixes
from kvrelease.verify.evidence import InProcessAnswers, ReplicaEvidence
from kvrelease.verify.record import probe_request
from kvrelease.verify.suspicion import worst_leg
from kvrelease.workload.prompt_set import Prompt


async def answers_in_process(
    seen: ReplicaEvidence,
    *,
    replica: Replica,
    prompts: Mapping[str, Prompt],
    release: LocalEngine | None,
    old_release: LocalEngine | None,
    progress: Progress,
) -> tuple[InProcessAnswers, ...]:
    """[stale prefixes] answers to the prompt of the worst probe of each; none where a release is missing.

    The old release's KV takes the place of the blocks that the engine served stale: from the first one that shows a
    difference, where a search found it, to the end of the hit.

    Args:
        seen: of the replica, with its searches.
        replica: whose requests are repeated.
        prompts: by id.
        release: that is said to be served.
        old_release: the one before.
        progress: told after each prompt.

    Raises:
        KvreleaseError: a prompt does not run in process.
    """
    if release is None or old_release is None:
        return ()
    found: list[InProcessAnswers] = []
    stale = searched_prefixes(seen)[:MAX_PREFIXES]
    probes = {probe.id: probe for probe in seen.probes}
    for number, prefix in enumerate(stale):
        probe = probes[prefix.probe]
        request = probe_request(replica, prompts[probe.id], salt=None)
        cached = probe.production[worst_leg(probe)].cached_tokens
        try:
            over_old, over_new = await stale_and_clean(
                old_release, release, request, stale_from=prefix.stale_from or 0, hit_tokens=cached
            )
        except UnsupportedRelease:
            return ()  # other shapes: no block of the old release can be hit, so it is none of its
        old = await old_release.complete(request)
        found.append(InProcessAnswers(probe=probe.id, old=old, stale=over_old, clean=over_new))
        progress(ProgressEvent(stage="stale prompts in process", done=number + 1, total=len(stale), unit="prompts"))
    return tuple(found)
