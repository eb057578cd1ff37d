"""What a request may do to the cache, told by its route.

A route that nobody knows may compute KV under the unsalted keys, so it is refused like one that is known to. Routes of
engines that are newer or older than the tables are told by what they declare (`declared`).

Source: vLLM 0.32.0, every `api_router.py` below entrypoints/ and `cache_salt` in their protocol classes; realtime:
entrypoints/speech_to_text/realtime/api_router.py. SageMaker's adapter routes: model-hosting-container-standards 0.1.16,
sagemaker/lora/routes.py.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any

CONTROL_PREFIX = "/kvrelease/"


class Treatment(enum.Enum):
    """What becomes of a request."""

    BIND = "its salt is bound, and a hold stops it"
    UNSALTED = "it takes no salt and was let through by the operator; a hold stops it"
    REFUSE = "it could compute KV under keys without the namespace"
    HARMLESS = "it computes no KV"
    CONTROL = "it is for the middleware itself"


# Rendering computes nothing; what it answers carries the salt that generating is asked with.
SALTED = frozenset(
    {
        "/classify",
        "/generative_scoring",
        "/inference/v1/generate",
        "/invocations",
        "/pooling",
        "/rerank",
        "/score",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/render",
        "/v1/completions",
        "/v1/completions/render",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/render",
        "/v1/rerank",
        "/v1/responses",
        "/v1/responses/render",
        "/v1/score",
        "/v1/systemone",
        "/v2/rerank",
    }
)

_HARMLESS = frozenset(
    {
        "/abort_requests",
        "/adapters",
        "/cohere/v2/chat/render",
        "/collective_rpc",
        "/detokenize",
        "/fault_tolerance/apply",
        "/finish_weight_update",
        "/inference/v1/abort_requests",
        "/init_weight_transfer_engine",
        "/is_scaling_elastic_ep",
        "/pause",
        "/ping",
        "/release_kv_cache_memory",
        "/reset_encoder_cache",
        "/reset_mm_cache",
        "/reset_prefix_cache",
        "/resume",
        "/scale_elastic_ep",
        "/shutdown_weight_transfer_engine",
        "/sleep",
        "/start_draft_weight_update",
        "/start_profile",
        "/start_weight_update",
        "/stop_profile",
        "/tokenize",
        "/update_weight_version",
        "/update_weights",
        "/v1/chat/completions/derender",
        "/v1/completions/derender",
        "/v1/load_lora_adapter",
        "/v1/messages/count_tokens",
        "/v1/unload_lora_adapter",
        "/wake_up",
        "/weight_checker",
    }
)
# One adapter is unloaded, one response cancelled.
_HARMLESS_FORM = re.compile(r"/adapters/[^/]+\Z|/v1/responses/[^/]+/cancel\Z")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Routes:
    """The routes of one engine, and which of them the operator lets through without a salt."""

    def __init__(self, *, unsalted: Iterable[str], has_control: bool) -> None:
        self._has_control = has_control
        self._known = dict.fromkeys(_HARMLESS, Treatment.HARMLESS) | dict.fromkeys(SALTED, Treatment.BIND)
        self._unsalted = dict.fromkeys(unsalted, Treatment.UNSALTED)

    def learn(self, declared: Mapping[str, bool]) -> tuple[str, ...]:
        """Corrects the table by what the engine declares.

        Args:
            declared: route → whether its body has a salt, where the engine tells.

        Returns:
            Routes of the table whose body has none in this engine, sorted: an older one takes the field without a word
            and ignores it. They are refused from now on, unless the operator lets them through.
        """
        ignored = sorted(route for route, has_salt in declared.items() if route in SALTED and not has_salt)
        self._known |= dict.fromkeys(ignored, Treatment.REFUSE)
        self._known |= {route: Treatment.BIND for route, has_salt in declared.items() if has_salt}
        return tuple(ignored)

    def treatment(self, scope: Mapping[str, Any], route: str) -> Treatment:
        """What becomes of the request, or web socket, of an ASGI scope.

        Args:
            scope: of it.
            route: `route_of` it.
        """
        if route.startswith(CONTROL_PREFIX):
            return Treatment.CONTROL if self._has_control else Treatment.HARMLESS
        if scope["type"] == "http" and scope["method"] in _READING:
            return Treatment.HARMLESS
        known = self._known.get(route)
        if known is not None and known is not Treatment.REFUSE:
            return known
        if _HARMLESS_FORM.match(route):
            return Treatment.HARMLESS
        return self._unsalted.get(route, Treatment.REFUSE)


def route_of(scope: Mapping[str, Any]) -> str:
    """The path below the root path, as Starlette 1.10 finds a route (`get_route_path` in _utils.py)."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    if root and path.startswith(root) and path[len(root) :][:1] in ("", "/"):
        path = path[len(root) :]
    return path.rstrip("/") or "/"
