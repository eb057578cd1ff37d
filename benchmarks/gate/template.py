"""The evidence of one real run on each kind of engine, without its probes: control, binding and cost of drawn runs."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import msgspec

from kvrelease.binding.observe import Leg
from kvrelease.verify.evidence import Evidence

# Of the real run, which costs what it costs: more than are written once more, and one of each shared prefix.
REAL_PROBES = 12
LEGS_OF_EACH = 3  # production's, the cold one and the clean hit; everything else a run sends as often for any number


def cost_of(evidence: Evidence, *, probes: int) -> tuple[int, int]:
    """(requests, prompt tokens) of a run of so many probes, from those of a run of fewer, or more."""
    seen = evidence.replicas[0].probes
    mean_tokens = sum(probe.production[0].prompt_tokens or 0 for probe in seen) / len(seen)
    more = (probes - len(seen)) * LEGS_OF_EACH
    return evidence.cost.requests + more, evidence.cost.tokens + round(more * mean_tokens)


def save_template(engine: str, evidence: Evidence, folder: Path, *, probes: int) -> None:
    """Keeps what does not change from run to run, with the cost of a run of so many probes."""
    requests, tokens = cost_of(evidence, probes=probes)
    cost = msgspec.structs.replace(evidence.cost, requests=requests, tokens=tokens)
    folder.mkdir(parents=True, exist_ok=True)
    (replica,) = evidence.replicas
    bare = msgspec.structs.replace(replica, probes=(), residency=(), exposure=())
    control, binding = replica.control, replica.binding
    if control is not None:
        legs = (_first_token(control.legs[0]), _first_token(control.legs[1]))
        bare = msgspec.structs.replace(bare, control=msgspec.structs.replace(control, legs=legs))
    if binding is not None:
        short = {name: _first_token(getattr(binding, name)) for name in ("inside", "as_production", "fresh_salt")}
        bare = msgspec.structs.replace(bare, binding=msgspec.structs.replace(binding, **short))
    data = msgspec.json.encode(msgspec.structs.replace(evidence, replicas=(bare,), power=(), cost=cost))
    draft = folder / f".{_name(engine)}.draft"
    draft.write_bytes(lzma.compress(data, preset=9))
    draft.rename(folder / _name(engine))


def has_template(engine: str, folder: Path) -> bool:
    """Whether there is one."""
    return (folder / _name(engine)).exists()


def copy_template(engine: str, source: Path, target: Path) -> None:
    """From one folder to another."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / _name(engine), target / _name(engine))


def load_template(engine: str, folder: Path) -> Evidence:
    """The evidence of the real run on this kind of engine."""
    return msgspec.json.decode(lzma.decompress((folder / _name(engine)).read_bytes()), type=Evidence)


def _name(engine: str) -> str:
    return f"{engine}.evidence"


def _first_token(leg: Leg) -> Leg:
    seen = leg.observation
    return msgspec.structs.replace(leg, observation=msgspec.structs.replace(seen, tokens=seen.tokens[:1]))
