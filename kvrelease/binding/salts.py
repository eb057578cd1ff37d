"""The salts that requests carry: production's with its tenant's, and those of our own probes."""

from __future__ import annotations

import secrets

import msgspec

from kvrelease.engines.vllm_salt import MAX_VLLM_SALT
from kvrelease.workload.key_space import KeySpace, salt_mark
from kvrelease.workload.prompt_set import PromptSet, key_space_of

_MARK_CHARACTERS = 32  # 128 bits of SHA-256: two tenants never meet by chance
_SEPARATOR = "."


def combined_salt(production: str | None, own: str | None) -> str | None:
    """The salt that is sent: production's and the tenant's own, neither replaced by the other.

    Clients of a deployment whose tenants have salts must send the same; any language has SHA-256.

    Args:
        production: the key space of production's requests, None for unsalted.
        own: the tenant's own salt, None where a prompt has none.

    Returns:
        Production's salt where there is no other; the tenant's own as it is where production has none; else
        `PRODUCTION.MARK`, where MARK is the first 32 hexadecimal digits of the SHA-256 of the tenant's salt in UTF-8,
        and a PRODUCTION too long for that (more than 95 characters) is replaced by its own mark. At most 128
        characters; none of the tenant's own, which engines may refuse (vLLM: at sign, slashes), is in it.

    Source: docs/prewarm.md, "Key spaces".
    """
    if own is None or production is None:
        return production if own is None else own
    room = MAX_VLLM_SALT - len(_SEPARATOR) - _MARK_CHARACTERS
    release = production if len(production) <= room else salt_mark(production, characters=_MARK_CHARACTERS)
    return f"{release}{_SEPARATOR}{salt_mark(own, characters=_MARK_CHARACTERS)}"


def key_spaces(prompt_set: PromptSet, *, model: str) -> dict[str, KeySpace]:
    """The key space of each prompt within the release's own: its adapter and its tenant's salt.

    Args:
        prompt_set: the representative prompts.
        model: the served model, which is no adapter, whether a body names it or not.
    """
    found = {prompt.id: key_space_of(prompt) for prompt in prompt_set.prompts}
    return {
        prompt_id: msgspec.structs.replace(space, model="") if space.model == model else space
        for prompt_id, space in found.items()
    }


PROBE_SALT = "kvrelease-"


def probe_salt(purpose: str) -> str:
    """A key space of this run's own, recognisable in an engine's logs; at most 64 of `[a-z0-9-]`."""
    return f"{PROBE_SALT}{purpose}-{secrets.token_hex(8)}"


def is_probe_salt(key_space: str | None) -> bool:
    """Whether a key space is one that `probe_salt` made."""
    return key_space is not None and key_space.startswith(PROBE_SALT)
