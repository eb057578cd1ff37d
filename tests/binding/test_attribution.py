"""Whose a hit is, where something speaks against saying so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvrelease.binding.attribution import Attribution
from kvrelease.binding.hits import Unattributed
from kvrelease.binding.sisters import Sisters
from kvrelease.engines.base import Capabilities, EngineIdentity, EngineKind, Request, Route
from kvrelease.ledger.store import IN_MEMORY, Ledger
from tests.builders import observation

TOKENS = tuple(range(64))
REQUEST = Request(route=Route.COMPLETIONS, body={"prompt": "a"})


@pytest.fixture
def attribution() -> Iterator[Attribution]:
    who = EngineIdentity(
        kind=EngineKind.VLLM,
        url="http://a",
        version=None,
        model="m",
        context_tokens=None,
        process="one",
        capabilities=Capabilities(block_tokens=16),
    )
    with Ledger(IN_MEMORY) as ledger:
        yield Attribution(who, namespace="n", memory=ledger, sisters=Sisters(namespace="n", memory=ledger))


def hit(attribution: Attribution, *, prompt_tokens: int = len(TOKENS)) -> tuple[int | None, Unattributed | None]:
    told = observation(prompt_tokens=prompt_tokens, cached_tokens=32)
    return attribution.foreign(REQUEST, told, tokens=TOKENS, cached=32)


def test_a_hit_that_nothing_explains_is_foreign(attribution: Attribution) -> None:
    assert hit(attribution) == (32, None)


def test_by_other_ids_a_hit_is_foreign_only_where_nothing_of_ours_was_sent_before(attribution: Attribution) -> None:
    assert hit(attribution, prompt_tokens=70) == (32, None)
    assert hit(attribution, prompt_tokens=70) == (None, Unattributed.OTHER_IDS)


def test_a_hit_of_a_rank_in_doubt_is_nobodys_though_nothing_of_ours_was_sent_before(attribution: Attribution) -> None:
    attribution.doubt_rank()
    assert hit(attribution) == (None, Unattributed.RANK)
