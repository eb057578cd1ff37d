"""Parts that many families' layers have, by the names that transformers stores them under. Pure, and frozen.

K and V are projections of the normed input of the layer; whatever comes after attention, and the query, reaches only
the layers behind.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.release.families.family import Reach

# A layer that normalises before attention and before its MLP or experts.
NORMS: Mapping[str, Reach] = {"input_layernorm": Reach.OWN, "post_attention_layernorm": Reach.NEXT}
QK_NORMS: Mapping[str, Reach] = {"self_attn.k_norm": Reach.OWN, "self_attn.q_norm": Reach.NEXT}
# The MLP's part of a layer that normalises before and after each of its halves.
SANDWICH_NORMS: Mapping[str, Reach] = {
    "pre_feedforward_layernorm": Reach.NEXT,
    "post_feedforward_layernorm": Reach.NEXT,
}
# A layer that normalises after each of its halves, and not before: K and V are made of the layer's input itself.
POST_NORMS: Mapping[str, Reach] = {
    "post_attention_layernorm": Reach.NEXT,
    "post_feedforward_layernorm": Reach.NEXT,
}
ATTENTION: Mapping[str, Reach] = {
    "self_attn.k_proj": Reach.OWN,
    "self_attn.v_proj": Reach.OWN,
    "self_attn.qkv_proj": Reach.OWN,
    "self_attn.q_proj": Reach.NEXT,
    "self_attn.o_proj": Reach.NEXT,
}
# Engines make one matrix of Q, K and V where the checkpoint has three.
FUSED_QUERY = frozenset({"self_attn.q_proj"})


def gated_mlp(block: str = "mlp") -> dict[str, Reach]:
    """The projections of a gated MLP: the one of a dense layer, or one that serves every token beside the experts."""
    return {f"{block}.{name}": Reach.NEXT for name in ("gate_proj", "up_proj", "down_proj", "gate_up_proj")}
