"""What an engine's own application says of itself: which routes take a salt, and how many processes serve them.

Engines differ by version: a field that one takes another ignores without a word. vLLM's application is FastAPI's, whose
routes name the class of their body.

Source: vLLM 0.32.0, entrypoints/launchers/app.py (`app.state.args`), entrypoints/cli/serve.py (`api_server_count`).
`cache_salt` came to chat with vLLM's pull request 17045, to completions and responses with 20981, to messages with
49498.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any


def declared_salts(app: object) -> dict[str, bool]:
    """Route → whether the body it declares has `cache_salt`; routes that declare none are left out.

    Args:
        app: `scope["app"]`, of whatever kind; one that has no routes declares nothing.
    """
    declared: dict[str, bool] = {}
    for route in getattr(app, "routes", ()):
        endpoint, methods = getattr(route, "endpoint", None), getattr(route, "methods", None)
        if endpoint is None or "POST" not in (methods or ()):
            continue
        fields = [model.model_fields for model in _bodies(endpoint)]
        if fields:
            # One path may have several routes, of which the first answers; a body may be one of several classes.
            declared.setdefault(str(route.path), all("cache_salt" in names for names in fields))
    return declared


def api_servers(app: object) -> int | None:
    """How many processes listen at this engine's address; None where it does not say."""
    count = getattr(getattr(getattr(app, "state", None), "args", None), "api_server_count", None)
    return count if isinstance(count, int) else None


def _bodies(endpoint: Any) -> Iterator[Any]:
    """The classes with fields among an endpoint's parameters; none of an endpoint whose hints lead nowhere."""
    try:
        hints = typing.get_type_hints(endpoint)
    except (AttributeError, NameError, TypeError):
        hints = {}
    for name, hint in hints.items():
        if name == "return":
            continue
        for kind in typing.get_args(hint) or (hint,):
            if inspect.isclass(kind) and isinstance(getattr(kind, "model_fields", None), dict):
                yield kind
