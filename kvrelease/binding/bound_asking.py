"""Asks a running engine whether it is bound as its settings say. Nothing is emptied, reloaded or set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from kvrelease.binding.attribution import PrefixMemory
from kvrelease.binding.bound import (
    Answer,
    BoundCheck,
    BoundFinding,
    BoundId,
    key_space_finding,
    label_finding,
    store_finding,
)
from kvrelease.binding.control import nonce_request
from kvrelease.binding.observe import Leg, Observer
from kvrelease.binding.salts import probe_salt
from kvrelease.binding.settings import binding_settings
from kvrelease.binding.settings.binding import BindingSettings, Wanted
from kvrelease.binding.target import BindingTarget
from kvrelease.config import Production
from kvrelease.engines.base import EngineClient, EngineIdentity, EngineKind, Request, Route
from kvrelease.engines.vllm_runtime import STORE_SEPARATOR
from kvrelease.errors import Refused, WrongModel

# Layers below an engine: what the engine's own cache does says nothing of theirs.
_LAYERS = (BindingTarget.LMCACHE, BindingTarget.DYNAMO, BindingTarget.AIBRIX)
_NOT_THIS_ROUTE = (400, 404, 405, 422)  # a model without a chat template, a server without the route

IdentifyAs = Callable[[str], Awaitable[EngineIdentity]]
"""Asks the same engine who it is under another served name; raises `WrongModel` where it has no such name."""


async def ask_bound(
    engine: EngineClient,
    *,
    target: BindingTarget,
    wanted: Wanted,
    production: Production,
    memory: PrefixMemory,
    identify_as: IdentifyAs,
) -> BoundCheck:
    """What an engine tells of each setting.

    Args:
        engine: to ask; three short requests are sent to it, and fill three blocks in each of two key spaces.
        target: whose settings they are.
        wanted: what was to be bound.
        production: fields that users' requests have besides.
        memory: of earlier runs' prefixes; it is read.
        identify_as: for the question whether it also answers to the namespace.

    Raises:
        PromptTooLong: two blocks do not fit the engine's context.
        ServiceError: it did not answer properly.
    """
    identity = await engine.identify()
    settings = binding_settings(target, wanted)
    observer = Observer(engine, identity=identity, namespace=wanted.namespace, memory=memory)
    legs = await _three_legs(observer, target=target, wanted=wanted, production=production) if settings.body else ()
    findings = [_key_space(legs), *_label(identity, legs, settings, namespace=wanted.namespace)]
    if wanted.namespace in _served_names(settings):
        findings.append(await _served_name(wanted.namespace, identify_as=identify_as))
    findings.append(await _store(engine, identity, target=target, wanted=wanted, settings=settings))
    if seed := settings.env.get("PYTHONHASHSEED"):
        findings.append(
            BoundFinding(
                id=BoundId.HASH_ROOT,
                answer=Answer.UNKNOWN,
                detail=f"no route tells the environment: look for PYTHONHASHSEED={seed} where the engine is started",
                decides=False,
            )
        )
    return BoundCheck(url=identity.shown, engine=str(identity.kind), version=identity.version, findings=tuple(findings))


async def _three_legs(
    observer: Observer, *, target: BindingTarget, wanted: Wanted, production: Production
) -> tuple[Leg, ...]:
    """One unique prompt twice with the settings' own fields, and once with those of a namespace that nobody used."""
    fresh = msgspec.structs.replace(wanted, namespace=probe_salt("bound"))
    bodies = [binding_settings(target, one).body for one in (wanted, wanted, fresh)]
    try:
        request = await _request(observer, Route.CHAT, production=production)
        first = await observer.observe(_with(request, bodies[0]))
    except Refused as error:
        if error.status not in _NOT_THIS_ROUTE or target is BindingTarget.TENSORRT_LLM:  # whose chats alone take salts
            raise
        request = await _request(observer, Route.COMPLETIONS, production=production)
        first = await observer.observe(_with(request, bodies[0]))
    return first, *[await observer.observe(_with(request, body)) for body in bodies[1:]]


