"""Write a release of the demo as GGUF; run by the interpreter of vLLM's environment, which has gguf and torch.

    python write_gguf.py DIRECTORY FILE

llama.cpp's own converter refuses tokenizers that it has no hash of; the demo's is a byte-level BPE with GPT-2's
splitting, which llama.cpp calls `gpt-2`.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def write(release: Path, target: Path) -> None:
    """Writes one Llama in float32.

    Source: llama.cpp b11434, conversion/llama.py (`permute`: rotary pairs side by side), gguf-py/gguf/constants.py.
    """
    gguf, load_file = import_module("gguf"), import_module("safetensors.torch").load_file
    config = json.loads((release / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_tokenizer(writer, gguf, release, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(release / "model.safetensors").items():
        values = tensor.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = permuted(values, heads if "q_proj" in name else kv_heads)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: Any, gguf: Any, release: Path, config: dict[str, Any]) -> None:
    content = json.loads((release / "tokenizer.json").read_text())
    ids = {**content["model"]["vocab"], **{token["content"]: token["id"] for token in content["added_tokens"]}}
    special = {token["id"] for token in content["added_tokens"]}
    tokens = sorted(ids, key=lambda token: int(ids[token]))
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in content["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL for number in range(len(tokens))]
    )
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((release / "chat_template.jinja").read_text())


def permuted(values: Any, heads: int) -> Any:
    """Rows of a projection with the halves of each head interleaved, as llama.cpp rotates them."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
