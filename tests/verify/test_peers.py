"""Users' entry ranked among entries that were written again: what that proves, and how seldom by chance."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from kvrelease.artifacts import Verdict
from kvrelease.binding.observe import Leg
from kvrelease.verify.consistency import ProbeVerdict, judge_probes
from kvrelease.verify.evidence import ProbeEvidence
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.peers import (
    MAX_UNITS,
    PEERS,
    PEERS_SHARE,
    can_prove,
    chance_of_ranks,
    proven_by_rank,
    representatives,
    stands_apart,
)
from kvrelease.verify.repeats import ALPHA, REPEATS
from tests.verify.builders import PROMPT_TOKENS, leg, observation, probe, repeats, stale_probe
from tests.verify.simulation import batches, quiet, rates

QUIET = NoiseFloor(pairs=40, p50=0.0, max=0.0, quantum=0.01, apart=8)
SMALL = 0.08  # every second candidate: 0.04 nats
DUST = 1e-6
SILENT, OTHER = observation(logprobs=False), observation(texts=("z",), logprobs=False)


def with_peers(one: ProbeEvidence, *shifts: float, count: int) -> ProbeEvidence:
    """The probe with so many peers, of which the first read as given and the others like the clean hit."""
    return replace(one, peers=tuple(leg(shift) for shift in (*shifts, *[0.0] * (count - len(shifts)))))


def under(prefixes: int, *shifts: float, peers: int | None = None) -> list[ProbeEvidence]:
    count = PEERS[prefixes] if peers is None else peers
    made = (stale_probe(f"p{number}", SMALL, prefix=f"d{number}") for number in range(prefixes))
    return [with_peers(one, *shifts, count=count) for one in made]


def verdicts(probes: Sequence[ProbeEvidence]) -> list[ProbeVerdict]:
    return [one.verdict for one in judge_probes(probes, floor=QUIET, replica="here")]


@pytest.mark.parametrize("prefixes", [2, 3, 4, 5, 6, 12])
def test_small_staleness_under_two_to_twelve_prefixes_is_proven(prefixes: int) -> None:
    found = judge_probes(under(prefixes), floor=QUIET, replica="here")
    assert [one.verdict for one in found] == [ProbeVerdict.STALE] * prefixes
    assert "no entry that was written again answers so (8 of 8 fresh legs above the threshold" in found[0].detail


def test_what_one_entry_written_again_shows_as_well_is_no_staleness() -> None:
    assert verdicts(under(3, SMALL)) == [ProbeVerdict.SUSPECT] * 3


def test_fewer_peers_than_it_takes_prove_nothing_and_those_that_missed_are_none() -> None:
    assert verdicts(under(3, peers=PEERS[3] - 1)) == [ProbeVerdict.SUSPECT] * 3
    missed = [replace(one, peers=(leg(cached=0), *one.peers[1:])) for one in under(3)]
    assert verdicts(missed) == [ProbeVerdict.SUSPECT] * 3


def test_under_one_prefix_no_number_of_peers_within_reason_proves_anything() -> None:
    assert 1 not in PEERS
    assert chance_of_ranks(1, of=1, peers=998) > ALPHA >= chance_of_ranks(1, of=1, peers=999)
    assert proven_by_rank([with_peers(stale_probe(shift=SMALL), count=200)], threshold=DUST) == ()


def test_how_many_prefixes_of_how_many_are_beyond_chance() -> None:
    fewest = {
        of: next(k for k in itertools.count(1) if k > of or can_prove(k, of=of)) for of in range(1, MAX_UNITS + 1)
    }
    assert fewest == {1: 2, 2: 2, 3: 3, 4: 4, 5: 4, 6: 5, 7: 5, 8: 6, 9: 6, 10: 7, 11: 7, 12: 8}


def test_the_first_probe_of_a_prefix_speaks_for_it_and_not_the_worst() -> None:
    probes = [probe("a", prefix="d0"), stale_probe("b", SMALL, prefix="d0"), probe("c", prefix="d1")]
    assert [one.id for one in representatives(probes)] == ["a", "c"]
    many = [probe(f"p{number}", prefix=f"d{number}") for number in range(MAX_UNITS + 3)]
    assert len(representatives(many)) == MAX_UNITS


def test_a_probe_stands_apart_only_where_all_of_its_hits_do() -> None:
    fresh = [leg(SMALL)] * 8
    assert stands_apart(stale_probe(shift=SMALL), threshold=DUST)
    one_clean = probe(production=[leg(SMALL)], repeats=repeats(*fresh[:7], leg()))
    assert not stands_apart(one_clean, threshold=DUST)
    first_missed = probe(production=[leg(cached=0), leg(SMALL)], repeats=repeats(*fresh))
    assert stands_apart(first_missed, threshold=DUST), "a miss says nothing of what is kept"
    assert not stands_apart(replace(stale_probe(shift=SMALL), clean=()), threshold=DUST)
    assert not stands_apart(stale_probe(shift=SMALL), threshold=0.05)


@pytest.mark.parametrize("together", [False, True], ids=["each peer by itself", "peers with everything in common"])
def test_the_chance_is_an_upper_bound_whatever_peers_have_in_common(together: bool) -> None:
    """Ranks of pure noise, counted: fewer peers, so that it happens often enough to be counted."""
    source, runs, of, peers = random.Random(3), 2000, 3, 4
    draw: Callable[[], float] = source.random
    counted = [0] * (of + 1)
    for _ in range(runs):
        common = [draw() for _ in range(peers)]
        own = [common if together else [draw() for _ in range(peers)] for _ in range(of)]
        counted[sum(draw() > max(one) for one in own)] += 1
    for apart in range(1, of + 1):
        share = sum(counted[apart:]) / runs
        bound = chance_of_ranks(apart, of=of, peers=peers)
        assert share <= bound + 3 * (bound / runs) ** 0.5, apart


# --- whole runs ------------------------------------------------------------------------------------------------------

RUNS = 4


def test_one_step_of_fine_tuning_fails_under_three_prefixes_on_a_quiet_engine() -> None:
    assert rates(RUNS, noise=quiet, stale_nats=0.05, prefixes=3)[Verdict.FAIL] == 1.0


def test_many_questions_under_few_prefixes_of_which_some_came_from_another_kernel_never_fail() -> None:
    # The worst question of a prefix is one from that kernel nearly always; the one that was drawn first seldom is.
    found = rates(RUNS, noise=quiet, written=batches(0.02, share=0.1), probes=40, prefixes=5)
    assert found[Verdict.FAIL] == 0.0


def test_under_many_prefixes_small_staleness_of_two_thirds_is_proven_and_of_less_is_not() -> None:
    stale = under(12)
    clean = [with_peers(probe(one.id, prefix=one.prefix), count=PEERS[12]) for one in stale]
    found = verdicts([*stale[:8], *clean[8:]])
    assert found == [ProbeVerdict.STALE] * 8 + [ProbeVerdict.CLEAN] * 4
    assert ProbeVerdict.STALE not in verdicts([*stale[:7], *clean[7:]])


def test_where_the_cache_has_no_room_for_all_peers_fewer_prefixes_speak() -> None:
    probes = under(12)
    room = round(PEERS[6] * 6 * PROMPT_TOKENS / PEERS_SHARE)
    assert [one.id for one in representatives(probes, capacity_tokens=room)] == [f"p{number}" for number in range(6)]
    assert len(representatives(probes, capacity_tokens=PROMPT_TOKENS)) == 1
    assert len(representatives(probes)) == MAX_UNITS


def by_text(number: int, *, clean: Leg, peers: Sequence[Leg]) -> ProbeEvidence:
    """A probe whose production legs are another text, without log-probabilities."""
    legs = repeats(*[leg(seen=OTHER)] * REPEATS, clean=[clean] * REPEATS)
    prefix = f"d{number}"
    made = probe(f"p{number}", prefix=prefix, production=[leg(seen=OTHER)], cold=clean, clean=[clean], repeats=legs)
    return replace(made, peers=tuple(peers))


def test_texts_are_ranked_too_because_a_choice_that_hung_by_a_hair_flips_in_peers_as_well() -> None:
    same, other = leg(seen=SILENT), leg(seen=OTHER)
    found = [by_text(number, clean=same, peers=[same] * PEERS[3]) for number in range(3)]
    assert verdicts(found) == [ProbeVerdict.STALE] * 3
    flipped = [by_text(number, clean=same, peers=[other, *[same] * (PEERS[3] - 1)]) for number in range(3)]
    assert verdicts(flipped) == [ProbeVerdict.SUSPECT] * 3


def test_a_text_is_not_ranked_among_figures() -> None:
    # Log-probabilities are dropped of users' requests alone: their texts are no measure beside the peers' nats.
    found = [by_text(number, clean=leg(), peers=[leg(0.5)] * PEERS[3]) for number in range(3)]
    assert verdicts(found) == [ProbeVerdict.SUSPECT] * 3
