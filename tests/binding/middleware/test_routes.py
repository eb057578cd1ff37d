"""What a request may do, told by its route and by what the engine declares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import pytest

from kvrelease.binding.middleware.declared import api_servers, declared_salts
from kvrelease.binding.middleware.routes import Routes, Treatment, route_of


def treatment(routes: Routes, route: str, *, method: str = "POST", kind: str = "http") -> Treatment:
    scope = {"type": kind, "method": method, "path": route}
    return routes.treatment(scope, route_of(scope))


@pytest.mark.parametrize(
    ("path", "root", "route"),
    [
        ("/v1/completions", "", "/v1/completions"),
        ("/v1/completions/", "", "/v1/completions"),
        ("/root/v1/completions", "/root", "/v1/completions"),
        ("/rooted/v1/completions", "/root", "/rooted/v1/completions"),
        ("/v1/completions", "/root", "/v1/completions"),
        ("/root", "/root", "/"),
    ],
)
def test_a_route_is_found_below_the_root_path(path: str, root: str, route: str) -> None:
    assert route_of({"path": path, "root_path": root}) == route


def test_a_web_socket_passes_only_where_the_operator_says_so() -> None:
    assert treatment(Routes(unsalted=[], has_control=False), "/v1/realtime", kind="websocket") is Treatment.REFUSE
    allowed = Routes(unsalted=["/v1/realtime"], has_control=False)
    assert treatment(allowed, "/v1/realtime", kind="websocket") is Treatment.UNSALTED


def test_control_is_the_applications_where_there_is_no_token() -> None:
    assert treatment(Routes(unsalted=[], has_control=False), "/kvrelease/hold") is Treatment.HARMLESS
    assert treatment(Routes(unsalted=[], has_control=True), "/kvrelease/hold") is Treatment.CONTROL


@pytest.mark.parametrize("route", ["/v1/responses/a/b/cancel", "/v1/responses/a", "/v1/completions/x", "/adapters/a/b"])
def test_what_only_begins_like_a_known_route_is_unknown(route: str) -> None:
    assert treatment(Routes(unsalted=[], has_control=False), route) is Treatment.REFUSE


class WithSalt:
    model_fields: ClassVar[dict[str, None]] = {"model": None, "cache_salt": None}


class Without:
    model_fields: ClassVar[dict[str, None]] = {"model": None}


async def chat(request: WithSalt, raw_request: object) -> None: ...


async def completion(request: Without) -> None: ...


async def either(request: Annotated[WithSalt | Without, "body"]) -> None: ...


async def both(request: WithSalt | None) -> WithSalt | None: ...


async def raw(raw_request: object) -> Without | None: ...


def declaring(**endpoints: Any) -> SimpleNamespace:
    """An application like FastAPI's, as far as it is asked; the live test asks vLLM's own."""
    routes = [
        SimpleNamespace(path=f"/v1/{name}", methods={"POST"}, endpoint=endpoint) for name, endpoint in endpoints.items()
    ]
    return SimpleNamespace(routes=[*routes, SimpleNamespace(path="/metrics")])


def test_an_engine_declares_which_bodies_have_a_salt() -> None:
    app = declaring(chat=chat, completion=completion, either=either, both=both, raw=raw)
    assert declared_salts(app) == {"/v1/chat": True, "/v1/completion": False, "/v1/either": False, "/v1/both": True}


def test_an_application_of_another_kind_declares_nothing() -> None:
    assert declared_salts(None) == {}
    assert api_servers(None) is None


def test_a_route_that_ignores_the_salt_in_this_engine_is_refused() -> None:
    routes = Routes(unsalted=[], has_control=False)
    assert routes.learn({"/v1/messages": False, "/v1/completions": True, "/tokenize": False}) == ("/v1/messages",)
    assert treatment(routes, "/v1/messages") is Treatment.REFUSE
    assert treatment(routes, "/v1/completions") is Treatment.BIND
    assert treatment(routes, "/tokenize") is Treatment.HARMLESS


def test_the_operator_may_let_a_route_through_that_ignores_the_salt() -> None:
    routes = Routes(unsalted=["/v1/messages"], has_control=False)
    routes.learn({"/v1/messages": False})
    assert treatment(routes, "/v1/messages") is Treatment.UNSALTED


def test_a_route_that_is_new_and_has_a_salt_is_bound() -> None:
    routes = Routes(unsalted=[], has_control=False)
    routes.learn({"/v3/everything": True})
    assert treatment(routes, "/v3/everything") is Treatment.BIND
