"""Parts that many families' layers have, by the names that transformers stores them under. Pure, and frozen.

K and V are projections of the normed input of the layer; whatever comes after attention, and the query, reaches only
the layers behind.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.release.families.family import Reach

ATTENTION: Mapping[str, Reach] = {
    "self_attn.k_proj": Reach.OWN,
    "self_attn.v_proj": Reach.OWN,
    "self_attn.qkv_proj": Reach.OWN,
    "self_attn.q_proj": Reach.NEXT,
    "self_attn.o_proj": Reach.NEXT,
}
GATED_MLP: Mapping[str, Reach] = {
    "mlp.gate_proj": Reach.NEXT,
    "mlp.up_proj": Reach.NEXT,
    "mlp.gate_up_proj": Reach.NEXT,
    "mlp.down_proj": Reach.NEXT,
}
# Engines make one matrix of Q, K and V where the checkpoint has three.
FUSED_QUERY = frozenset({"self_attn.q_proj"})
