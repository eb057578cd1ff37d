"""The key space that a request asks for by itself: its model or adapter, and its tenant's own salt.

Prompts of two key spaces share no block, whatever their texts have in common.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.printable import is_utf8
from kvrelease.workload.place import Place, kind_name

# Fields by which a body chooses its own key space, whatever `production.salt` says (vLLM and SGLang call it
# cache_salt, SGLang also extra_key).
SALT_FIELDS = ("cache_salt", "extra_key")
# What everybody may read: a release's namespace and salts that we draw for probes, alone or with the mark of a tenant's
# salt (`binding.salts`).
_OPEN_SALT = re.compile(r"(kv[0-9]+-[a-z0-9]+-[a-z0-9]+-e[0-9]+|kvrelease-[a-z-]+-[0-9a-f]{16})(\.[0-9a-f]{32})?")
MAX_OWN_SALT_CHARACTERS = 1024  # vLLM takes 128; SGLang has no limit, and nobody names a tenant by more
_NAME_CHARACTERS = 32


class KeySpace(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Where the blocks of a request are looked up.

    Attributes:
        model: served name or adapter; empty when the request names none.
        salt: the tenant's own; empty without one.
    """

    model: str
    salt: str


def key_space(*, model: str | None, salt: str | None) -> KeySpace:
    """The key space of a request; None is the served model, and no salt."""
    return KeySpace(model=model or "", salt=salt or "")


def read_salt(value: object, *, place: Place, field: str = "salt") -> str | None:
    """A tenant's own salt; nothing and empty text are none.

    Raises:
        InputError: not text, or absurdly long. The message never holds the salt.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise place.error(f"`{field}` is {kind_name(value)}, expected text")
    if len(value) > MAX_OWN_SALT_CHARACTERS:
        raise place.error(f"`{field}` has {len(value)} characters, expected at most {MAX_OWN_SALT_CHARACTERS}")
    if not is_utf8(value):
        raise place.error(f"`{field}` is no valid text")
    return value


def take_salt(body: JsonObject, *, place: Place, beside: str | None = None) -> tuple[JsonObject, str | None]:
    """A body without its salt fields, and the salt that they held.

    Args:
        body: of a request.
        place: for messages.
        beside: the salt that a file gives apart from the body; None without one.

    Raises:
        InputError: a salt is no text, or two different ones are given.
    """
    given = [field for field in SALT_FIELDS if field in body]
    if not given:
        return body, beside
    salts = {beside, *(read_salt(body[field], place=place, field=field) for field in given)} - {None}
    if len(salts) > 1:
        named = [*(["salt"] if beside is not None else []), *given]
        raise place.error(
            f"{' and '.join(named)} hold different salts", hint="keep the one that the engine in use reads"
        )
    return {name: value for name, value in body.items() if name not in SALT_FIELDS}, next(iter(salts), None)


def salt_mark(salt: str, *, characters: int = 8) -> str:
    """Hexadecimal digits (of SHA-256) that tell a salt from others without giving it away: it may be a secret."""
    return hashlib.sha256(salt.encode()).hexdigest()[:characters]


def key_space_name(salt: str | None) -> str | None:
    """How artifacts, reports and the ledger call the key space of a salt: None for unsalted.

    A namespace is no secret and is told as it is. Any other text may be one (whoever knows it can ask in that key
    space), and is told by its mark, `sha256:` and 32 hexadecimal digits, which no two meet by chance.
    """
    if salt is None or _OPEN_SALT.fullmatch(salt):
        return salt
    return f"sha256:{salt_mark(salt, characters=_NAME_CHARACTERS)}"
