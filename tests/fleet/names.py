"""Names for tests: what the system's resolver would answer for them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest

NAME = "pods.example"


class Resolver:
    """Answers for names of its own, and leaves every other to the system.

    Attributes:
        addresses: by name.
    """

    def __init__(self) -> None:
        self.addresses: dict[str, Sequence[str]] = {}
        self._system = socket.getaddrinfo

    def __call__(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in self.addresses:
            return self._system(host, port, *args, **kwargs)
        if not self.addresses[host]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found = []
        for number in self.addresses[host]:
            family = socket.AF_INET6 if ":" in number else socket.AF_INET
            place = (number, port, 0, 0) if ":" in number else (number, port)
            found.append((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place))
        return found


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made
