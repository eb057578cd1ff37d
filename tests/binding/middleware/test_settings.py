"""What the environment may say, and what stops the engine from starting."""

from __future__ import annotations

import json

import pytest

from kvrelease.binding.middleware.namespaces import Namespaces
from kvrelease.binding.middleware.settings import read_settings
from kvrelease.errors import UsageError
from tests.binding.middleware.serving import ADAPTER, NAMESPACE, TOKEN

GIVEN = {"KVRELEASE_NAMESPACE": NAMESPACE}


def test_a_namespace_is_enough() -> None:
    settings = read_settings(GIVEN)
    assert settings.namespaces == Namespaces(default=NAMESPACE)
    assert settings.control_token is None
    assert settings.unsalted_routes == frozenset()


def test_everything_can_be_said() -> None:
    settings = read_settings(
        {
            **GIVEN,
            "KVRELEASE_NAMESPACES": json.dumps({"adapter": ADAPTER}),
            "KVRELEASE_CONTROL_TOKEN": TOKEN,
            "KVRELEASE_HOLD_SECONDS": "1.5",
            "KVRELEASE_BODY_BYTES": "1000",
            "KVRELEASE_BUFFER_BYTES": "2000",
            "KVRELEASE_UNSALTED_ROUTES": "/v1/realtime,/v2/embed/",
        }
    )
    assert settings.namespaces.of("adapter") == ADAPTER
    assert (settings.hold_s, settings.body_bytes, settings.buffer_bytes) == (1.5, 1000, 2000)
    assert settings.unsalted_routes == {"/v1/realtime", "/v2/embed"}
    assert TOKEN not in repr(settings)


@pytest.mark.parametrize(
    "wrong",
    [
        {"KVRELEASE_NAMESPACE": ""},
        {"KVRELEASE_NAMESPACE": "none"},
        {"KVRELEASE_NAMESPACE": "release"},
        {"KVRELEASE_NAMESPACE": "$(NAMESPACE)"},
        {"KVRELEASE_NAMESPACE": NAMESPACE + "\n"},
        {"KVRELEASE_NAMESPACE": "a" * 65},
        {"KVRELEASE_NAMESPACES": "[]"},
        {"KVRELEASE_NAMESPACES": "{"},
        {"KVRELEASE_NAMESPACES": '{"adapter": null}'},
        {"KVRELEASE_NAMESPACES": '{"adapter": "A"}'},
        {"KVRELEASE_CONTROL_TOKEN": "short"},
        {"KVRELEASE_CONTROL_TOKEN": "an ümlaut in a long token"},
        {"KVRELEASE_HOLD_SECONDS": "0"},
        {"KVRELEASE_HOLD_SECONDS": "inf"},
        {"KVRELEASE_HOLD_SECONDS": "nan"},
        {"KVRELEASE_BODY_BYTES": "64 MiB"},
        {"KVRELEASE_UNSALTED_ROUTES": "v1/realtime"},
    ],
)
def test_a_value_that_means_nothing_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        read_settings({**GIVEN, **wrong})


def test_an_environment_without_a_namespace_is_refused() -> None:
    with pytest.raises(UsageError, match="KVRELEASE_NAMESPACE: there is no namespace"):
        read_settings({})
