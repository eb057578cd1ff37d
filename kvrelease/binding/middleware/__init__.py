"""The ASGI middleware that puts the namespace into every request's salt.

vLLM loads it with `--middleware kvrelease.binding.middleware.Bound`, inside the engine's process, where our other
dependencies may be absent: the standard library, and modules of ours that need no more. docs/middleware.md says what it
does and what it does not.
"""

from __future__ import annotations

from kvrelease.binding.middleware.bound import Bound

__all__ = ["Bound"]