async def _request(observer: Observer, route: Route, *, production: Production) -> Request:
    model = production.model or observer.identity.model
    return await nonce_request(observer, route=route, production=production, model=model, salt=None)


def _with(request: Request, fields: dict[str, object]) -> Request:
    return msgspec.structs.replace(request, body=request.body | fields)


def _key_space(legs: tuple[Leg, ...]) -> BoundFinding:
    if not legs:
        detail = "this engine's requests cannot choose a key space: what separates releases is a process of their own"
        return BoundFinding(id=BoundId.KEY_SPACE, answer=Answer.UNKNOWN, detail=detail)
    first, again, fresh = (leg.hits_mostly for leg in legs)
    shown = ", ".join(f"{_count(leg.cached_tokens)} of {_count(leg.prompt_tokens)}" for leg in legs)
    return key_space_finding(first=first, again=again, fresh=fresh, shown=f"{shown} tokens")


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else str(tokens)


def _label(
    identity: EngineIdentity, legs: tuple[Leg, ...], settings: BindingSettings, *, namespace: str
) -> list[BoundFinding]:
    for flag, label, told in (
        ("--fingerprint-value", "system_fingerprint", legs[-1].observation.system_fingerprint if legs else None),
        ("--weight-version", "weight_version", identity.labels.get("weight_version")),
        ("--alias", "model_alias", identity.labels.get("model_alias")),
    ):
        if flag in settings.flags:
            return [label_finding(told, namespace=namespace, label=label)]
    return []


def _served_names(settings: BindingSettings) -> tuple[str, ...]:
    flags = settings.flags
    return flags[flags.index("--served-model-name") + 1 :] if "--served-model-name" in flags else ()


async def _served_name(namespace: str, *, identify_as: IdentifyAs) -> BoundFinding:
    try:
        labels = (await identify_as(namespace)).labels
    except WrongModel:
        answer, detail = Answer.NO, "the engine does not list the namespace among its names (--served-model-name)"
    else:
        # A gateway that lists no models lets every name pass unchecked, and then has no label of one either.
        is_listed = "owned_by" in labels
        answer = Answer.YES if is_listed else Answer.UNKNOWN
        detail = "the namespace is listed as a name" if is_listed else "the server does not list its models"
    return BoundFinding(id=BoundId.SERVED_NAME, answer=answer, detail=detail)


async def _store(
    engine: EngineClient,
    identity: EngineIdentity,
    *,
    target: BindingTarget,
    wanted: Wanted,
    settings: BindingSettings,
) -> BoundFinding:
    """Whether a store below is the namespace's own, or there is none."""
    connector = identity.labels.get("kv_connector") or identity.labels.get("hicache_storage_backend")
    if connector is not None:
        places = identity.labels.get("kv_store")
        listed = () if places is None else tuple(places.split(STORE_SEPARATOR))
        names = (wanted.namespace, *settings.prefixes.values())
        return store_finding(connector=connector, places=listed, names=names)
    answer = Answer.UNKNOWN
    if target in _LAYERS:
        detail = "no route tells whether the layer below honours these settings: kvrelease verify on a restarted engine"
    elif await _has_no_store(engine, identity):
        answer, detail = Answer.YES, "no store outside the process is in use"
    else:
        detail = "the engine does not tell whether it has a store outside the process"
    return BoundFinding(id=BoundId.STORE, answer=answer, detail=detail)


async def _has_no_store(engine: EngineClient, identity: EngineIdentity) -> bool:
    match identity.kind:
        case EngineKind.SGLANG:
            return not identity.capabilities.cache_outlives_process
        case EngineKind.VLLM:
            if identity.capabilities.has_flush:  # development mode, which tells the connector where there is one
                return True
            # Without a connector nothing is ever looked up outside; this run's own requests were looked up.
            counters = await engine.counters()
            return counters is not None and counters.queried_tokens > 0 and counters.external_queried_tokens == 0
        case _:
            return False
