"""One release on its replicas, as `prewarm`, `record` and `verify` see it: who is asked, what, in which key space."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence

import msgspec

from kvrelease.artifacts import ReleaseRef
from kvrelease.binding.attribution import PrefixMemory
from kvrelease.binding.left_out import LeftOut
from kvrelease.binding.namespace import resolve_namespace, salt_of
from kvrelease.binding.observe import Observer
from kvrelease.binding.production import production_request
from kvrelease.binding.runtime import (
    UNDECLARED_WARNING,
    Runtime,
    declared_runtime,
    require_agreement,
    unknown_field_warnings,
)
from kvrelease.binding.salts import combined_salt
from kvrelease.binding.sisters import Sisters
from kvrelease.binding.tokenising import Tokenising, TokenTable
from kvrelease.binding.unready import Unready
from kvrelease.config import CONFIG_NAME, HOW_TO_DECLARE_A_SALT, Config, Production
from kvrelease.engines.base import EngineClient, EngineIdentity, EngineKind, Request
from kvrelease.errors import KvreleaseError, PromptTooLong, UsageError
from kvrelease.ledger.records import NamespaceRecord
from kvrelease.ledger.store import Ledger
from kvrelease.release.fingerprint import Fingerprint, require_kv_name
from kvrelease.workload.grouping import prefix_labels, text_tree
from kvrelease.workload.key_space import key_space_name
from kvrelease.workload.prefix_tree import PrefixTree
from kvrelease.workload.prompt_set import Prompt, PromptSet

UNDECLARED_SALT = (
    "nobody declared which salt users send: unsalted keys are asked, and users whose requests carry a salt meet other "
    f"ones; {HOW_TO_DECLARE_A_SALT}"
)

# Replicas prepared at once: a dead one takes a connect time-out, and 200 of them should not take 200.
PREPARED_AT_ONCE = 128


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of every replica.

    Attributes:
        release: that is said to be served.
        namespace: of that release.
        runtime: declared or undeclared.
        production: what users really send.
        salt: that production's requests carry, None for unsalted; it may be a secret.
        prompt_set: the representative prompts.
        is_salt_declared: somebody said which salt users send, or that they send none.
        weights: digest of the release's; None where nobody says.
    """

    release: ReleaseRef
    namespace: str
    runtime: Runtime
    production: Production
    salt: str | None
    prompt_set: PromptSet
    is_salt_declared: bool = True
    weights: str | None = None

    @property
    def key_space(self) -> str | None:
        """How production's key space is called wherever people read; None for unsalted."""
        return key_space_name(self.salt)

    @property
    def salts(self) -> tuple[str | None, ...]:
        """Every salt that production's requests carry: its own, also with that of each tenant."""
        tenants = (prompt.salt for prompt in self.prompt_set.prompts)
        return tuple(dict.fromkeys((self.salt, *(combined_salt(self.salt, own) for own in tenants))))


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
    runtime, record, is_new = declared_namespace(fingerprint, config=config, ledger=ledger, command=command, warn=warn)
    production = config.production
    declared = production.salt if namespace is None else namespace
    if declared is None:
        warn(UNDECLARED_SALT)
    salt = salt_of("none" if declared is None else declared, namespace=record.namespace)
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
        is_salt_declared=declared is not None,
        weights=fingerprint.digests.weights,
    )


def declared_namespace(
    fingerprint: Fingerprint, *, config: Config, ledger: Ledger, command: str, warn: Callable[[str], None]
) -> tuple[Runtime, NamespaceRecord, bool]:
    """A release's namespace under the runtime that `kvrelease.yaml` declares, and whether it was made now.

    Args:
        fingerprint: of the release.
        config: declares the runtime.
        ledger: knows the namespace, or learns it.
        command: that asks, for the ledger.
        warn: told what the reader has to know and does not stop the run.

    Raises:
        InputError: the release has no kv name.
    """
    runtime = declared_runtime(config.runtime)
    if runtime.digest is None:
        warn(UNDECLARED_WARNING)
    for warning in unknown_field_warnings(runtime.fields, source=CONFIG_NAME):
        warn(warning)
    require_kv_name(fingerprint)
    record, is_new = resolve_namespace(fingerprint.release, runtime=runtime, ledger=ledger, command=command)
    return runtime, record, is_new


