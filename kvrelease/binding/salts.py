"""The salts that requests carry: production's with its tenant's, and those of our own probes."""

from __future__ import annotations

import secrets

import msgspec

from kvrelease.binding.tenant_salt import bound_salt
from kvrelease.workload.key_space import KeySpace
from kvrelease.workload.prompt_set import PromptSet, key_space_of


def combined_salt(production: str | None, own: str | None) -> str | None:
    """The salt that is sent: production's and the tenant's own, neither replaced by the other.

    Args:
        production: the key space of production's requests, None for unsalted.
        own: the tenant's own salt, None where a prompt has none.

    Returns:
        The tenant's own as it is, or None, where production has none; else both, as `bound_salt` makes them one.
    """
    return own if production is None else bound_salt(production, own)


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
