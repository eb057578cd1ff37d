"""What decoder layers with experts share: names of their parts, and whose KV each touches. Pure, and frozen with rules.

Names are those of checkpoints, one tensor for each expert as they are published, and stacked ones as some programs save
them. Sources: transformers 5.24.0, conversion_mapping.py (`mixtral`, `qwen2_moe`), integrations/mxfp4.py and
finegrained_fp8.py (`FP8Experts`); vllm 0.32.0, model_executor/layers/fused_moe and model_executor/models/gpt_oss.py
(`hf_to_vllm_mapper`).
"""

from __future__ import annotations

from kvrelease.release.families.family import Reach
from kvrelease.release.families.pretrained import HARMLESS_KEYS

# The loss that balances experts in training, and whether its terms are returned.
HARMLESS_OF_EXPERTS = HARMLESS_KEYS | {"output_router_logits", "router_aux_loss_coef"}

# What is stored beside stacked experts, in front of it the stack's own name: biases, MXFP4, FP8.
_OF_STACKS = ("", "_bias", "_blocks", "_scales", "_scale_inv", "_activation_scale")
# Where the stack is a module: Quark.
_OF_STACKED_MODULES = (".weight", ".bias", ".weight_scale", ".input_scale")


def separate_experts(block: str, *names: str) -> dict[str, Reach]:
    """The projections of experts that are stored one by one, under these names."""
    return {f"{block}.experts.*.{name}": Reach.NEXT for name in names}


def stacked_experts(block: str) -> dict[str, Reach]:
    """The tensors of experts that are stored as one stack for each projection."""
    suffixes = (*_OF_STACKS, *_OF_STACKED_MODULES)
    return {
        f"{block}.experts.{name}{suffix}": Reach.NEXT for name in ("gate_up_proj", "down_proj") for suffix in suffixes
    }
