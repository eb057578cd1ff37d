"""Names that stand for many replicas: their addresses now, and what became of them meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from kvrelease.artifacts import Fault, fault_of
from kvrelease.engines.address import Address
from kvrelease.engines.base import shown_replica
from kvrelease.errors import ExitCode, KvreleaseError, ServiceTimeout, Unreachable

# A resolver asks several servers for 5 s each, and cannot be interrupted; longer than this nobody waits for a name.
RESOLVE_S = 15.0


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """What an address that appeared meanwhile has missed.

    Attributes:
        what: as part of a sentence.
        hint: the next step.
    """

    what: str
    hint: str


class AddressChange(msgspec.Struct, frozen=True, kw_only=True):
    """One address of a name that came or went while a run went on.

    Attributes:
        address: which one.
        appeared: it was not there at the start, so it was not asked; else it is gone.
    """

    address: Address
    appeared: bool

    def fault(self, *, undone: Undone) -> Fault:
        """As part of a report: an address that nobody asked leaves the run incomplete, one that is gone does not."""
        shown = shown_replica(self.address.url, name=self.address.name)
        if not self.appeared:
            return Fault(
                where=shown,
                exit_code=int(ExitCode.OK),
                message=f"{shown} is no address of {self.address.name} any more: nobody reaches it by that name now",
            )
        return Fault(
            where=shown,
            exit_code=int(ExitCode.INCONCLUSIVE),
            message=f"{shown} appeared while the run went on: it was not asked, and {undone.what}",
            hint=undone.hint,
        )


async def addresses_of(service: Address) -> tuple[Address, ...]:
    """Every address of a service's host by the system's resolver, IPv4 and IPv6, in a fixed order.

    Raises:
        Unreachable: the name has no address.
        ServiceTimeout: the resolver does not answer.
    """
    what = f"looking up {service.host}"
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await asyncio.get_running_loop().getaddrinfo(
                service.host, service.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
            )
    except TimeoutError as error:
        raise ServiceTimeout(f"{what}: no answer within {RESOLVE_S:g} s", hint="check the resolver") from error
    except (OSError, UnicodeError) as error:
        raise Unreachable(
            f"{what}: the name has no address ({getattr(error, 'strerror', None) or type(error).__name__})",
            hint="check the spelling and the search domains; a headless Service has no address before a pod is ready",
        ) from error
    # An address that holds only on one link of this machine (`fe80::1%eth0`) is nothing that a URL can carry.
    numbers = sorted({str(place[0]) for *_, place in found if "%" not in str(place[0])})
    return tuple(service.at(number) for number in numbers)


async def changes_since(known: dict[Address, tuple[Address, ...]]) -> tuple[AddressChange, ...]:
    """What became of names.

    Args:
        known: by name, the addresses at the start.

    Raises:
        ServiceError: a name cannot be looked up any more.
    """
    changes: list[AddressChange] = []
    for service, before in known.items():
        now = await addresses_of(service)
        changes += [AddressChange(address=one, appeared=True) for one in now if one not in before]
        changes += [AddressChange(address=one, appeared=False) for one in before if one not in now]
    return tuple(changes)


Changes = Callable[[], Awaitable[Sequence[AddressChange]]]


async def faults_of_changes(changes: Changes | None, *, undone: Undone) -> tuple[Fault, ...]:
    """What became of the names; where they cannot be looked up any more, that: everything else is done by then.

    Args:
        changes: `Fleet.changes`; None to ask for nothing.
        undone: what an address that appeared has missed.
    """
    if changes is None:
        return ()
    try:
        return tuple(one.fault(undone=undone) for one in await changes())
    except KvreleaseError as error:
        return (fault_of(error, where="the names of the replicas"),)
