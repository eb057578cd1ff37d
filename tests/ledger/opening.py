"""Ledgers for one run of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvrelease.ledger.store import IN_MEMORY, Ledger


@contextmanager
def given_or_new(ledger: Ledger | None) -> Iterator[Ledger]:
    """The ledger, which its opener closes; for None one that is thrown away, and closed, at the end."""
    if ledger is not None:
        yield ledger
    else:
        with Ledger(IN_MEMORY) as own:
            yield own
