"""What vLLM takes as a cache salt: the narrowest limits of the engines we know.

Source: vLLM 0.32.0, `cache_salt` in entrypoints/generate/base/protocol.py.
"""

from __future__ import annotations

from kvrelease.errors import UsageError

MAX_VLLM_SALT = 128
_FORBIDDEN = "@/\\\0"


def checked_salt(salt: str) -> str:
    """The salt, when vLLM takes it.

    Raises:
        UsageError: empty, longer than `MAX_VLLM_SALT`, or with one of the characters that vLLM refuses.
    """
    if not salt or len(salt) > MAX_VLLM_SALT or any(character in salt for character in _FORBIDDEN):
        raise UsageError(
            f"vLLM takes a cache salt of 1 to {MAX_VLLM_SALT} characters without @, / and \\; this one has {len(salt)}",
            hint="a namespace of kvrelease always fits",
        )
    return salt
