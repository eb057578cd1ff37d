"""A name with several addresses, for one process of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

HOSTS = Path("/etc/hosts")
_BIND = 'mount --bind "$0" /etc/hosts && exec "$@"'
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _BIND)

# Where a container permits no mount namespace: the same answers, given where Python asks the system for them.
_AT_THE_SOCKET = """
import socket

system = socket.getaddrinfo


def answered(host, port, *args, **kwargs):
    if host != {name!r}:
        return system(host, port, *args, **kwargs)
    return [found for number in {numbers!r} for found in system(number, port, *args, **kwargs)]


socket.getaddrinfo = answered
"""


def with_name(name: str, numbers: Sequence[str], *, directory: Path) -> tuple[str, ...]:
    """What to put before a command so that the name has these addresses in it: the system's own resolver, and a
    hosts file that only this process sees.

    Args:
        name: that nobody has.
        numbers: its addresses.
        directory: exists, and is ours.
    """
    private = directory / "hosts"
    private.write_text(HOSTS.read_text() + "".join(f"{number} {name}\n" for number in numbers))
    prefix = (*_NAMESPACE, str(private))
    try:
        found = subprocess.run([*prefix, "getent", "hosts", name], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        found = None
    if found is not None and found.returncode == 0:
        return prefix
    (directory / "sitecustomize.py").write_text(_AT_THE_SOCKET.format(name=name, numbers=tuple(numbers)))
    return ("env", f"PYTHONPATH={directory}")
