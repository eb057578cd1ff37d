"""Base URLs of servers: one spelling of each, no secrets in it, and whether it is this machine."""

from __future__ import annotations

import ipaddress

import httpx
import msgspec

from kvrelease.errors import UsageError

# People paste what they have: the base URL of an SDK, or the whole route.
_ROUTES = ("/chat/completions", "/completions", "/models", "/v1")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is.

    Attributes:
        url: scheme, host, port and path prefix, without `/v1` and without a final slash.
        host: the host alone, an IPv6 address without brackets.
        port: the port, the scheme's own where the URL names none.
        is_loopback: the host is this machine by its name or number.
        name: of which `host` is one address (a headless service); None where the host is what was given.
    """

    url: str
    host: str
    port: int
    is_loopback: bool
    name: str | None = None

    @property
    def host_header(self) -> str | None:
        """What requests name as their host in place of the address; None where the URL has it."""
        if self.name is None:
            return None
        named = f"[{self.name}]" if ":" in self.name else self.name
        is_default = self.port == _DEFAULT_PORTS[self.url.partition(":")[0]]
        return named if is_default else f"{named}:{self.port}"

    def at(self, number: str) -> Address:
        """The same service at one of its name's addresses: an IPv4 or IPv6 address without brackets."""
        scheme, _, rest = self.url.partition("://")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Address(
            url=f"{scheme}://{f'[{number}]' if ':' in number else number}{rest.removeprefix(host)}",
            host=number,
            port=self.port,
            is_loopback=_is_loopback(number),
            name=self.host,
        )


def parse_address(text: str) -> Address:
    """The address in a URL, with or without a final `/v1`.

    Raises:
        UsageError: no http(s) URL, or one with credentials, a query or a fragment. Credentials are not repeated.
    """
    if not text.strip():
        raise UsageError("the engine's URL is empty", hint="pass one such as http://127.0.0.1:8000")
    try:
        url = httpx.URL(text.strip())
    except (httpx.InvalidURL, ValueError) as error:
        raise UsageError(
            f"the engine's URL cannot be read: {_shown(text)!r}",
            hint="pass one such as http://127.0.0.1:8000",
        ) from error
    if url.userinfo:
        raise UsageError(
            f"the engine's URL for {url.host} carries credentials, which would end up in reports",
            hint="put them in an environment variable and pass --api-key-env NAME",
        )
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"the engine's URL {_shown(text)!r} is no http or https URL", hint=_with_scheme(text))
    if url.query or url.fragment:
        raise UsageError(
            f"the engine's URL for {url.host} has a query or a fragment, which a base URL cannot have",
            hint=f"pass {_base(url)}",
        )
    return Address(
        url=_base(url),
        host=url.host,
        port=url.port or _DEFAULT_PORTS[url.scheme],
        is_loopback=_is_loopback(url.host),
    )


def _base(url: httpx.URL) -> str:
    path = url.path.rstrip("/")
    for route in _ROUTES:
        path = path.removesuffix(route).rstrip("/")
    port = f":{url.port}" if url.port not in (None, _DEFAULT_PORTS[url.scheme]) else ""
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{url.scheme}://{host}{port}{path}"


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(text: str) -> str:
    """The text without anything in front of an at sign, which may be a password."""
    return text.strip().rpartition("@")[2][:200]


def _with_scheme(text: str) -> str:
    shown = _shown(text)
    if "://" in shown:
        return "engines are reached by http:// or https://"
    return f"did you mean http://{shown}?"