class Replica:
    """One replica, ready to be asked: identified, its runtime checked, the prompts tokenised and known to fit.

    Attributes:
        observer: sends requests and accounts for hits.
        tokens: [prompts][tokens] ids by prompt id, of those that are not left out; None when the server does not
            tokenise.
        tree: of the token ids at the engine's block size, else of the prompts' text.
        prefixes: label of the shared prefix by prompt id.
        left_out: by prompt id, those that it does not take; empty where one of them ends the preparation.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        deployment: Deployment,
        tokens: Mapping[str, tuple[int, ...]] | None,
        tree: PrefixTree,
        prefixes: Mapping[str, str],
        left_out: Mapping[str, LeftOut],
    ) -> None:
        self.observer = observer
        self.identity = observer.identity
        self.deployment = deployment
        self.tokens = tokens
        self.tree = tree
        self.prefixes = prefixes
        self.left_out = left_out

    def request(
        self, prompt: Prompt, *, salt: str | None, max_tokens: int, top_logprobs: int = 0, streams: bool = False
    ) -> Request:
        """The prompt as production sends it, in a key space; its tenant's own salt, where it has one, stays in it.

        Args:
            prompt: of the set.
            salt: what names the key space, None for none: production's, another that clients may use, or a probe's.
            max_tokens: tokens to generate.
            top_logprobs: k of the top-k log-probabilities.
            streams: ask for a stream.
        """
        return production_request(
            prompt,
            production=self.deployment.production,
            model=self.identity.model,
            kind=self.identity.kind,
            salt=combined_salt(salt, prompt.salt),
            max_tokens=max_tokens,
            top_logprobs=top_logprobs,
            streams=streams,
        )


class Preparation:
    """Makes engines into replicas; what they have in common (token ids, prefix trees, labels) is made once."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        memory: PrefixMemory,
        max_tokens: int,
        leaves_out: bool = False,
        block_tokens: int | None = None,
    ) -> None:
        """Prepares for `deployment`.

        Args:
            deployment: what will be asked.
            memory: what earlier runs computed.
            max_tokens: the longest generation that will be asked for.
            leaves_out: a prompt that an engine does not take (too long, refused, no ids) is left out; else it ends the
                preparation.
            block_tokens: the block size that the user states, of engines that do not tell theirs; None for none.
        """
        self._deployment = deployment
        self._memory = memory
        self._max_tokens = max_tokens
        self._leaves_out = leaves_out
        self._block_tokens = block_tokens
        self._tokenising = Tokenising(leaves_out=leaves_out)
        self._sisters = Sisters(namespace=deployment.namespace, memory=memory)
        self._requests: dict[tuple[EngineKind, str], dict[str, Request]] = {}

    async def replica(self, engine: EngineClient) -> Replica:
        """A replica that is ready to be asked; nothing was generated yet.

        Raises:
            UsageError: the declared runtime or the stated block contradicts the engine, or it serves another model.
            PromptTooLong: a prompt and its generation do not fit the engine's context; of several that may be left out,
                none does.
            ServiceError: it did not answer properly.
        """
        deployment = self._deployment
        identity = with_stated_block(await engine.identify(), block_tokens=self._block_tokens)
        require_agreement(deployment.runtime, told=identity.runtime, url=identity.url)
        requests = self._requests_for(identity)
        table = await self._tokenising.table(engine, kind=identity.kind, model=identity.model, requests=requests)
        if identity.context_tokens is not None:
            if self._leaves_out:
                table = table.within(identity.context_tokens, max_tokens=self._max_tokens)
            else:
                self._require_room(table, identity=identity, room=identity.context_tokens)
        block = identity.capabilities.block_tokens
        return Replica(
            Observer(
                engine,
                identity=identity,
                namespace=deployment.namespace,
                memory=self._memory,
                sisters=self._sisters,
                tokens=table.by_body,
            ),
            deployment=deployment,
            tokens=table.by_prompt or None,
            tree=table.tree(block) if table.by_prompt and block is not None else self._text_tree,
            prefixes=self._prefixes,
            left_out=table.left_out,
        )

    @functools.cached_property
    def _text_tree(self) -> PrefixTree:
        return text_tree(self._deployment.prompt_set)

    @functools.cached_property
    def _prefixes(self) -> dict[str, str]:
        return prefix_labels(self._deployment.prompt_set)

    def _requests_for(self, identity: EngineIdentity) -> dict[str, Request]:
        key = (identity.kind, identity.model)
        if key not in self._requests:
            self._requests[key] = {
                prompt.id: production_request(
                    prompt,
                    production=self._deployment.production,
                    model=identity.model,
                    kind=identity.kind,
                    salt=None,
                    max_tokens=self._max_tokens,
                )
                for prompt in self._deployment.prompt_set.prompts
            }
        return self._requests[key]

    def _require_room(self, table: TokenTable, *, identity: EngineIdentity, room: int) -> None:
        for prompt_id, ids in table.by_prompt.items():
            if len(ids) + self._max_tokens > room:
                raise PromptTooLong(
                    f"prompt {prompt_id!r} of {self._deployment.prompt_set.source} has {len(ids)} tokens, and with "
                    f"{self._max_tokens} to generate does not fit the context of {room} tokens of {identity.shown}",
                    hint="shorten or drop the prompt, or serve a longer context (vLLM --max-model-len, llama.cpp -c)",
                )


