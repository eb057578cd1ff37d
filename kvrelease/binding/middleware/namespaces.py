"""Which namespace a request belongs to: that of its adapter, or of the model itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from kvrelease.errors import UsageError

# What DESIGN calls safe in every engine's salt, tag and path; words that stand for a key space are no names of one.
_NAMESPACE = re.compile(r"[a-z0-9-]{1,64}\Z")
_WORDS = ("none", "release")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Namespaces:
    """The namespaces of one engine.

    Attributes:
        default: of the model, and of every name that has none of its own.
        by_model: served name of an adapter → its namespace.
    """

    default: str
    by_model: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def of(self, model: str | None) -> str:
        """The namespace of a served name; a name nobody declared has the default, so that nothing stays unbound."""
        return self.by_model.get(model, self.default) if model is not None else self.default


def checked_namespaces(default: object, by_model: object, *, where: str) -> Namespaces:
    """Namespaces as somebody wrote them.

    Args:
        default: a namespace.
        by_model: served name → namespace.
        where: who said so, for the message.

    Raises:
        UsageError: no namespace, or a text that is none.
    """
    if not isinstance(by_model, dict):
        raise UsageError(f"{where}: the namespaces of adapters are not an object of names", hint='{"adapter": "kv1-…"}')
    return Namespaces(
        default=_checked(default, where=where),
        by_model={str(name): _checked(value, where=f"{where}, {name!r}") for name, value in by_model.items()},
    )


def _checked(namespace: object, *, where: str) -> str:
    if not isinstance(namespace, str) or not _NAMESPACE.match(namespace) or namespace in _WORDS:
        raise UsageError(
            f"{where}: {namespace!r} is no namespace (1 to 64 of a-z, 0-9 and the hyphen)"
            if namespace
            else f"{where}: there is no namespace",
            hint="kvrelease namespace RELEASE --engine vllm",
        )
    return namespace
