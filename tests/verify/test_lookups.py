"""Counters around first hits: which tier brought them, as long as the server tells tiers apart."""

from __future__ import annotations

from kvrelease.engines.base import EngineClient, EngineKind
from kvrelease.verify.evidence import Limits
from kvrelease.verify.lookups import Lookups
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import deployment, observed, prompts, serve_users, with_clients

SMALL = prompts(per_desk=2)
LIMITS = Limits(stale_below=0.4)
DEPLOYED = deployment(prompt_set=SMALL)


def test_what_the_first_request_of_each_probe_found_in_a_store_is_told_by_the_counters_around_it() -> None:
    with ScriptedEngine(release="new", store={}) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.restart()
        (replica,) = observed(engine, deployed=DEPLOYED, limits=LIMITS).evidence.replicas
    assert [one.probe for one in replica.lookups] == [probe.id for probe in replica.probes]
    for lookup, probe in zip(replica.lookups, replica.probes, strict=True):
        leg = probe.production[0]
        assert lookup.counted.queried_tokens == leg.prompt_tokens
        assert lookup.counted.all_cached_tokens == leg.cached_tokens
    # What a later probe shares with an earlier one is in memory by then.
    assert replica.lookups[0].counted.external_cached_tokens == replica.probes[0].production[0].cached_tokens


def test_a_server_whose_counters_tell_one_tier_is_asked_for_them_once() -> None:
    async def nothing(_probe: str) -> None:
        """Nothing is sent: what counts is who else is asked."""

    async def main(clients: list[EngineClient]) -> Lookups:
        lookups = Lookups(clients[0])
        for probe in ("one", "two", "three"):
            await lookups.around(probe, nothing)
        return lookups

    with ScriptedEngine(EngineKind.LLAMACPP, release="new") as engine:
        lookups = with_clients([engine], main)
        asked = [one.path for one in engine.requests]
    assert lookups.found == []
    assert asked == ["/metrics"]
