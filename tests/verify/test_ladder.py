"""The ways to isolate reference legs: when one is proved cold, what is evidence, and what the report says of each."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from kvrelease.binding.hits import Unattributed
from kvrelease.binding.observe import Leg
from kvrelease.binding.salts import combined_salt, probe_salt
from kvrelease.engines.base import Counters
from kvrelease.verify.checks import CheckVerdict
from kvrelease.verify.evidence import FlushEvidence, Isolation, Rung, RungOutcome
from kvrelease.verify.isolation import check_bypass, check_flush
from kvrelease.verify.ladder import Leaks, hidden_hits, why_not_cold
from tests.verify.builders import clean_probes, leg, replica


@pytest.mark.parametrize(
    ("seen", "bypasses", "hidden", "why"),
    [
        (leg(cached=0), False, 0, None),
        (leg(cached=64, foreign=0), False, 0, None),  # what this run computed there
        (leg(cached=64, foreign=0), True, 0, "so the bypass is ignored"),  # whosever they are
        (leg(cached=64, foreign=64), False, 0, "a layer ignores the salt"),
        (leg(cached=64, foreign=None), False, 0, "nobody can tell whose they are"),
        (leg(cached=None), False, 0, "nobody witnessed"),
        (leg(cached=0), False, 80, "counters tell 80 more"),
    ],
)
def test_a_reference_leg_is_proved_cold_or_it_is_said_why_not(
    seen: Leg, bypasses: bool, hidden: int, why: str | None
) -> None:
    found = why_not_cold(seen, way=Isolation.FRESH_SALT, bypasses=bypasses, hidden=hidden)
    assert found is None if why is None else found is not None and why in found


def in_space(salt: str | None, *, cached: int, foreign: int | None, lost: int = 0) -> Leg:
    seen = leg(cached=cached, foreign=foreign, salt=salt)
    return replace(seen, observation=replace(seen.observation, lost=lost), doubt=Unattributed.LOST if lost else None)


def test_a_hit_in_a_fresh_key_space_is_kept_as_evidence_and_no_other() -> None:
    salt, other = probe_salt("reference"), combined_salt(probe_salt("company"), "tenant")
    leaks = Leaks()
    leaks.look(in_space(None, cached=64, foreign=64), asked="p0")  # production's own
    leaks.look(in_space(salt, cached=0, foreign=0), asked="p1")
    leaks.look(in_space(salt, cached=64, foreign=0), asked="p1")  # what the first one left
    leaks.look(in_space(other, cached=64, foreign=None), asked="p2")  # ids are not told, and nobody was there before
    leaks.look(in_space(other, cached=64, foreign=None), asked="p3")  # p2 was
    leaks.look(in_space(probe_salt("company"), cached=64, foreign=None, lost=1), asked="p4")  # its own, perhaps
    leaks.look(in_space(salt, cached=80, foreign=16), asked="p5")
    assert [(one.asked, one.cached_tokens) for one in leaks.found] == [("p2", 64), ("p5", 16)]


RUNGS = (
    Rung(isolation=Isolation.FRESH_SALT, outcome=RungOutcome.GIVEN_UP, detail="3 not proved cold, the first: p0: hit"),
    Rung(isolation=Isolation.BYPASS, outcome=RungOutcome.USED, proved=12, detail="each of 12 legs proved cold"),
    Rung(isolation=Isolation.REFERENCE, outcome=RungOutcome.NOT_ASKED_FOR, detail="--reference names no second engine"),
    Rung(isolation=Isolation.FLUSH, outcome=RungOutcome.NOT_ASKED_FOR, detail="--allow-flush was not given"),
)


def test_the_report_says_which_way_was_used_and_why_each_of_the_others_was_not() -> None:
    found = check_bypass(replace(replica(clean_probes(), isolation=Isolation.BYPASS), rungs=RUNGS))
    assert found.verdict is CheckVerdict.PASS
    assert found.detail == (
        "reference legs by bypass: 0 foreign tokens in 12 legs. Other ways: fresh-salt given up (3 not proved cold, "
        "the first: p0: hit); reference not asked for (--reference names no second engine); flush not asked for "
        "(--allow-flush was not given)"
    )


def test_where_no_way_is_left_the_report_says_what_could_still_be_done() -> None:
    gone = tuple(replace(rung, outcome=RungOutcome.GIVEN_UP, proved=0) for rung in RUNGS[:2])
    found = check_bypass(replace(replica(isolation=Isolation.NONE), rungs=(*gone, *RUNGS[2:])))
    assert found.verdict is CheckVerdict.INCONCLUSIVE
    assert "--reference URL, or permit to empty this engine's cache with --allow-flush" in found.detail
    lacking = replace(RUNGS[3], outcome=RungOutcome.LACKING, detail="openai has no call here that empties its cache")
    without = check_bypass(replace(replica(isolation=Isolation.NONE), rungs=(*gone, RUNGS[2], lacking)))
    assert "--allow-flush" not in without.detail


ASKED = FlushEvidence(probe="p0", cached_before=80, requests_before=30)


@pytest.mark.parametrize(
    ("flush", "says"),
    [
        (None, None),
        (ASKED, "about to be emptied"),
        (replace(ASKED, refusal="it refused"), "nothing was emptied: it refused"),
        (replace(ASKED, is_done=True, says_done=True, cached_after=0), "EMPTIED"),
        (replace(ASKED, is_done=True, says_done=True, cached_after=80), "says that it emptied its cache"),
        (replace(ASKED, is_done=True, cached_after=None), "not known how many after"),
    ],
)
def test_what_became_of_the_cache_is_told_whether_or_not_it_was_emptied(
    flush: FlushEvidence | None, says: str | None
) -> None:
    found = check_flush(msgspec.structs.replace(replica(), flush=flush))
    assert found is None if says is None else found is not None and says in found.detail


def counters(queried: float, cached: float) -> Counters:
    return Counters(queried_tokens=queried, cached_tokens=cached)


def test_counters_speak_of_one_leg_only_when_it_was_alone() -> None:
    cold = leg(cached=0)  # of 200 tokens
    assert hidden_hits(counters(0, 0), counters(200, 80), leg=cold) == 80
    assert hidden_hits(counters(0, 0), counters(200, 0), leg=cold) == 0
    assert hidden_hits(counters(0, 0), counters(400, 80), leg=cold) == 0
    assert hidden_hits(None, counters(200, 80), leg=cold) == 0
    assert hidden_hits(counters(0, 0), None, leg=cold) == 0
    assert hidden_hits(counters(0, 0), counters(200, 80), leg=leg(cached=None)) == 0
