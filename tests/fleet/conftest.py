from __future__ import annotations

from tests.fleet.names import resolver

__all__ = ["resolver"]