def with_stated_block(identity: EngineIdentity, *, block_tokens: int | None) -> EngineIdentity:
    """The identity with the block size that the user states, where the engine does not tell its own.

    Args:
        identity: what the engine told.
        block_tokens: None where nobody states one.

    Raises:
        UsageError: the engine tells another.
    """
    told = identity.capabilities.block_tokens
    if block_tokens is None or told == block_tokens:
        return identity
    if told is not None:
        raise UsageError(
            f"--block-tokens {block_tokens}: a hit of {identity.shown} is a multiple of {told} tokens, by what it "
            "tells of itself",
            hint="leave --block-tokens out: it is for engines that do not tell theirs",
        )
    abilities = msgspec.structs.replace(identity.capabilities, block_tokens=block_tokens, is_block_stated=True)
    return msgspec.structs.replace(identity, capabilities=abilities)


async def prepare(engine: EngineClient, *, deployment: Deployment, memory: PrefixMemory, max_tokens: int) -> Replica:
    """One replica that is ready to be asked; see `Preparation.replica`."""
    return await Preparation(deployment, memory=memory, max_tokens=max_tokens).replica(engine)


async def prepare_all(
    engines: Sequence[EngineClient | Unready],
    *,
    deployment: Deployment,
    memory: PrefixMemory,
    max_tokens: int,
    leaves_out: bool = False,
    block_tokens: int | None = None,
) -> tuple[Replica | Unready, ...]:
    """Every replica, in the order given: ready to be asked, or why it cannot be.

    Replicas are prepared side by side, so that one that is dead costs the others nothing. Each distinct prompt is
    tokenised by one replica of each set that makes the same ids.

    Args:
        engines: open; those that could not be opened are passed on.
        deployment: what will be asked.
        memory: what earlier runs computed.
        max_tokens: the longest generation that will be asked for.
        leaves_out: as for `Preparation`.
        block_tokens: likewise.
    """
    preparation = Preparation(
        deployment, memory=memory, max_tokens=max_tokens, leaves_out=leaves_out, block_tokens=block_tokens
    )
    limit = asyncio.Semaphore(PREPARED_AT_ONCE)

    async def one(engine: EngineClient | Unready) -> Replica | Unready:
        if isinstance(engine, Unready):
            return engine
        async with limit:
            try:
                return await preparation.replica(engine)
            except KvreleaseError as error:
                return Unready(url=engine.url, name=engine.name, rank=engine.rank, error=error)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(engine)) for engine in engines]
    return tuple(task.result() for task in tasks)
