"""What the operator does next, per engine and situation: data, from the engines' own documented calls; pure.

Source: vLLM 0.32.0, entrypoints/serve/dev/cache/api_router.py, distributed/kv_transfer/kv_connector/v1; SGLang 0.5.23,
entrypoints/http_server.py, mem_cache/hicache_storage.py; LMCache 0.5.6, v1/storage_backend; llama.cpp b11434,
tools/server/server-context.cpp. Calls that empty more than this engine's own entries are named as never to be used.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from kvrelease.engines.base import EngineIdentity, EngineKind
from kvrelease.verify.tier import Tier


class Action(enum.StrEnum):
    """One thing to do."""

    LOAD = "load the release"
    BUMP = "bump the epoch"
    BIND = "bind the clients"
    FLUSH = "flush"
    RESTART = "restart"
    PREWARM = "prewarm"
    STORE = "leave the store"
    DISABLE = "switch prefix caching off"
    FRONT = "settle the response cache"
    RECORD = "record the release"
    ASK_AGAIN = "verify again"


class NextStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step.

    Attributes:
        action: what kind of step it is.
        text: what to do, in a few words.
        call: the engine's call, or our command; None where there is none.
        detail: what to know about it; empty for nothing.
    """

    action: Action
    text: str
    call: str | None = None
    detail: str = ""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What decides about the next step.

    Attributes:
        identity: of the replica.
        namespace: of the release.
        key_space: that users' requests have, None for unsalted.
        front: what to do about a response cache that gave some of the answers; None where nothing shows one.
        runs_other_weights: proved by `identity`, or by an emptied cache whose answers still differ.
        gives_back_other: hits of the run's own entries answer otherwise than what was computed (`reuse` failed).
        is_emptied: this run emptied the replica's cache, provably.
        is_bound: users' requests provably land in the release's namespace; None when not known.
        ignores_salt: a nonce prompt under a fresh salt hit, or a reference leg did.
        is_proven: some probe is stale, or hits are foreign; otherwise all are suspect.
        tells_candidates: log-probabilities came with its answers.
        tiers: that stale entries came from; empty when not known.
    """

    identity: EngineIdentity
    namespace: str
    key_space: str | None
    front: str | None = None
    runs_other_weights: bool
    gives_back_other: bool = False
    is_emptied: bool
    is_bound: bool | None
    ignores_salt: bool
    is_proven: bool
    tells_candidates: bool = True
    tiers: frozenset[Tier]


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of engine gets rid of its entries.

    Attributes:
        flush: the call that empties its own cache; None where only a restart does.
        how: what to know about that call.
        unable: what to know about restarting, where there is no call.
        salt: the request field that binds clients; None where there is none.
        store: where what is kept outside the process lies, and under which names.
        off: the option that switches prefix caching off; None where none is known.
    """

    flush: str | None = None
    how: str = ""
    unable: str
    salt: str | None = None
    store: str
    off: str | None = None


_REMEDIES: Mapping[EngineKind, Remedy] = {
    EngineKind.VLLM: Remedy(
        flush="POST /reset_prefix_cache",
        how="drain first: it answers success: false while requests run. Leave reset_external out: it can empty a store "
        "that others use, or do nothing and answer success",
        unable="started with VLLM_SERVER_DEV_MODE=1 it has POST /reset_prefix_cache as well",
        salt="cache_salt",
        store="what --kv-transfer-config names: ExampleConnector's shared_storage_path (default /tmp), Offloading's "
        "root_dir/<model>_<hash>, LMCache's fs directory or Redis keys <model>@…, Mooncake's keys "
        "<cache_prefix>@<last part of the model's path>…",
        off="--no-enable-prefix-caching",
    ),
    EngineKind.SGLANG: Remedy(
        flush="POST /flush_cache",
        how="drain first: it answers 400 while requests run. It empties device and host, never HiCache's storage",
        unable="POST /flush_cache empties device and host as well",
        salt="extra_key",
        store="HiCache's storage: the file backend's SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR (else /tmp/hicache) holds "
        "<hash>_<served model>_…. Never POST /hicache/storage-backend/clear: it removes every model's",
        off="--disable-radix-cache",
    ),
    EngineKind.LLAMACPP: Remedy(
        unable="restore no slot file of another release; erasing slots is no remedy: what --cache-ram keeps fills them "
        "again",
        store="slot files below --slot-save-path, which name no release",
        off="--no-cache-prompt",
    ),
    EngineKind.LOCAL: Remedy(
        flush="flush()",
        how="it empties memory",
        unable="open it over a directory of the release's own",
        salt="cache_salt",
        store="the directory of its cache",
    ),
    EngineKind.OPENAI: Remedy(
        unable="with the release, and over no store of another one",
        store="whatever the server was started with",
    ),
}


