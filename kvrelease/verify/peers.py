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
from kvrelease.verify.distance import distance
from kvrelease.verify.evidence import ProbeEvidence
from kvrelease.verify.repeats import ALPHA, gap

# Shared prefixes that are looked at in one run. More would take more peers than the four hundred requests of twelve, or
# more of them that stand apart: of twelve it takes eight, of six five.
MAX_UNITS = 12

# Of the cache, at most so much is written full for peers: the rest is users'.
PEERS_SHARE = 0.5

# Peers of each prefix's probe, by how many prefixes there are. With 17 each, three prefixes of three, four of five and
# five of six are beyond chance; two of two with 44.
PEERS: Mapping[int, int] = {2: 44} | dict.fromkeys(range(3, MAX_UNITS + 1), 17)


def representatives(
    probes: Iterable[ProbeEvidence], *, capacity_tokens: int | None = None
) -> tuple[ProbeEvidence, ...]:
    """[at most `MAX_UNITS`] the first probe of each shared prefix, as many as there is room for peers of.

    Args:
        probes: in the order drawn, which nothing that was observed has a say in.
        capacity_tokens: of the engine's cache; None where it is not told.
    """
    first: dict[str, ProbeEvidence] = {}
    for probe in probes:
        first.setdefault(probe.prefix, probe)
    units = tuple(first.values())[:MAX_UNITS]
    while len(units) in PEERS and capacity_tokens is not None and _tokens(units) > PEERS_SHARE * capacity_tokens:
        units = units[:-1]
    return units


def _tokens(units: Sequence[ProbeEvidence]) -> int:
    """What all their peers take."""
    return PEERS[len(units)] * sum(probe.production[0].prompt_tokens or 0 for probe in units)


def stands_apart(probe: ProbeEvidence, *, threshold: float) -> bool:
    """Whether all of production's hits lie farther from the clean hit than the threshold, and than every peer does.

    All of them: the nearest of several readings of one entry is no farther than one reading, which each peer gets.
    """
    nearest = _nearest_hit(probe)
    return nearest is not None and nearest > threshold and all(stays_apart(probe, leg) for leg in _hits(probe.peers))


def stays_apart(probe: ProbeEvidence, peer: Leg) -> bool:
    """Whether a probe that stands apart does so from one more peer; never where one is told by text, one by figures."""
    nearest, twin = _nearest_hit(probe), next(_hits(probe.clean))
    legs = (*_hits((*probe.production, *probe.repeats.production)), peer)
    kinds = {distance(leg.observation, twin.observation).nats is None for leg in legs}
    return nearest is not None and len(kinds) == 1 and nearest > gap(peer.observation, twin.observation)


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


def proven_by_rank(
    probes: Sequence[ProbeEvidence], *, threshold: float, capacity_tokens: int | None = None
) -> tuple[ProbeEvidence, ...]:
    """[probes] those that stand apart from enough peers; none where chance may have made as many do.

    Args:
        probes: of one replica, in the order drawn.
        threshold: nats above which a probe is suspect.
        capacity_tokens: of the engine's cache; None where it is not told.
    """
    units = representatives(probes, capacity_tokens=capacity_tokens)
    apart = tuple(one for one in units if _has_peers(one, of=len(units)) and stands_apart(one, threshold=threshold))
    return apart if can_prove(len(apart), of=len(units)) else ()


def _has_peers(probe: ProbeEvidence, *, of: int) -> bool:
    return of in PEERS and sum(1 for _ in _hits(probe.peers)) >= PEERS[of]


def _hits(legs: Iterable[Leg]) -> Iterator[Leg]:
    """Legs that read an entry; a miss says nothing of what is kept."""
    return (leg for leg in legs if leg.cached_tokens)
