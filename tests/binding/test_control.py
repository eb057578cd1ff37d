"""A prompt that nobody can have cached, long enough to prove a hit, on engines of every granularity."""

from __future__ import annotations

import pytest

from kvrelease.binding.control import nonce_request
from kvrelease.binding.observe import Leg, Observer
from kvrelease.binding.salts import probe_salt
from kvrelease.config import Production
from kvrelease.engines.base import EngineKind, Request, Route
from kvrelease.errors import PromptTooLong
from tests.binding.test_observe import with_observer
from tests.engines.scripted import ScriptedEngine


async def nonce(observer: Observer) -> Request:
    return await nonce_request(
        observer, route=Route.CHAT, production=Production(body={"user": "u-5"}), model="scripted", salt=None
    )


async def sent_twice(observer: Observer) -> tuple[Leg, Leg]:
    request = await nonce(observer)
    return await observer.observe(request), await observer.observe(request)


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not-told"])
@pytest.mark.parametrize("block_tokens", [16, 32, 64, 128])
def test_an_engine_that_gives_up_a_block_of_every_hit_proves_that_it_can_hit(block_tokens: int, is_told: bool) -> None:
    with ScriptedEngine(block_tokens=block_tokens, gives_up_a_block=True, has_dev_routes=is_told) as server:
        first, second = with_observer(server, sent_twice)
    assert (first.hits_mostly, second.hits_mostly) == (False, True)


def test_what_every_prompt_begins_with_is_no_hit_of_the_nonce() -> None:
    tools = [{"type": "function", "function": {"name": "find", "description": "an order " * 200}}]

    async def after_a_prompt(observer: Observer) -> tuple[Leg, Leg]:
        production = Production(body={"tools": tools})
        nonces = [
            await nonce_request(observer, route=Route.CHAT, production=production, model="scripted", salt=None)
            for _ in range(2)
        ]
        await observer.observe(nonces[0])
        return await observer.observe(nonces[1]), await observer.observe(nonces[1])

    with ScriptedEngine(context_tokens=2048) as server:
        first, second = with_observer(server, after_a_prompt)
    assert first.cached_tokens is not None
    assert first.cached_tokens >= 400
    assert (first.hits_mostly, second.hits_mostly) == (False, True)


@pytest.mark.parametrize("block_tokens", [1, 16, 128])
def test_two_blocks_prove_a_hit(block_tokens: int) -> None:
    with ScriptedEngine(block_tokens=block_tokens) as server:
        first, second = with_observer(server, sent_twice)
    assert first.cached_tokens == 0
    assert second.cached_tokens is not None
    assert second.cached_tokens >= max(2 * block_tokens, 33)
    assert second.hits_mostly
    assert second.prompt_tokens is not None
    assert second.prompt_tokens <= max(64, 3 * block_tokens + 1) + 8


def test_an_engine_without_a_tokenizer_gets_one_word_a_token() -> None:
    with ScriptedEngine(kind=EngineKind.OPENAI) as server:
        first, second = with_observer(server, sent_twice)
    assert first.prompt_tokens is not None
    assert first.prompt_tokens >= 64
    assert second.hits_mostly


def test_two_nonces_share_nothing_and_carry_productions_fields() -> None:
    async def two(observer: Observer) -> tuple[Request, Request]:
        return await nonce(observer), await nonce(observer)

    with ScriptedEngine() as server:
        one, other = with_observer(server, two)
    assert one.body["messages"] != other.body["messages"]
    assert one.body["user"] == other.body["user"] == "u-5"


def test_a_small_context_gets_a_shorter_nonce() -> None:
    with ScriptedEngine(block_tokens=16, context_tokens=56) as server:
        _, second = with_observer(server, sent_twice)
    assert second.cached_tokens == 32


@pytest.mark.parametrize("context_tokens", [41, 57, 200, 500])
def test_a_nonce_leaves_room_for_the_answer_whatever_the_context(context_tokens: int) -> None:
    with ScriptedEngine(block_tokens=16, context_tokens=context_tokens) as server:
        _, second = with_observer(server, sent_twice)
    assert second.hits_mostly
    assert second.prompt_tokens is not None
    assert 33 <= second.prompt_tokens <= context_tokens - 8


def test_where_what_comes_first_leaves_no_room_for_a_word_it_is_told_as_such() -> None:
    async def behind_tools(observer: Observer) -> Request:
        production = Production(body={"tools": [{"name": "an order " * 200}]})
        return await nonce_request(observer, route=Route.CHAT, production=production, model="scripted", salt=None)

    with (
        ScriptedEngine(block_tokens=16, context_tokens=300) as server,
        pytest.raises(PromptTooLong, match=r"it takes 40\d tokens, which do not fit the context of 300"),
    ):
        with_observer(server, behind_tools)


@pytest.mark.parametrize("block_tokens", [32, 128])
def test_a_context_of_less_than_two_blocks_is_told_as_such(block_tokens: int) -> None:
    with (
        ScriptedEngine(block_tokens=block_tokens, context_tokens=2 * block_tokens) as server,
        pytest.raises(PromptTooLong, match=r"to prove that the cache of .* can hit") as caught,
    ):
        with_observer(server, nonce)
    assert "serve a longer context" in (caught.value.hint or "")
    assert not server.generations()


def test_a_fresh_salt_fits_every_engine_and_never_repeats() -> None:
    salts = {probe_salt("reference") for _ in range(50)}
    assert len(salts) == 50
    assert all(len(salt) <= 64 and set(salt) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for salt in salts)
