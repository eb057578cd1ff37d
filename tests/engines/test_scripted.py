"""What the other tests rely on in the scripted engine."""

from __future__ import annotations

import httpx
import pytest

from kvrelease.engines.base import EngineKind, Observation
from tests.engines.clients import ask, chat
from tests.engines.scripted import ScriptedEngine

KINDS = (EngineKind.VLLM, EngineKind.LLAMACPP, EngineKind.OPENAI)


def distance(left: Observation, right: Observation) -> float:
    """Mean absolute difference over the first token's top candidates that both list."""
    first = {item.token: item.logprob for item in left.tokens[0].top}
    second = {item.token: item.logprob for item in right.tokens[0].top}
    shared = first.keys() & second.keys()
    return sum(abs(first[token] - second[token]) for token in shared) / len(shared)


def answer(engine: ScriptedEngine, *, bypasses: bool = False, salt: str | None = None) -> Observation:
    (found,) = ask(engine.url, chat(bypasses=bypasses, salt=salt))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_stale_is_neither_clean_nor_old_and_lies_between(kind: EngineKind) -> None:
    with ScriptedEngine(kind, release="old") as engine, ScriptedEngine(kind, release="new") as clean:
        old = answer(engine)
        engine.reload("new")
        stale, new = answer(engine), answer(clean)
        assert stale.cached_tokens
        assert new.cached_tokens == 0
        assert 0.05 < distance(stale, new) < distance(old, new)
        assert 0.02 < distance(stale, old) < distance(old, new)


@pytest.mark.parametrize("kind", KINDS)
def test_a_clean_hit_is_exactly_a_clean_miss(kind: EngineKind) -> None:
    with ScriptedEngine(kind) as engine:
        cold, warm = answer(engine), answer(engine)
        assert warm.cached_tokens
        assert cold.tokens == warm.tokens


def test_a_reset_with_the_reload_is_clean() -> None:
    with ScriptedEngine(release="old") as engine, ScriptedEngine(release="new") as clean:
        answer(engine)
        engine.reload("new", reset=True)
        assert answer(engine).tokens == answer(clean).tokens


def test_a_bypass_is_clean_and_heals_slots_but_not_blocks() -> None:
    for kind, heals in ((EngineKind.VLLM, False), (EngineKind.LLAMACPP, True)):
        with ScriptedEngine(kind, release="old") as engine, ScriptedEngine(kind, release="new") as clean:
            answer(engine)
            engine.reload("new")
            reference, after, wanted = answer(engine, bypasses=True), answer(engine), answer(clean)
            assert reference.tokens == wanted.tokens
            assert (after.tokens == wanted.tokens) is heals


def test_a_fresh_salt_is_clean_while_users_are_not() -> None:
    with ScriptedEngine(release="old") as engine, ScriptedEngine(release="new") as clean:
        answer(engine)
        engine.reload("new")
        wanted = answer(clean)
        assert answer(engine, salt="fresh").tokens == wanted.tokens
        assert answer(engine).tokens != wanted.tokens
        engine.ignores_salt = True
        assert answer(engine, salt="fresh").tokens != wanted.tokens


def test_a_shared_store_survives_a_restart_and_ignores_salts() -> None:
    store: dict[str, str] = {}
    with ScriptedEngine(release="old", store=store) as engine, ScriptedEngine(release="new") as clean:
        answer(engine)
        engine.restart("new")
        assert answer(engine, salt="fresh").tokens != answer(clean).tokens


def test_a_slot_file_is_restored_into_any_release() -> None:
    with ScriptedEngine(EngineKind.LLAMACPP, release="old") as engine:
        old = answer(engine)
        post(engine, "/slots/0?action=save", {"filename": "slot.bin"})
        engine.restart("new")
        post(engine, "/slots/0?action=restore", {"filename": "slot.bin"})
        stale = answer(engine)
        assert stale.cached_tokens == (stale.prompt_tokens or 0) - 1
        assert stale.tokens != old.tokens


def test_weights_are_reloaded_by_the_route_that_vllm_has() -> None:
    with ScriptedEngine(release="old") as engine:
        answer(engine)
        post(engine, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/models/new"}})
        assert engine.release == "new"
        assert answer(engine).cached_tokens


def post(engine: ScriptedEngine, path: str, body: dict[str, object]) -> None:
    httpx.post(engine.url + path, json=body, trust_env=False).raise_for_status()


def test_capacity_evicts_the_least_recently_used() -> None:
    with ScriptedEngine(capacity_blocks=6) as engine:
        found = ask(engine.url, chat("a " * 60), chat("b " * 60), chat("a " * 60))
        assert [one.cached_tokens for one in found] == [0, 0, 0]


def test_noise_differs_from_run_to_run_and_is_small() -> None:
    with ScriptedEngine(noise=True) as engine:
        first, second = answer(engine), answer(engine)
        assert 0 < distance(first, second) < 0.04


def test_releases_without_distance_cannot_be_told_apart() -> None:
    with ScriptedEngine(release="old", strength_nats=0.0) as engine:
        old = answer(engine)
        engine.reload("new", reset=True)
        assert answer(engine).tokens == old.tokens
