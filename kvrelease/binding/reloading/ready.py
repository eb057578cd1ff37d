"""Whether anything speaks against loading weights in place: asked of every replica before one is touched."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvrelease.binding.reloading.result import Reloading
from kvrelease.binding.runtime import require_agreement
from kvrelease.binding.unready import Unready, require_one_ready
from kvrelease.engines.base import EngineClient, EngineIdentity
from kvrelease.engines.gate import HELD, GateState
from kvrelease.engines.vllm import VllmClient
from kvrelease.errors import Refused, UsageError


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A replica of which nothing speaks against reloading it."""

    engine: VllmClient
    identity: EngineIdentity
    gate: GateState


def all_ready(engines: Sequence[EngineClient | Unready]) -> tuple[EngineClient, ...]:
    """The engines, if every one could be opened.

    Raises:
        KvreleaseError: why one could not.
    """
    ready, unready = require_one_ready(engines)
    if unready:
        raise unready[0].error
    return ready


async def ready(engine: EngineClient, *, reloading: Reloading, token: str) -> Ready:
    """One replica, asked and not changed.

    Raises:
        UsageError: something speaks against reloading it in place.
        ServiceError: it did not answer properly, or somebody else holds its gate.
    """
    identity = await engine.identify()
    if not isinstance(engine, VllmClient):
        raise UsageError(
            f"{identity.shown} is {identity.kind}, which is not reloaded in place: only vLLM's way is known",
            hint="restart it with the new release",
        )
    async with engine.gate(token=token) as gate:
        state = await gate.state()
    if not identity.capabilities.has_flush:
        raise UsageError(
            f"{identity.shown} does not run in development mode, which has the route that loads weights in place",
            hint="start vLLM with VLLM_SERVER_DEV_MODE=1, or restart it with the new release",
        )
    require_agreement(reloading.runtime, told=identity.runtime, url=identity.url)
    if len(identity.ranks) > 1:
        raise UsageError(
            f"{identity.shown} has {len(identity.ranks)} data-parallel ranks, and an answer tells the weights of one",
            hint="restart it with the new release",
        )
    if state.api_servers is not None and state.api_servers > 1:
        raise UsageError(
            f"{state.api_servers} API servers listen at {identity.shown}, and each holds only its own requests",
            hint="start vLLM with --api-server-count 1, or restart it with the new release",
        )
    if state.namespaces:
        raise UsageError(
            f"{identity.shown} serves adapters in namespaces of their own ({', '.join(sorted(state.namespaces))}): "
            "their KV depends on the model that is replaced",
            hint="restart it with the new release and its adapters",
        )
    if state.state == HELD:
        raise Refused(
            f"{identity.shown}: somebody else holds its gate since {state.held_s or 0.0:.0f} s, for "
            f"{state.hold_s:g} s at most",
            status=None,
            hint="wait until that reload is over; a hold that was given up closes the gate, and can then be taken over",
            may_have_run=False,
        )
    return Ready(engine=engine, identity=identity, gate=state)
