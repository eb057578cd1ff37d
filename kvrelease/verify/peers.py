"""Is a small difference that reproduces more than how one entry happened to be written? A test by ranks; pure.

What other requests in the batch did to an entry stays with it, so fresh legs of one entry reproduce it as they do
staleness. Entries of the same prompt that are written again, in company, by the weights that are served now, are its
*peers*: users' own entry, if it is clean, is the farthest of *n* + 1 from the reference's with a chance of at most
1 / (*n* + 1), whatever noise is like and however it differs from prompt to prompt.

One probe speaks for each shared prefix, chosen before anything is known of it: the first that was drawn. The worst one
would be the farthest by choice. Users' entries under different prefixes were written by themselves, peers were not: the
same batches wrote those of all prefixes. One prefix alone proves nothing: it would take 999 peers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvrelease.binding.observe import Leg
from kvrelease.verify.evidence import ProbeEvidence
from kvrelease.verify.repeats import ALPHA, gap

# Shared prefixes that are looked at in one run: as many as suspects are asked again.
MAX_UNITS = 6

# Peers of each prefix's probe, by how many prefixes there are. With 17 each, three prefixes of three, four of five and
# five of six are beyond chance; two of two with 44.
PEERS: Mapping[int, int] = {2: 44} | dict.fromkeys(range(3, MAX_UNITS + 1), 17)


def representatives(probes: Iterable[ProbeEvidence]) -> tuple[ProbeEvidence, ...]:
    """[at most `MAX_UNITS`] the first probe of each shared prefix.

    Args:
        probes: in the order drawn, which nothing that was observed has a say in.
    """
    first: dict[str, ProbeEvidence] = {}
    for probe in probes:
        first.setdefault(probe.prefix, probe)
    return tuple(first.values())[:MAX_UNITS]


def stands_apart(probe: ProbeEvidence, *, threshold: float) -> bool:
    """Whether all of production's hits lie farther from the clean hit than the threshold, and than every peer does.

    All of them: the nearest of several readings of one entry is no farther than one reading, which each peer gets.
    """
    nearest = _nearest_hit(probe)
    return nearest is not None and nearest > threshold and all(stays_apart(probe, leg) for leg in _hits(probe.peers))


def stays_apart(probe: ProbeEvidence, peer: Leg) -> bool:
    """Whether a probe that stands apart does so from one more peer."""
    nearest, twin = _nearest_hit(probe), next(_hits(probe.clean))
    return nearest is not None and nearest > gap(peer.observation, twin.observation)


def _nearest_hit(probe: ProbeEvidence) -> float | None:
    """How far the nearest of production's hits lies from the clean hit, nats; None where one of the two is missing."""
    twin = next(_hits(probe.clean), None)
    users = _hits((*probe.production, *probe.repeats.production))
    return None if twin is None else min((gap(leg.observation, twin.observation) for leg in users), default=None)


def chance_of_ranks(apart: int, *, of: int, peers: int) -> float:
    """The most probable that so many of the prefixes stand apart, each from so many peers, where all entries are clean.

    The chance that all of *k* do is largest where peers have everything in common, and then that of the *k* farthest
    of *k* + *peers* draws being users' (Hölder's inequality); which *k* of the prefixes they are counts once each.

    Args:
        apart: prefixes whose probe stands apart, >= 0.
        of: prefixes looked at, >= `apart`.
        peers: of each probe.
    """
    return min(1.0, math.comb(of, apart) / math.comb(peers + apart, apart))


def can_prove(apart: int, *, of: int) -> bool:
    """Whether so many prefixes of so many are beyond chance, once each has its peers."""
    return of in PEERS and chance_of_ranks(apart, of=of, peers=PEERS[of]) <= ALPHA


def proven_by_rank(probes: Sequence[ProbeEvidence], *, threshold: float) -> tuple[ProbeEvidence, ...]:
    """[probes] those that stand apart from enough peers; none where chance may have made as many do.

    Args:
        probes: of one replica, in the order drawn.
        threshold: nats above which a probe is suspect.
    """
    units = representatives(probes)
    apart = tuple(one for one in units if _has_peers(one, of=len(units)) and stands_apart(one, threshold=threshold))
    return apart if can_prove(len(apart), of=len(units)) else ()


def _has_peers(probe: ProbeEvidence, *, of: int) -> bool:
    return of in PEERS and sum(1 for _ in _hits(probe.peers)) >= PEERS[of]


def _hits(legs: Iterable[Leg]) -> Iterator[Leg]:
    """Legs that read an entry; a miss says nothing of what is kept."""
    return (leg for leg in legs if leg.cached_tokens)
