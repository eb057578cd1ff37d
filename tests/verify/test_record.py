"""Records: production legs that fill the cache as users do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvrelease import artifacts
from kvrelease.errors import Refused
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.record import Record
from tests.engines.scripted import Break, Generation, ScriptedEngine
from tests.verify.deployments import deployment, prompts, recorded, serve_users

SMALL = deployment(prompt_set=prompts(per_desk=2))


def test_every_prompt_is_observed_once_as_production_and_one_at_a_time() -> None:
    with ScriptedEngine(release="new") as engine:
        found = recorded(engine, deployed=SMALL)
        assert [one.id for one in found.observations] == [prompt.id for prompt in SMALL.prompt_set]
        assert len(engine.generations()) == len(SMALL.prompt_set)
        assert found.foreign_tokens == 0
        assert (found.key_space, found.namespace, found.prompt_set) == (None, SMALL.namespace, SMALL.prompt_set.digest)
        assert all(len(one.leg.observation.tokens) == 8 for one in found.observations)
        assert all(seen.body["temperature"] == 0 for seen in engine.generations())
        read_back = artifacts.from_json(artifacts.to_json(found).encode(), Record, source="memory")
        assert read_back == found


def test_hits_that_the_release_did_not_compute_are_told() -> None:
    with ScriptedEngine(release="old") as engine:
        serve_users(engine, prompt_set=SMALL.prompt_set)
        engine.reload("new")
        assert recorded(engine, deployed=SMALL).foreign_tokens


def test_foreign_hits_that_nobody_can_tell_are_none_and_not_zero() -> None:
    with ScriptedEngine(release="new", reports_cached_tokens=False, has_metrics=False) as engine:
        assert recorded(engine, deployed=SMALL).foreign_tokens is None


class Dying(ScriptedEngine):
    """Answers so many requests, and refuses every one after them."""

    def __init__(self, *, after: int) -> None:
        super().__init__(release="new")
        self.after = after

    def generate(self, prompt: Sequence[int], body: dict[str, Any]) -> Generation:
        self.after -= 1
        if self.after == 0:
            self.break_with(Break.FORBIDDEN)
        return super().generate(prompt, body)


def test_an_engine_that_never_answers_is_an_error_and_one_that_dies_midway_a_fault() -> None:
    with ScriptedEngine(release="new") as engine:
        engine.break_with(Break.FORBIDDEN)
        with pytest.raises(Refused):
            recorded(engine, deployed=SMALL)
    with Dying(after=2) as engine:
        found = recorded(engine, deployed=SMALL)
    assert len(found.observations) == 2
    assert not found.interrupted
    (fault,) = found.faults
    assert found.ended_early == fault.message


def test_a_record_is_an_event_of_the_ledger() -> None:
    with Ledger(IN_MEMORY) as ledger, ScriptedEngine(release="new") as engine:
        recorded(engine, deployed=SMALL, ledger=ledger)
        event = ledger.events()[0]
        assert (event.command, event.namespace, event.verdict) == ("record", SMALL.namespace, None)
