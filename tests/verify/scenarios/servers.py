"""What is asked of scripted servers: one desk, four questions, and the least claim that four probes support."""

from __future__ import annotations

import msgspec

from kvrelease.binding.deployment import Deployment
from kvrelease.config import Production
from kvrelease.verify.evidence import Limits
from tests.verify.deployments import deployment, prompts

# Four clean probes prove less than 53 %.
LIMITS = Limits(stale_below=0.53)
DESK = prompts(per_desk=4, desks=("returns",), words=30)
UNSALTED = deployment(prompt_set=DESK)
SALTED = deployment(salt="release", prompt_set=DESK)
NAMESPACE = SALTED.namespace


def with_body(deployed: Deployment, **fields: str) -> Deployment:
    """The same, where production's requests carry these fields too."""
    return msgspec.structs.replace(deployed, production=Production(body=dict(fields)))
