"""Scenarios on scripted servers over sockets: what vLLM and llama.cpp do that the in-process engine does not."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from kvrelease.binding.deployment import Deployment
from kvrelease.engines.base import EngineKind
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.checks import CheckId
from kvrelease.verify.exposure import SpaceVerdict
from kvrelease.verify.judge import VerifyReport
from tests.engines.never_hits import NeverHits
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import serve_users, verified, warmed
from tests.verify.scenarios.servers import DESK, LIMITS, NAMESPACE, SALTED, UNSALTED, with_body
from tests.verify.scenarios.verdicts import assert_fails, assert_open, assert_passes, says


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(IN_MEMORY) as store:
        yield store


def test_an_in_place_reload() -> None:
    """https://github.com/vllm-project/vllm/issues/9744: blocks are keyed by tokens, and loading weights clears nothing.

    https://github.com/vllm-project/vllm/pull/46125: a reset is left to the user. What `/v1/models` and a weight version
    say is a hint: https://github.com/vllm-project/vime/pull/45, https://github.com/lightseekorg/tokenspeed/pull/672.
    """
    with ScriptedEngine(release="old") as engine:
        serve_users(engine, prompt_set=DESK)
        engine.reload("new")
        stale = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert_fails(stale, CheckId.CONSISTENCY)
        assert "prefixes: returns" in says(stale, CheckId.CONSISTENCY)
        # The label keeps the old path after a reload; it is printed, and decides nothing.
        assert "labels (hints only): owned_by=vllm, root=/models/old" in says(stale, CheckId.IDENTITY)
    with ScriptedEngine(release="old") as engine:
        serve_users(engine, prompt_set=DESK)
        engine.reload("new", reset=True)
        assert_passes(verified(engine, deployed=UNSALTED, limits=LIMITS))


def test_a_slot_restore() -> None:
    def restored(*, saved_by: str) -> ScriptedEngine:
        files: dict[str, tuple[list[int], list[str]]] = {}
        with ScriptedEngine(EngineKind.LLAMACPP, release=saved_by, slot_files=files) as before:
            serve_users(before, prompt_set=DESK)
            httpx.post(f"{before.url}/slots/0?action=save", json={"filename": "s"})
        return ScriptedEngine(EngineKind.LLAMACPP, release="new", slot_files=files)

    with restored(saved_by="old") as engine:
        httpx.post(f"{engine.url}/slots/0?action=restore", json={"filename": "s"})
        stale = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert_fails(stale, CheckId.FIRST_TOUCH, CheckId.CONSISTENCY)
        assert "in a process that no request had reached before" in says(stale, CheckId.FIRST_TOUCH)
        assert "llamacpp has no salt: within one process its keys are tokens only" in says(stale, CheckId.BINDING)
    with restored(saved_by="new") as engine:
        assert_passes(verified(engine, deployed=UNSALTED, limits=LIMITS))


def test_an_adapter_replaced_under_the_same_name() -> None:
    """vLLM's keys have the adapter's name: another content under it reads what the one before left.

    https://github.com/vllm-project/vllm/issues/30931, https://github.com/vllm-project/vllm/pull/27211: another
    `lora_int_id` and other weights, and one key.
    """

    def asked(model: str) -> VerifyReport:
        return verified(engine, deployed=UNSALTED, limits=LIMITS, model=model)

    with ScriptedEngine(release="new", loras={"support": "support-1"}) as engine:
        assert_passes(asked("support"))  # by a ledger that is thrown away: these are its users
        engine.loras["support"] = "support-2"
        stale = asked("support")
        assert_fails(stale, CheckId.CONSISTENCY)
        assert "answer from KV that this release did not make" in says(stale, CheckId.CONSISTENCY)
        engine.loras["support-2"] = engine.loras.pop("support")
        assert_passes(asked("support-2"))


def test_a_salt_that_is_misspelt() -> None:
    """vLLM accepts unknown fields, so that whoever sends `cache_slat` is told nothing, and bound to nothing."""
    misspelt = with_body(UNSALTED, cache_slat=NAMESPACE)
    with ScriptedEngine(release="old") as engine:
        serve_users(engine, prompt_set=DESK)
        engine.reload("new")
        stale = verified(engine, deployed=misspelt, limits=LIMITS)
        assert_fails(stale, CheckId.BINDING, CheckId.CONSISTENCY)
        found = says(stale, CheckId.BINDING)
        assert f"production is said to use {NAMESPACE}" in found
        assert "production's body has it as cache_slat, and no engine reads a key space from there" in found
        assert "cache_salt" in found
        assert_passes(verified(engine, deployed=SALTED, limits=LIMITS))
    with ScriptedEngine(release="new") as engine:
        clean = verified(engine, deployed=misspelt, limits=LIMITS)
        assert_fails(clean, CheckId.BINDING)
        assert says(clean, CheckId.CONSISTENCY).startswith("pass")


def test_clients_that_are_half_bound(ledger: Ledger) -> None:
    """Half of the clients send the namespace, half of them nothing: both halves are asked for, by `--namespace`."""
    with ScriptedEngine(release="old") as engine:
        serve_users(engine, prompt_set=DESK)
        engine.reload("new")
        warmed(engine, deployed=SALTED, ledger=ledger)
        bound = verified(engine, deployed=SALTED, limits=LIMITS, ledger=ledger)
        assert_passes(bound)
        assert "unsalted requests would meet a stale prefix" in bound.reason
        assert "Clients that still send there get another release's KV" in says(bound, CheckId.EXPOSURE)
        unbound = verified(engine, deployed=UNSALTED, limits=LIMITS, ledger=ledger)
        assert_fails(unbound, CheckId.CONSISTENCY)
        assert "the release's own namespace, which would be clean" in says(unbound, CheckId.EXPOSURE)
    with ScriptedEngine(release="new") as engine:
        clean = verified(engine, deployed=SALTED, limits=LIMITS)
        assert_passes(clean)
        assert "would meet" not in clean.reason
        assert {one.verdict for one in clean.exposure} == {SpaceVerdict.COLD}


def test_a_sliding_window() -> None:
    """What lies behind the window is cached and not read any more: stale entries show where they lie in it."""
    with ScriptedEngine(release="old", window_tokens=30) as engine:
        serve_users(engine, prompt_set=DESK)
        engine.reload("new")
        stale = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert_fails(stale, CheckId.CONSISTENCY)
    with ScriptedEngine(release="new", window_tokens=30) as engine:
        assert_passes(verified(engine, deployed=UNSALTED, limits=LIMITS))


def test_a_sliding_window_whose_server_discards_prompts() -> None:
    """llama.cpp without --swa-full computes every prompt again: nothing stale can be hit, and nothing can be proved."""
    with NeverHits(EngineKind.LLAMACPP, release="new") as engine:
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert_open(report, CheckId.CONTROL)
        assert "did not hit. Likely causes: " in says(report, CheckId.CONTROL)
        assert "--swa-full" in says(report, CheckId.CONTROL)


@pytest.mark.parametrize("salted", [SALTED, with_body(SALTED, cache_slat=NAMESPACE)], ids=["salted", "and misspelt"])
def test_a_salted_deployment_whose_cache_cannot_hit_is_not_said_to_be_unbound(salted: Deployment) -> None:
    """vLLM with prefix caching off, or a server that discards: no nonce can hit, whosever it is."""
    with NeverHits(release="new") as engine:
        assert_open(verified(engine, deployed=salted, limits=LIMITS), CheckId.CONTROL, CheckId.BINDING)