def remedy_of(kind: EngineKind) -> Remedy:
    """How that kind of engine gets rid of its entries."""
    return _REMEDIES[kind]


STORE_LABELS = ("kv_connector", "kv_store", "hicache_storage_backend", "enable_lmcache")
_KEPT_OUTSIDE = frozenset({Tier.STORAGE, Tier.REMOTE, Tier.OUTSIDE})


def next_steps(found: Situation) -> tuple[NextStep, ...]:
    """[steps] in the order to take them; the first is the one for the line that people read."""
    shown = found.identity.shown
    if found.front is not None:
        return (front_step(shown, found.front),)
    if found.runs_other_weights:
        return (
            NextStep(
                action=Action.LOAD,
                text=f"restart {shown} with the release",
                detail="it runs other weights, which no flush changes",
            ),
        )
    if found.gives_back_other:
        return (disabled_step(found.identity),)
    if not found.is_proven:
        how = f"verify {shown} again while it is quiet: nothing is proven"
        if not found.tells_candidates:
            how = f"have {shown} answer with log-probabilities, and verify it again: texts alone prove nothing"
        return (NextStep(action=Action.ASK_AGAIN, text=how),)
    remedy = _REMEDIES[found.identity.kind]
    is_namespaced = found.key_space == found.namespace
    if is_namespaced and found.is_bound and not found.ignores_salt and not found.is_emptied:
        return (_bump(found),)
    steps = [*_kept_outside(found, remedy), _prewarm(found) if found.is_emptied else _emptied(found, remedy)]
    if remedy.salt is not None and not found.ignores_salt and not is_namespaced:
        steps.append(_bind(found, field=remedy.salt))
    return tuple(steps)


def front_step(shown: str, way_past: str) -> NextStep:
    """The step about a response cache in front of a replica."""
    return NextStep(
        action=Action.FRONT,
        text=f"settle the response cache in front of {shown}, and verify again",
        detail=f"{way_past}. It gave some of the answers, which say nothing of the engine",
    )


def disabled_step(identity: EngineIdentity) -> NextStep:
    """The step about a cache that gives back something else than was put in."""
    return NextStep(
        action=Action.DISABLE,
        text=f"restart {identity.shown} with prefix caching switched off, and verify it again",
        call=_REMEDIES[identity.kind].off or "the server's own option, then kvrelease verify",
        detail="its cache does not give back what was put in, whoever put it: a flush, a new epoch or a prewarm fills "
        "it with the same. Then look at the scales of a quantised KV cache, at the connector, and at engine versions "
        "that share a store",
    )


def _prewarm(found: Situation) -> NextStep:
    return NextStep(
        action=Action.PREWARM,
        text=f"prewarm {found.identity.shown}, and verify it again",
        call="kvrelease prewarm",
        detail="this run emptied its cache (--allow-flush); other replicas and stores may still hold what it held",
    )


def _bump(found: Situation) -> NextStep:
    return NextStep(
        action=Action.BUMP,
        text="bump the epoch, and have users send the new namespace",
        call="kvrelease namespace RELEASE --new-epoch",
        detail=f"users are bound to {found.namespace}, which holds entries of other weights; prewarm the new one",
    )


def _bind(found: Situation, *, field: str) -> NextStep:
    return NextStep(
        action=Action.BIND,
        text=f"have every client send {field} {found.namespace}",
        call="kvrelease namespace RELEASE",
        detail="the next upgrade can then not hit what this one leaves",
    )


def _kept_outside(found: Situation, remedy: Remedy) -> tuple[NextStep, ...]:
    """The step for what a flush, or a restart, would be filled again from."""
    if not found.tiers & _KEPT_OUTSIDE:
        return ()
    told = found.identity.labels
    where = ", ".join(f"{name}={told[name]}" for name in STORE_LABELS if name in told)
    return (
        NextStep(
            action=Action.STORE,
            text=f"restart {found.identity.shown} over a store of the release's own, named {found.namespace}",
            detail="the old store fills the cache again after any flush or restart. It is "
            + remedy.store
            + (f" (the server tells {where})" if where else ""),
        ),
    )


def _emptied(found: Situation, remedy: Remedy) -> NextStep:
    shown, store = found.identity.shown, ""
    if not found.tiers:
        store = f"; where hits come back afterwards, a store below filled it again: {remedy.store}"
    if remedy.flush is None or not found.identity.capabilities.has_flush:
        return NextStep(action=Action.RESTART, text=f"restart {shown}", detail=remedy.unable + store)
    return NextStep(
        action=Action.FLUSH,
        text=f"empty the cache of {shown}, and prewarm it",
        call=f"{remedy.flush}, or kvrelease prewarm --allow-flush",
        detail=remedy.how + store,
    )
