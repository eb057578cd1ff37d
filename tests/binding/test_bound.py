"""Whether an engine is bound: what each answer means for the verdict."""

from __future__ import annotations

import itertools

import pytest

from kvrelease.artifacts import Verdict
from kvrelease.binding.bound import (
    Answer,
    BoundFinding,
    BoundId,
    judged,
    key_space_finding,
    label_finding,
    store_finding,
)
from tests.builders import NAMESPACE, OLD_KV


def finding(which: BoundId, answer: Answer, *, decides: bool = True) -> BoundFinding:
    return BoundFinding(id=which, answer=answer, detail="", decides=decides)


PROVEN = finding(BoundId.KEY_SPACE, Answer.YES)


def test_a_proven_key_space_passes_and_what_no_route_tells_is_named() -> None:
    verdict, reason = judged([PROVEN, finding(BoundId.HASH_ROOT, Answer.UNKNOWN, decides=False)])
    assert verdict is Verdict.PASS
    assert "not told by this engine: hash-root" in reason


@pytest.mark.parametrize("which", list(BoundId))
def test_one_no_fails_whatever_else_is_proven(which: BoundId) -> None:
    others = [finding(other, Answer.YES) for other in BoundId if other is not which]
    verdict, reason = judged([finding(which, Answer.NO), *others])
    assert (verdict, which.value in reason) == (Verdict.FAIL, True)


@pytest.mark.parametrize("which", set(BoundId) - {BoundId.KEY_SPACE})
def test_unknown_is_never_a_pass_where_it_could_have_been_told(which: BoundId) -> None:
    verdict, reason = judged([PROVEN, finding(which, Answer.UNKNOWN)])
    assert verdict is Verdict.INCONCLUSIVE
    assert which.value in reason


def test_labels_alone_prove_nothing() -> None:
    claims = [finding(which, Answer.YES) for which in BoundId if which is not BoundId.KEY_SPACE]
    assert judged(claims)[0] is Verdict.INCONCLUSIVE
    assert judged([])[0] is Verdict.INCONCLUSIVE
    assert judged([finding(BoundId.KEY_SPACE, Answer.UNKNOWN, decides=False), *claims])[0] is Verdict.INCONCLUSIVE


def test_a_key_space_is_proven_by_miss_hit_and_miss_and_by_nothing_else() -> None:
    answers = {
        seen: key_space_finding(first=seen[0], again=seen[1], fresh=seen[2], shown="").answer
        for seen in itertools.product((False, True, None), repeat=3)
    }
    assert [seen for seen, answer in answers.items() if answer is Answer.YES] == [
        (False, True, False),
        (None, True, False),
    ]
    assert {seen for seen, answer in answers.items() if answer is Answer.NO} == {
        (first, again, True) for first in (False, None) for again in (False, True, None)
    }


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        (NAMESPACE, Answer.YES),
        (f"{OLD_KV}-undeclared-e0", Answer.NO),
        ("vllm-0.32.0-00000000", Answer.NO),
        ("", Answer.NO),
        (None, Answer.UNKNOWN),
    ],
)
def test_a_label_is_the_namespace_or_not(told: str | None, answer: Answer) -> None:
    assert label_finding(told, namespace=NAMESPACE, label="system_fingerprint").answer is answer


@pytest.mark.parametrize(
    ("places", "answer"),
    [
        ([f"/kv/{NAMESPACE}"], Answer.YES),
        ([f"/kv/{NAMESPACE}/", NAMESPACE], Answer.YES),
        ([f"/kv/{NAMESPACE}", "/kv/shared"], Answer.NO),
        ([f"/kv/{NAMESPACE}0"], Answer.NO),
        ([], Answer.UNKNOWN),
    ],
)
def test_every_place_of_a_connector_has_to_be_the_namespaces_own(places: list[str], answer: Answer) -> None:
    assert store_finding(connector="ExampleConnector", places=places, names=(NAMESPACE,)).answer is answer
