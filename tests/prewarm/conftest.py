"""Fixtures of the tests of prewarming."""

from tests.fleet.names import resolver

__all__ = ["resolver"]
