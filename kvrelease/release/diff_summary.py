"""The first line of a diff: a sentence for whoever decides about the upgrade. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelease.release.checkpoint import listed
from kvrelease.release.comparison import AdapterChanges, TensorChanges
from kvrelease.release.diff_record import ConfigChange, KvImpact, KvStatus
from kvrelease.release.kv_reasons import all_names, count_of


def summarise(
    changed: Sequence[str],
    unknown: Sequence[str],
    tensors: TensorChanges,
    config: Sequence[ConfigChange],
    kv: KvImpact,
    *,
    adapters: AdapterChanges,
) -> str:
    """One sentence that says what happens to old KV, and what changed."""
    what = []
    if names := all_names(tensors):
        what.append(count_of(len(names), "tensor"))
    elif "weights" in changed:
        what.append("the weights")
    if config:
        what.append(count_of(len(config), "configuration key"))
    words = {"tokenizer": "the tokenizer", "template": "the chat template", "generation": "the generation defaults"}
    what += [word for name, word in words.items() if name in changed]
    if adapters.count:
        what.append(count_of(adapters.count, "adapter"))
    unchanged = "no change was seen" if unknown else "nothing that counts changed"
    changes = f"{', '.join(what)} changed" if what else unchanged
    match kv.status:
        case KvStatus.VALID:
            return f"Old KV stays valid in every layer: {changes}."
        case KvStatus.INVALID if "kv" not in changed:
            return f"Old KV is invalid for the adapters {listed(adapters.changed)}, and valid without them: {changes}."
        case KvStatus.INVALID:
            kept = f" (the first {count_of(kv.valid_layers, 'layer')} would still agree)" if kv.valid_layers else ""
            return f"Old KV is invalid from layer {kv.first_invalid_layer} on{kept}: {changes}."
        case KvStatus.UNKNOWN:
            return f"Whether old KV is valid is unknown, so treat it as invalid: {kv.reasons[0]}; {changes}."
