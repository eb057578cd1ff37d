"""One release on its replicas, as `prewarm`, `record` and `verify` see it: who is asked, what, in which key space."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from kvrelease.artifacts import ReleaseRef
from kvrelease.binding.namespace import resolve_namespace, salt_of
from kvrelease.binding.observe import Observer, PrefixMemory
from kvrelease.binding.production import production_request
from kvrelease.binding.runtime import UNDECLARED_WARNING, Runtime, declared_runtime, require_agreement
from kvrelease.config import Config, Production
from kvrelease.engines.base import EngineClient, Request
from kvrelease.errors import PromptTooLong
from kvrelease.ledger.store import Ledger
from kvrelease.release.fingerprint import Fingerprint, require_kv_name
from kvrelease.workload.grouping import prefix_labels, text_tree
from kvrelease.workload.prefix_tree import PrefixTree, build_prefix_tree
from kvrelease.workload.prompt_set import Prompt, PromptSet


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of every replica.

    Attributes:
        release: that is said to be served.
        namespace: of that release.
        runtime: declared or undeclared.
        production: what users really send.
        salt: the key space of production's requests, None for unsalted.
        prompt_set: the representative prompts.
    """

    release: ReleaseRef
    namespace: str
    runtime: Runtime
    production: Production
    salt: str | None
    prompt_set: PromptSet


def deployment_of(
    fingerprint: Fingerprint,
    *,
    config: Config,
    ledger: Ledger,
    prompt_set: PromptSet,
    namespace: str | None,
    command: str,
    warn: Callable[[str], None],
) -> Deployment:
    """What is asked of every replica.

    Args:
        fingerprint: of the release that is said to be served.
        config: what users send, and the declared runtime.
        ledger: knows the release's namespace, or learns it.
        prompt_set: the representative prompts.
        namespace: replaces production's salt: `none`, `release` or a text; None for production's own.
        command: that asks, for the ledger.
        warn: told what the reader has to know and does not stop the run.

    Raises:
        UsageError: the key space is none.
        InputError: the release has no kv name.
    """
    runtime = declared_runtime(config.runtime)
    if runtime.digest is None:
        warn(UNDECLARED_WARNING)
    require_kv_name(fingerprint)
    record, is_new = resolve_namespace(fingerprint.release, runtime=runtime, ledger=ledger, command=command)
    production = config.production
    salt = salt_of(production.salt if namespace is None else namespace, namespace=record.namespace)
    if is_new and salt == record.namespace:
        warn(
            f"the namespace {record.namespace} is new to this ledger: if another ledger knows a later epoch, users "
            "send that one, and this run is about another key space (name the team's ledger with --ledger)"
        )
    return Deployment(
        release=fingerprint.release,
        namespace=record.namespace,
        runtime=runtime,
        production=production,
        salt=salt,
        prompt_set=prompt_set,
    )


class Replica:
    """One replica, ready to be asked: identified, its runtime checked, the prompts tokenised and known to fit.

    Attributes:
        observer: sends requests and accounts for hits.
        tokens: [prompts][tokens] ids by prompt id; None when the server does not tokenise.
        tree: of the token ids at the engine's block size, else of the prompts' text.
        prefixes: label of the shared prefix by prompt id.
    """

    def __init__(
        self, observer: Observer, *, deployment: Deployment, tokens: Mapping[str, tuple[int, ...]] | None
    ) -> None:
        self.observer = observer
        self.identity = observer.identity
        self.deployment = deployment
        self.tokens = tokens
        block = self.identity.capabilities.block_tokens
        self.tree: PrefixTree = (
            text_tree(deployment.prompt_set)
            if tokens is None or block is None
            else build_prefix_tree(tokens, block_tokens=block)
        )
        self.prefixes = prefix_labels(deployment.prompt_set)

    def request(
        self, prompt: Prompt, *, salt: str | None, max_tokens: int, top_logprobs: int = 0, streams: bool = False
    ) -> Request:
        """The prompt as production sends it, in a key space."""
        return production_request(
            prompt,
            production=self.deployment.production,
            model=self.identity.model,
            kind=self.identity.kind,
            salt=salt,
            max_tokens=max_tokens,
            top_logprobs=top_logprobs,
            streams=streams,
        )


async def prepare(engine: EngineClient, *, deployment: Deployment, memory: PrefixMemory, max_tokens: int) -> Replica:
    """A replica that is ready to be asked; nothing was generated yet.

    Args:
        engine: open.
        deployment: what will be asked.
        memory: what earlier runs computed.
        max_tokens: the longest generation that will be asked for.

    Raises:
        UsageError: the declared runtime contradicts the engine, or it serves another model.
        PromptTooLong: a prompt and its generation do not fit the engine's context.
        ServiceError: it did not answer properly.
    """
    identity = await engine.identify()
    require_agreement(deployment.runtime, told=identity.runtime, url=identity.url)
    observer = Observer(engine, identity=identity, namespace=deployment.namespace, memory=memory)
    tokens: dict[str, tuple[int, ...]] = {}
    for prompt in deployment.prompt_set.prompts:
        request = production_request(
            prompt,
            production=deployment.production,
            model=identity.model,
            kind=identity.kind,
            salt=None,
            max_tokens=max_tokens,
        )
        ids = await observer.tokenize(request)
        if ids is None:
            return Replica(observer, deployment=deployment, tokens=None)
        if identity.context_tokens is not None and len(ids) + max_tokens > identity.context_tokens:
            raise PromptTooLong(
                f"prompt {prompt.id!r} of {deployment.prompt_set.source} has {len(ids)} tokens, and with {max_tokens} "
                f"to generate does not fit the context of {identity.context_tokens} tokens of {identity.url}",
                hint="shorten or drop the prompt, or serve a longer context (vLLM --max-model-len, llama.cpp -c)",
            )
        tokens[prompt.id] = ids
    return Replica(observer, deployment=deployment, tokens=tokens)
