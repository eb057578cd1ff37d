"""A release's namespace and a tenant's own salt in one: the salt that a request carries.

The standard library only: what runs inside an engine (the middleware) imports this and nothing else of kvrelease.
"""

from __future__ import annotations

import hashlib
import re

# The narrowest limit of the engines that take a salt: vLLM 0.32.0, entrypoints/generate/base/protocol.py, and LMCache
# 0.5.6 (multiprocess), v1/distributed/api.py. SGLang and TensorRT-LLM have none.
MAX_SALT_CHARACTERS = 128
_SEPARATOR = "."
_MARK_CHARACTERS = 32  # 128 bits of SHA-256: two tenants never meet by chance
_MARK = re.compile(r"[0-9a-f]{32}\Z")


def bound_salt(namespace: str, own: str | None) -> str:
    """The salt that is sent: the namespace with the tenant's own, neither replaced by the other.

    Clients of a deployment whose tenants have salts must send the same; any language has SHA-256.

    The part after the separator is of one length always, so the last 33 characters are the tenant's and all before them
    the namespace's: no two pairs are written alike. Whoever sends a salt that is bound already has chosen that key
    space, and keeps it; binding twice is binding once.

    Args:
        namespace: of the release, or whatever text production's requests carry; not empty.
        own: the tenant's own salt; None and empty where there is none.

    Returns:
        The namespace where there is no other; `own` as it is where it is the namespace, or was made of it by this
        function; else `NAMESPACE.MARK`, where MARK is the first 32 hexadecimal digits of the SHA-256 of `own` in UTF-8,
        and a NAMESPACE too long for that (more than 95 characters; ours have 64 at most) is replaced by its own mark.
        At most 128 characters, the namespace alone aside; none of the tenant's own, which engines may refuse (at sign,
        slashes, NUL), is in it.

    Raises:
        ValueError: an empty namespace, which would bind nothing.

    Source: docs/prewarm.md, "Key spaces".
    """
    if not namespace:
        raise ValueError("an empty namespace binds nothing")
    room = MAX_SALT_CHARACTERS - len(_SEPARATOR) - _MARK_CHARACTERS
    prefix = (namespace if len(namespace) <= room else _mark(namespace)) + _SEPARATOR
    if not own or own == namespace:
        return namespace
    if own.startswith(prefix) and _MARK.match(own, len(prefix)):
        return own
    return prefix + _mark(own)


def _mark(salt: str) -> str:
    # JSON can spell half a surrogate pair, which UTF-8 cannot: such a salt is another one than every text's.
    return hashlib.sha256(salt.encode("utf-8", errors="surrogatepass")).hexdigest()[:_MARK_CHARACTERS]
