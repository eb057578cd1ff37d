"""The chosen prompts as a prompt set: JSONL that `load_prompt_set` reads.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvrelease.selection.result import SelectedPrompt
from kvrelease.workload.logged import LoggedRequest


def set_lines(prompts: Sequence[SelectedPrompt], requests: Sequence[LoggedRequest]) -> str:
    """One line a prompt: `id`, `weight`, the tenant's `salt` where it has one, and the body as it was sent.

    Args:
        prompts: [prompts] of a selection.
        requests: [prompts] of the same.
    """
    lines = []
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.body is not None, "a set is made of requests with text"
        salt = {} if request.salt is None else {"salt": request.salt}
        line = {"id": prompt.id, "weight": prompt.weight, **salt, "body": request.body}
        lines.append(msgspec.json.encode(line).decode() + "\n")
    return "".join(lines)
