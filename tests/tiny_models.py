"""Tiny random releases on disk: Llama, a byte-level tokenizer, a chat template. Made without torch, in milliseconds.

Seeds make different releases with the same tokenizer: what an upgrade is to a cache.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|end|>"
SPECIALS = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", END)
CHAT_TEMPLATE = (
    "{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif -%}"
    "{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor -%}"
    "{%- if style is defined %}<|system|>{{ style }}<|end|>{% endif -%}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif -%}"
)
BYTES = 256
VOCABULARY = BYTES + len(SPECIALS)
END_ID = VOCABULARY - 1
HEAD_DIM = 16


def build_release(
    path: Path,
    *,
    seed: int,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    context_tokens: int = 512,
    eos_ids: tuple[int, ...] = (END_ID,),
    config: dict[str, object] | None = None,
) -> Path:
    """A release directory that transformers loads; one token is one byte or one of `SPECIALS`.

    Args:
        path: created.
        seed: of the weights; nothing else depends on it.
        layers: decoder layers.
        heads: query heads of `HEAD_DIM` numbers; their product is the hidden size.
        kv_heads: heads of K and V.
        context_tokens: of `max_position_embeddings`.
        eos_ids: end tokens in generation_config.json; the default is hardly ever reached by random weights.
        config: further or other keys of config.json.
    """
    path.mkdir(parents=True)
    save_file(weights(seed=seed, layers=layers, heads=heads, kv_heads=kv_heads), path / "model.safetensors")
    _write(
        path / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": heads * HEAD_DIM,
            "intermediate_size": 2 * heads * HEAD_DIM,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": HEAD_DIM,
            "max_position_embeddings": context_tokens,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "eos_token_id": END_ID,
            "dtype": "float32",
            **(config or {}),
        },
    )
    _write(path / "generation_config.json", {"eos_token_id": list(eos_ids)})
    save_tokenizer(path)
    return path


def weights(*, seed: int, layers: int, heads: int, kv_heads: int) -> dict[str, NDArray[np.float32]]:
    """Random tensors of a Llama, scaled so that logits spread over several nats."""
    random = np.random.default_rng(seed)
    hidden = heads * HEAD_DIM

    def matrix(rows: int, columns: int, *, gain: float = 1.0) -> NDArray[np.float32]:
        values: NDArray[np.float32] = (random.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype("f4")
        return values

    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, hidden, gain=np.sqrt(hidden)),
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": matrix(VOCABULARY, hidden, gain=3.0),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for name, rows, columns in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", kv_heads * HEAD_DIM, hidden),
            ("self_attn.v_proj", kv_heads * HEAD_DIM, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", 2 * hidden, hidden),
            ("mlp.up_proj", 2 * hidden, hidden),
            ("mlp.down_proj", hidden, 2 * hidden),
        ):
            tensors[f"{prefix}.{name}.weight"] = matrix(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = np.ones(hidden, np.float32)
    return tensors


def save_tokenizer(path: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> None:
    """tokenizer.json and tokenizer_config.json of a byte-level BPE without merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    assert len(alphabet) == BYTES
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": SPECIALS[0]}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    _write(path / "tokenizer_config.json", settings)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
