"""What a run did not cover is said, whatever its verdict; what it covered is not."""

from __future__ import annotations

from msgspec.structs import replace

from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.coverage import not_covered
from kvrelease.verify.evidence import ReferencePair
from tests.verify.builders import URL, evidence, observation, replica

OLD = (ReferencePair(probe="p0", witness=observation()),)


def noted(*ids: CheckId, verdict: CheckVerdict = CheckVerdict.NOTE) -> list[Check]:
    return [Check(id=one, verdict=verdict, detail="", replica=URL) for one in ids]


def test_each_check_that_could_not_tell_is_named_with_what_it_would_take() -> None:
    seen = evidence(replace(replica(), old_pairs=OLD))
    (identity,) = not_covered(seen, noted(CheckId.IDENTITY))
    assert "--golden" in identity
    (power,) = not_covered(seen, noted(CheckId.POWER))
    assert "--old-release" in power
    assert len(not_covered(seen, noted(CheckId.RESPONSE_CACHE, CheckId.RESIDENCY))) == 2


def test_what_was_decided_either_way_is_covered() -> None:
    seen = evidence(replace(replica(), old_pairs=OLD))
    for verdict in (CheckVerdict.PASS, CheckVerdict.FAIL, CheckVerdict.INCONCLUSIVE):
        assert not_covered(seen, noted(CheckId.IDENTITY, CheckId.POWER, verdict=verdict)) == ()


def test_without_a_word_of_the_old_release_nobody_knows_whose_an_answer_is() -> None:
    (sentence,) = not_covered(evidence(), [])
    assert "--baseline" in sentence
    for witness in ({"old_pairs": OLD}, {"old_identity_pairs": OLD}):
        assert not_covered(evidence(replica(), replace(replica(), **witness)), []) == ()
