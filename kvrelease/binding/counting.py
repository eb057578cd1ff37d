"""The token ids of a prompt set by the server that will serve it; nothing is generated."""

from __future__ import annotations

from kvrelease.binding.production import production_request
from kvrelease.config import Production
from kvrelease.engines.base import EngineClient
from kvrelease.errors import Refused
from kvrelease.progress import Progress, ProgressEvent, silent
from kvrelease.workload.prompt_set import PromptSet
from kvrelease.workload.tokens import Tokens


async def engine_tokens(
    engine: EngineClient, *, prompt_set: PromptSet, production: Production, progress: Progress = silent
) -> Tokens:
    """What a server makes of each prompt, sent as production sends it.

    Args:
        engine: open.
        prompt_set: the prompts.
        production: body fields that users add.
        progress: told after each prompt.

    Returns:
        The ids; prompts that the server refuses, or does not tokenise, are among the unknown.

    Raises:
        UsageError: it serves another model, or production's body chooses a key space.
        ServiceError: it did not answer properly.
    """
    identity = await engine.identify()
    ids: dict[str, tuple[int, ...]] = {}
    unknown: dict[str, str] = {}
    for number, prompt in enumerate(prompt_set.prompts, start=1):
        request = production_request(
            prompt, production=production, model=identity.model, kind=identity.kind, salt=None, max_tokens=1
        )
        try:
            found = await engine.tokenize(request)
        except Refused as error:
            if error.status not in (400, 404, 422):
                raise
            unknown[prompt.id] = f"the server refuses it (status {error.status})"
        else:
            if found is None:
                unknown[prompt.id] = "the server does not tokenise it"
            else:
                ids[prompt.id] = found
        progress(ProgressEvent(stage="tokenising", done=number, total=len(prompt_set), unit="prompts"))
    return Tokens(by=identity.url, ids=ids, unknown=unknown, context_tokens=identity.context_tokens)
