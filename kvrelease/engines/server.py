"""What every adapter of an HTTP server has in common: a transport, the OpenAI routes over it, and a metrics page."""

from __future__ import annotations

from kvrelease.engines.http import Transport
from kvrelease.engines.metrics import Metrics, parse_metrics
from kvrelease.engines.openai import OpenAIRoutes
from kvrelease.errors import UnexpectedReply


class Server:
    """One server at one address; adapters add how its kind is asked."""

    def __init__(self, transport: Transport, *, model: str | None = None) -> None:
        """Speaks over `transport`, which it closes; `model` None for the only one that is served."""
        self._transport = transport
        self._routes = OpenAIRoutes(transport, model=model)

    @property
    def url(self) -> str:
        """How messages name it."""
        return self._transport.url

    @property
    def name(self) -> str | None:
        """The name of which `url` is one address."""
        return self._transport.address.name

    @property
    def rank(self) -> int | None:
        """The data-parallel rank that it is pinned to."""
        return self._transport.rank

    async def aclose(self) -> None:
        """Closes connections; the engine keeps running."""
        await self._transport.aclose()

    async def _metrics(self, *, is_optional: bool = True, only: str | tuple[str, ...] = "") -> Metrics:
        """The metrics page; without samples when it is closed or something else.

        Args:
            is_optional: the server need not have it.
            only: how the names that are wanted begin, which spares reading the others (15 ms a page).
        """
        reply = await self._transport.get("/metrics", is_optional=is_optional)
        if not reply.is_ok:
            return Metrics(())
        try:
            text = reply.data.decode("utf-8", "replace")
            if only:
                text = "".join(line for line in text.splitlines(keepends=True) if line.startswith(only))
            return parse_metrics(text, source=reply.what)
        except UnexpectedReply:
            return Metrics(())
