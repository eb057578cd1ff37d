"""Prompts that nobody can have cached: whether a cache hits at all, whose it is, how noisy it is, what kernels do."""

from __future__ import annotations

import secrets
from collections.abc import Coroutine
from typing import Protocol

from msgspec.structs import replace

from kvrelease.binding.control import nonce_request, with_nonce_in_front
from kvrelease.binding.deployment import Replica
from kvrelease.binding.observe import Leg
from kvrelease.binding.salts import probe_salt
from kvrelease.engines.base import Request, Route
from kvrelease.verify.evidence import BindingEvidence, Calibration, ControlEvidence, Isolation
from kvrelease.verify.ladder import Ladder
from kvrelease.verify.record import as_probe, probe_request
from kvrelease.workload.prompt_set import Prompt


class Observe(Protocol):
    """Sends one request to the replica, or to another one, and counts it."""

    def __call__(
        self, request: Request, *, on: Replica | None = None, asked: str = "nonce"
    ) -> Coroutine[object, object, Leg]:
        """What came back; `asked` names the prompt in what is said of it."""


class Uniques:
    """Unique prompts of one replica; each method sends some.

    Args:
        replica: prepared.
        route: that production's requests take.
        observe: sends a request.
    """

    def __init__(self, replica: Replica, *, route: Route, observe: Observe) -> None:
        self._replica = replica
        self._route = route
        self._observe = observe

    async def twice(self) -> tuple[Leg, Leg]:
        """A miss, and a hit where the cache can hit at all."""
        request = as_probe(await self._nonce(salt=self._replica.deployment.salt))
        return await self._observe(request), await self._observe(request)

    async def control(self) -> ControlEvidence:
        """The same, with what the server's counters say of it."""
        engine = self._replica.observer.engine
        before = await engine.counters()
        legs = await self.twice()
        after = await engine.counters()
        if before is None or after is None:
            return ControlEvidence(legs=legs, counted_hits=None)
        queried = after.queried_tokens - before.queried_tokens
        return ControlEvidence(
            legs=legs,
            counted_hits=after.all_cached_tokens - before.all_cached_tokens,
            counted_queries=queried if queried >= 0 else None,
        )

    async def binding(self) -> BindingEvidence:
        """One inside the namespace, as production, and under a fresh salt."""
        deployment = self._replica.deployment
        request = await self._nonce(salt=deployment.namespace)
        inside = await self._observe(request)
        as_production = await self._observe(replace(request, salt=deployment.salt))
        fresh = await self._observe(replace(request, salt=probe_salt("binding")))
        return BindingEvidence(inside=inside, as_production=as_production, fresh_salt=fresh)

    async def of_both(self, like: Prompt, *, ladder: Ladder, max_tokens: int) -> tuple[Prompt, Calibration]:
        """One of the engine and of the reference, each cold and hit: what their kernels make of one and the same.

        Args:
            like: what users send; the unique prompt is that behind a nonce, where it fits.
            ladder: knows the reference.
            max_tokens: to generate.
        """
        prompt = await self._like(like)
        as_production = probe_request(self._replica, prompt, salt=self._replica.deployment.salt)
        reference = ladder.answering(Isolation.REFERENCE)
        legs: list[tuple[Leg, ...]] = []
        for place, plain in ((self._replica, as_production), (reference, ladder.on_reference(prompt))):
            request = replace(plain, max_tokens=max_tokens)
            legs.append((await self._observe(request, on=place), await self._observe(request, on=place)))
        return prompt, Calibration(name=prompt.id, engine=legs[0], reference=legs[1])

    async def _like(self, prompt: Prompt) -> Prompt:
        name, room = f"unique-{secrets.token_hex(4)}", self._replica.identity.context_tokens
        made = with_nonce_in_front(probe_request(self._replica, prompt, salt=None))
        tokens = None if made is None else await self._replica.observer.tokenize(made)
        if made is None or (room is not None and tokens is not None and len(tokens) + made.max_tokens > room):
            made = await self._nonce(salt=None)
        own = {field: made.body[field] for field in ("messages", "prompt") if field in made.body}
        return replace(prompt, id=name, body=prompt.body | own)

    async def _nonce(self, *, salt: str | None) -> Request:
        return await nonce_request(
            self._replica.observer,
            route=self._route,
            production=self._replica.deployment.production,
            model=self._replica.identity.model,
            salt=salt,
        )
