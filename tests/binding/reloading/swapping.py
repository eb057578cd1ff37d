"""A scripted vLLM behind the real middleware, under uvicorn, and a reload of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from kvrelease.artifacts import ReleaseRef
from kvrelease.binding.reloading.result import Reloading, ReloadReport
from kvrelease.binding.reloading.run import reload
from kvrelease.binding.runtime import declared_runtime
from kvrelease.engines.base import EngineIdentity
from kvrelease.engines.gate import OPEN, GateState
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.record import Record
from kvrelease.verify.swap_probes import SwapProbes
from tests.binding.middleware.serving import NAMESPACE, NEXT, TOKEN, Served, served
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import deployment, with_clients


class Forwarding:
    """An application that hands every request to an engine over HTTP: the middleware's place is inside its process."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=30)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._client.aclose()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"] + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
        answer = await self._client.request(scope["method"], path, content=body, headers=_JSON)
        headers = [(b"content-type", answer.headers.get("content-type", "").encode())]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": answer.content})


_JSON = {"content-type": "application/json"}


class Swapping(ScriptedEngine):
    """Loads new weights only when it may.

    Attributes:
        may_swap: set where nobody waits for it.
        loads: what it has after a swap, where that is not what it was told to load.
    """

    def __init__(self, *, release: str = "old", **settings: Any) -> None:
        super().__init__(release=release, **settings)
        self.may_swap = threading.Event()
        self.may_swap.set()
        self.swapping = threading.Event()
        self.loads: str | None = None

    def reload(self, release: str, *, reset: bool = False) -> None:
        self.swapping.set()
        assert self.may_swap.wait(20)
        super().reload(self.loads or release, reset=reset)


class Gated:
    """An engine, and what is served in front of it."""

    def __init__(self, engine: Swapping, front: Served) -> None:
        self.engine, self.front = engine, front
        self.kind = engine.kind

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.front.port}"


@contextlib.contextmanager
def gated(*, environment: Mapping[str, str] | None = None, **settings: Any) -> Iterator[Gated]:
    with Swapping(**settings) as engine, served(Forwarding(engine.url), environment=environment) as front:
        yield Gated(engine, front)


def reloaded(
    replicas: Gated | Sequence[Gated],
    *,
    golden: Record | None = None,
    asks: bool = True,
    token: str = TOKEN,
    ledger: Ledger | None = None,
    is_dry: bool = False,
    **changes: Any,
) -> ReloadReport:
    """A reload to the release `new` in the namespace `NEXT`."""
    several = [replicas] if isinstance(replicas, Gated) else list(replicas)
    limits: dict[str, Any] = {
        "drain_timeout_s": 10.0,
        "hold_timeout_s": None,
        "reload_timeout_s": 10.0,
        "allows_flush": False,
        **changes,
    }
    reloading = Reloading(
        release=ReleaseRef(name="new", version=None, source="/models/new", kv_name="kv1-new"),
        namespace=NEXT,
        runtime=declared_runtime({}),
        weights_path="/models/new",
        **limits,
    )

    def witness(identity: EngineIdentity, gate: GateState) -> SwapProbes | None:
        if not asks:
            return None
        is_other = gate.state == OPEN and gate.namespace == NAMESPACE
        return SwapProbes(deployment("new"), identity=identity, golden=golden, is_other_release=is_other)

    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(Ledger(IN_MEMORY)) if ledger is None else ledger
        return with_clients(
            several,
            lambda clients: reload(
                clients, reloading=reloading, token=token, witness=witness, ledger=kept, is_dry=is_dry
            ),
        )
