"""Evidence as pure values: what a replica showed, without a replica."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvrelease.artifacts import ReleaseRef
from kvrelease.binding.observe import Leg, Witness
from kvrelease.engines.base import (
    Capabilities,
    EngineIdentity,
    EngineKind,
    GeneratedToken,
    Observation,
    TopLogprob,
)
from kvrelease.verify.evidence import (
    BindingEvidence,
    ControlEvidence,
    Cost,
    Evidence,
    Isolation,
    Limits,
    ProbeEvidence,
    Repeats,
    ReplicaEvidence,
)
from kvrelease.verify.repeats import REPEATS

NAMESPACE = "kv1-new-undeclared-e0"
URL = "http://one:8000"
PROMPT_TOKENS = 200
CACHED_TOKENS = 192

# Twenty candidates, half a nat apart, but for two with a finer gap: the step of these "logits" is 0.125.
BASE = (*(-0.5 - 0.5 * rank for rank in range(19)), -9.625)


def token(shift: Sequence[float] | float = 0.0, *, text: str = "a", base: Sequence[float] = BASE) -> GeneratedToken:
    """A generated token whose candidates are moved by `shift` nats, each or all but every second one."""
    shifts = list(shift) if isinstance(shift, Sequence) else [shift * (index % 2) for index in range(len(base))]
    top = [
        TopLogprob(token=f"t{rank}", logprob=value + by)
        for rank, (value, by) in enumerate(zip(base, shifts, strict=True))
    ]
    return GeneratedToken(token=text, logprob=top[0].logprob, top=tuple(top))


def observation(
    shift: Sequence[float] | float = 0.0, *, texts: Sequence[str] = ("a", "b", "c"), logprobs: bool = True
) -> Observation:
    """An answer; `shift` moves the first token's candidates."""
    tokens = (token(shift, text=texts[0]), *(token(text=text) for text in texts[1:])) if texts and logprobs else ()
    return Observation(text=" ".join(texts), tokens=tokens, prompt_tokens=PROMPT_TOKENS, total_s=0.1)


def leg(
    shift: Sequence[float] | float = 0.0,
    *,
    cached: int | None = CACHED_TOKENS,
    foreign: int | None = 0,
    salt: str | None = None,
    seen: Observation | None = None,
) -> Leg:
    return Leg(
        key_space=salt,
        observation=seen or observation(shift),
        prompt_tokens=PROMPT_TOKENS,
        cacheable_tokens=CACHED_TOKENS,
        cached_tokens=cached,
        foreign_tokens=None if cached is None else foreign,
        witness=Witness.NOBODY if cached is None else Witness.USAGE,
    )


def probe(
    name: str = "p0",
    *,
    production: Sequence[Leg] = (),
    cold: Leg | None = None,
    clean: Sequence[Leg] | None = None,
    repeats: Repeats | None = None,
    prefix: str = "desk",
) -> ProbeEvidence:
    """A probe that is clean unless told otherwise."""
    return ProbeEvidence(
        id=name,
        prefix=prefix,
        weight=1.0,
        production=tuple(production) or (leg(),),
        cold=leg(cached=0) if cold is None else cold,
        clean=(leg(), leg()) if clean is None else tuple(clean),
        repeats=repeats or Repeats(),
    )


def repeats(*production: Leg, clean: Sequence[Leg] | None = None) -> Repeats:
    """Fresh legs; clean ones as many, and like the first clean hit, unless told otherwise."""
    return Repeats(production=production, clean=tuple(leg() for _ in production) if clean is None else tuple(clean))


def stale_probe(
    name: str = "s", shift: Sequence[float] | float = 0.6, *, prefix: str = "desk", legs: int = REPEATS
) -> ProbeEvidence:
    """A probe whose every production leg is moved by `shift`."""
    return probe(name, production=[leg(shift)], prefix=prefix, repeats=repeats(*(leg(shift) for _ in range(legs))))


def clean_probes(count: int = 12) -> tuple[ProbeEvidence, ...]:
    return tuple(probe(f"p{number}", prefix=f"desk{number % 3}") for number in range(count))


CONTROL = ControlEvidence(legs=(leg(cached=0), leg()), counted_hits=float(CACHED_TOKENS))
BOUND = BindingEvidence(inside=leg(cached=0), as_production=leg(), fresh_salt=leg(cached=0))


def identity(
    url: str = URL, *, kind: EngineKind = EngineKind.VLLM, has_salt: bool = True, heals: bool = False
) -> EngineIdentity:
    return EngineIdentity(
        kind=kind,
        url=url,
        version="0.32.0",
        model="m",
        context_tokens=4096,
        process="started:1",
        capabilities=Capabilities(
            has_salt=has_salt, has_bypass=True, has_tokenize=True, reference_heals=heals, block_tokens=16
        ),
    )


def replica(
    probes: Iterable[ProbeEvidence] | None = None,
    *,
    url: str = URL,
    is_fresh: bool | None = False,
    isolation: Isolation = Isolation.FRESH_SALT,
    control: ControlEvidence | None = CONTROL,
    binding: BindingEvidence | None = BOUND,
    who: EngineIdentity | None = None,
    reference: EngineIdentity | None = None,
) -> ReplicaEvidence:
    """A replica that passes unless told otherwise."""
    return ReplicaEvidence(
        identity=who or identity(url),
        is_fresh=is_fresh,
        isolation=isolation,
        probes=clean_probes() if probes is None else tuple(probes),
        control=control,
        binding=binding,
        reference=reference,
    )


def evidence(
    *replicas: ReplicaEvidence,
    salt: str | None = NAMESPACE,
    limits: Limits | None = None,
    skipped: tuple[str, ...] = (),
    interrupted: bool = False,
) -> Evidence:
    """A run that passes unless told otherwise."""
    return Evidence(
        release=ReleaseRef(name="new", version=None, source="/models/new", kv_name="kv1-new"),
        namespace=NAMESPACE,
        production_salt=salt,
        prompt_set="kvprompts1:00",
        population=12,
        skipped=skipped,
        limits=limits or Limits(stale_below=0.25),
        replicas=replicas or (replica(),),
        cost=Cost(requests=1, retries=0, tokens=1, seconds=1.0),
        interrupted=interrupted,
    )
