"""The connections to one origin: one pool, however many clients speak over it, and one TLS context for all pools."""

from __future__ import annotations

import functools
import os
import ssl

import httpx

from kvrelease import __version__
from kvrelease.engines.address import Address

# No TCP handshake in a data centre takes longer; without it a black-holed address costs the whole deadline.
CONNECT_S = 10.0
# Uvicorn drops idle connections after 5 s; a request sent on one that is just closing would count as a retry.
KEEPALIVE_S = 2.0
# Requests in flight at once, where nobody says how many there will be.
MAX_CONNECTIONS = 100


class Connections:
    """A pool of connections to one origin, counted by its users; the last one to leave closes it.

    Attributes:
        address: of the origin.
    """

    def __init__(
        self,
        address: Address,
        *,
        most: int = MAX_CONNECTIONS,
        connector: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepares a pool; no connection is made yet.

        Args:
            address: of the origin.
            most: connections open at once; further requests wait, within their own deadline.
            connector: replaces the network, in tests.
        """
        self.address = address
        self._users = 0
        # Proxies and certificates of the environment are for other machines: a proxy cannot reach our loopback, and
        # an address that our own resolver gave for a name is one to go to directly.
        reads_certificates = not address.is_loopback
        self._client = httpx.AsyncClient(
            headers={"user-agent": f"kvrelease/{__version__}", "accept-encoding": "identity"},
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=KEEPALIVE_S),
            follow_redirects=False,
            trust_env=reads_certificates and address.name is None,
            verify=_tls_context(reads_certificates),
            transport=connector,
        )

    @property
    def client(self) -> httpx.AsyncClient:
        """Sends requests over the pool."""
        return self._client

    def borrow(self) -> Connections:
        """Itself, for one more user, who calls `aclose`."""
        self._users += 1
        return self

    async def aclose(self) -> None:
        """One user leaves; the last one closes the connections."""
        self._users -= 1
        if self._users <= 0:
            await self._client.aclose()


def _tls_context(reads_environment: bool) -> ssl.SSLContext:
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR") if reads_environment else ()
    return _context_for(tuple((name, os.environ.get(name)) for name in names))


@functools.lru_cache(maxsize=8)
def _context_for(certificates: tuple[tuple[str, str | None], ...]) -> ssl.SSLContext:
    """The context for these variables: reading the authorities takes longer than a request, and 0.4 MB."""
    return httpx.create_ssl_context(trust_env=bool(certificates))
