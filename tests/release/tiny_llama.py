"""A tiny random model in memory, for what the oracle of the families does not ask: packed weights, adapters."""

from __future__ import annotations

import warnings
from typing import Any

from tests.release.builders import config_json


def build_tiny(**changes: object) -> Any:
    """Its weights are random, as norms that are one and biases that are zero hide dependencies."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    make_config: Any = AutoConfig.for_model  # untyped, or too narrowly
    make_model: Any = AutoModelForCausalLM
    raw = config_json(torch_dtype=None, transformers_version=None, **changes)
    config = make_config(**raw)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the models are far too small for more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_model.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return model
