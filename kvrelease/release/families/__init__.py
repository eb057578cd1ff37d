"""The families of architectures that have a dependency rule, one module each."""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.release.families.cohere import COHERE
from kvrelease.release.families.deepseek import DEEPSEEK
from kvrelease.release.families.exaone4 import EXAONE4
from kvrelease.release.families.falcon import FALCON
from kvrelease.release.families.family import Family
from kvrelease.release.families.gemma import GEMMA
from kvrelease.release.families.gemma3 import GEMMA3
from kvrelease.release.families.glm import GLM
from kvrelease.release.families.glm_moe import GLM_MOE
from kvrelease.release.families.gpt2 import GPT2
from kvrelease.release.families.gpt_neox import GPT_NEOX
from kvrelease.release.families.gpt_oss import GPT_OSS
from kvrelease.release.families.granite import GRANITE
from kvrelease.release.families.granite_moe import GRANITE_MOE
from kvrelease.release.families.lfm2 import LFM2
from kvrelease.release.families.llama import LLAMA
from kvrelease.release.families.mixtral import MIXTRAL
from kvrelease.release.families.olmo import OLMO
from kvrelease.release.families.olmoe import OLMOE
from kvrelease.release.families.phi import PHI
from kvrelease.release.families.phi3 import PHI3
from kvrelease.release.families.qwen3_next import QWEN3_NEXT
from kvrelease.release.families.qwen_moe import QWEN_MOE
from kvrelease.release.families.smollm3 import SMOLLM3
from kvrelease.release.families.stablelm import STABLELM
from kvrelease.release.families.starcoder2 import STARCODER2

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    COHERE,
    DEEPSEEK,
    EXAONE4,
    FALCON,
    GEMMA,
    GEMMA3,
    GLM,
    GLM_MOE,
    GPT2,
    GPT_NEOX,
    GPT_OSS,
    GRANITE,
    GRANITE_MOE,
    LFM2,
    MIXTRAL,
    OLMO,
    OLMOE,
    PHI,
    PHI3,
    QWEN3_NEXT,
    QWEN_MOE,
    SMOLLM3,
    STABLELM,
    STARCODER2,
)

FAMILY_OF_RULE: Mapping[str, Family] = {family.rule: family for family in FAMILIES}
# Behind the name of a rule: something stored beyond the model may make KV of its last hidden state.
HEAD_SUFFIX = "+head"


def family_of_rule(name: str) -> Family | None:
    """The family that a rule's name belongs to; None of `all.1`, and of one that only a newer version knows."""
    return FAMILY_OF_RULE.get(name.removesuffix(HEAD_SUFFIX))


FAMILY_OF_TYPE: Mapping[str, Family] = {model_type: family for family in FAMILIES for model_type in family.types}
