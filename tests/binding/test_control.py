"""A prompt that nobody can have cached, long enough to prove a hit, on engines of every granularity."""

from __future__ import annotations

import pytest

from kvrelease.binding.control import nonce_request
from kvrelease.binding.observe import Leg, Observer, probe_salt
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


@pytest.mark.parametrize("block_tokens", [1, 16, 128])
def test_two_blocks_prove_a_hit(block_tokens: int) -> None:
    with ScriptedEngine(block_tokens=block_tokens) as server:
        first, second = with_observer(server, sent_twice)
    assert first.cached_tokens == 0
    assert second.cached_tokens is not None
    assert second.cached_tokens >= max(2 * block_tokens, 33)
    assert second.hits_mostly
    assert second.prompt_tokens is not None
    assert second.prompt_tokens <= max(64, 2 * block_tokens + 1) + 8


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
