"""The evidence of one real run on each kind of engine, without its probes: control, binding and cost of drawn runs."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import msgspec

from kvrelease.binding.observe import Leg
from kvrelease.verify.evidence import Evidence

# Of the real run: more than are written once more, and than there are shared prefixes. Its prompts are short ones: all
# that is kept of them is how many requests they took.
REAL_PROBES = 12
REAL_PROMPTS = "prompts/demo.yaml"
LEGS_OF_EACH = 3  # production's, the cold one and the clean hit; everything else a run sends as often for any number


def requests_of(evidence: Evidence, *, probes: int) -> int:
    """Requests of a run of so many probes, from those of a run of fewer, or more."""
    return evidence.cost.requests + (probes - len(evidence.replicas[0].probes)) * LEGS_OF_EACH


def nonce_tokens(evidence: Evidence) -> tuple[int, int]:
    """(requests, prompt tokens) of the control and the binding, which are the same for any prompts."""
    (replica,) = evidence.replicas
    legs: tuple[Leg, ...] = () if replica.control is None else replica.control.legs
    if (binding := replica.binding) is not None:
        legs = (*legs, binding.inside, binding.as_production, binding.fresh_salt)
    return len(legs), sum(leg.prompt_tokens or 0 for leg in legs)


def save_template(engine: str, evidence: Evidence, folder: Path, *, probes: int) -> None:
    """Keeps what does not change from run to run, with the requests of a run of so many probes."""
    cost = msgspec.structs.replace(evidence.cost, requests=requests_of(evidence, probes=probes))
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
