"""One real run of the gate, whose control, binding and requests drawn runs are built on."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.gate.drawing import LIMITS
from benchmarks.gate.places import REPOSITORY
from benchmarks.gate.prompts import deployment
from benchmarks.gate.template import REAL_PROBES, REAL_PROMPTS
from kvrelease.engines.base import EngineClient
from kvrelease.ledger.store import Ledger
from kvrelease.verify.evidence import Evidence
from kvrelease.verify.run import observe
from kvrelease.verify.twins import Twins
from kvrelease.workload.loading import load_prompt_set


async def observed_evidence(engine: EngineClient, directory: Path) -> Evidence:
    """What `verify` observes on an engine that serves the release in a directory."""
    prompts = load_prompt_set(REAL_PROMPTS, directory=REPOSITORY)
    with tempfile.TemporaryDirectory() as scratch, Ledger(f"sqlite:///{Path(scratch) / 'ledger.db'}") as ledger:
        observed = await observe(
            [engine],
            deployment=deployment("gate", prompts, source=directory),
            ledger=ledger,
            limits=LIMITS,
            twins=Twins(),
            max_probes=REAL_PROBES,
        )
    assert not observed.faults, observed.faults
    return observed.evidence
