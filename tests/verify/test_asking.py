"""Which suspects are asked again, in which order, and when that ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from kvrelease.binding.observe import Leg
from kvrelease.verify.asking import Ask, LegKind, peers_to_write, repeats_at_once, repeats_to_ask
from kvrelease.verify.evidence import ProbeEvidence
from kvrelease.verify.noise import noise_floor
from kvrelease.verify.peers import PEERS, PEERS_SHARE
from kvrelease.verify.repeats import LEGS_THAT_CLEAR, MAX_REPEATED, REPEATS
from tests.verify.builders import clean_probes, leg, probe, repeats, stale_probe
from tests.verify.simulation import answer_all


def asked(probes: Sequence[ProbeEvidence], answer: Callable[[Ask], Leg]) -> list[Ask]:
    """Everything that is asked where each repeat answers so."""
    found: list[Ask] = []

    def kept(ask: Ask) -> Leg:
        found.append(ask)
        return answer(ask)

    answer_all(repeats_to_ask(probes, floor=noise_floor(probes)), kept)
    return found


def still_stale(ask: Ask) -> Leg:
    return leg(0.6) if ask.kind is LegKind.PRODUCTION else leg()


def suspect(name: str, shift: float, *, prefix: str) -> ProbeEvidence:
    return probe(name, production=[leg(shift)], prefix=prefix)


def test_nobody_is_asked_again_where_nobody_is_suspect() -> None:
    assert asked(clean_probes(), still_stale) == []


def test_both_kinds_take_turns_for_as_many_legs_as_the_test_needs() -> None:
    found = asked([suspect("s", 0.6, prefix="desk"), *clean_probes()], still_stale)
    turns = [{found[at].kind, found[at + 1].kind} for at in range(0, len(found), 2)]
    assert turns == [set(LegKind)] * REPEATS


def test_the_worst_of_each_prefix_comes_first_and_no_second_one_after_a_proof() -> None:
    probes = [
        suspect("mild", 0.5, prefix="one"),
        suspect("worst", 0.9, prefix="one"),
        suspect("other", 0.6, prefix="two"),
        *clean_probes(),
    ]
    assert list(dict.fromkeys(ask.probe for ask in asked(probes, still_stale))) == ["worst", "other"]


def test_a_suspect_whose_difference_is_gone_is_let_go_half_way() -> None:
    found = asked([suspect("s", 0.6, prefix="desk"), *clean_probes()], lambda _: leg())
    assert len(found) == 2 * LEGS_THAT_CLEAR


def asked_at_once(
    wanted: ProbeEvidence, *before: ProbeEvidence, answer: Callable[[Ask], Leg] = still_stale
) -> list[Ask]:
    """What is asked of a probe as soon as it has its clean twin."""
    found: list[Ask] = []

    def kept(ask: Ask) -> Leg:
        found.append(ask)
        return answer(ask)

    among = (*before, wanted)
    answer_all(repeats_at_once(wanted, among=among, floor=lambda: noise_floor(among)), kept)
    return found


def test_a_large_difference_is_asked_again_at_once_and_a_small_one_waits() -> None:
    assert len(asked_at_once(suspect("s", 0.6, prefix="desk"))) == 2 * REPEATS
    assert asked_at_once(suspect("s", SMALL, prefix="desk")) == []
    assert asked_at_once(probe("clean", prefix="desk")) == []


def test_at_once_one_of_each_prefix_is_asked_after_a_proof_and_another_one_without() -> None:
    proven = stale_probe("proven", prefix="one")
    assert asked_at_once(suspect("s", 0.9, prefix="one"), proven) == []
    assert asked_at_once(suspect("s", 0.9, prefix="two"), proven)
    let_go = replace(proven, repeats=repeats(*[leg()] * REPEATS))
    assert asked_at_once(suspect("s", 0.9, prefix="one"), let_go)


def test_no_more_are_asked_again_than_share_the_error_rate_whenever_they_are_asked() -> None:
    let_go = [
        replace(stale_probe(f"s{place}", prefix=f"d{place}"), repeats=repeats(*[leg()] * REPEATS))
        for place in range(MAX_REPEATED)
    ]
    last = suspect("last", 0.9, prefix="other")
    assert asked_at_once(last, *let_go[1:])
    assert asked_at_once(last, *let_go) == []
    assert asked([last, *let_go], still_stale) == []
    assert {ask.probe for ask in asked([last, *let_go[1:]], still_stale)} == {"last"}


SMALL = 0.08  # 0.04 nats: less than other company makes


def companies(
    probes: Sequence[ProbeEvidence], *, peer: Callable[[str], Leg] = lambda _: leg(), capacity_tokens: int | None = None
) -> list[tuple[str, ...]]:
    """Every company that is written where each peer reads so."""
    found: list[tuple[str, ...]] = []

    def kept(company: tuple[str, ...]) -> list[Leg]:
        found.append(company)
        return [peer(name) for name in company]

    wanted = peers_to_write(probes, floor=noise_floor(probes), capacity_tokens=capacity_tokens)
    answer_all(wanted, kept)
    return found


def small_under(prefixes: int) -> list[ProbeEvidence]:
    return [stale_probe(f"p{number}", SMALL, prefix=f"d{number}") for number in range(prefixes)]


def test_peers_are_written_in_companies_of_many_sizes_until_each_prefix_has_its_number() -> None:
    found = companies(small_under(3))
    counts = [sum(company.count(f"p{number}") for company in found) for number in range(3)]
    assert min(counts) >= PEERS[3] > max(counts) - 2
    assert len({len(company) for company in found}) > 3
    assert min(len(company) for company in found) >= 2, "alone is no company"


def test_no_peers_where_nothing_small_reproduces_or_something_large_is_proven() -> None:
    assert companies(clean_probes()) == []
    assert companies([*small_under(3), stale_probe("large", prefix="d9")]) == []
    assert companies([probe(f"p{number}", production=[leg(SMALL)], prefix=f"d{number}") for number in range(3)]) == []


def test_no_peers_where_they_could_prove_nothing() -> None:
    assert companies(small_under(1)) == []
    three_of_eight = [*small_under(3), *(probe(f"c{number}", prefix=f"e{number}") for number in range(5))]
    assert companies(three_of_eight) == []


def test_writing_ends_as_soon_as_one_entry_lies_as_far_and_the_rest_prove_nothing() -> None:
    found = companies(small_under(3), peer=lambda name: leg(SMALL if name == "p1" else 0.0))
    assert len(found) == 1


def test_peers_leave_users_their_part_of_the_cache() -> None:
    tokens = 3 * PEERS[3] * 200
    assert companies(small_under(3), capacity_tokens=round(tokens / PEERS_SHARE))
    assert companies(small_under(3), capacity_tokens=round(tokens / PEERS_SHARE) - 1) == []
