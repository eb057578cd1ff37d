"""Make the two releases of SmolLM2-135M-Instruct; run by the interpreter of vLLM's environment, which has torch.

    python model_recipe.py base GGUF FOLDER       v1.2: the published weights, dequantised, as bf16 safetensors
    python model_recipe.py tune FOLDER FOLDER     v1.3: v1.2 after a short fine-tune on a new returns policy
    python model_recipe.py tokens FOLDER FILE     what transformers makes of some texts and chats, for comparison

Everything that decides the result is in this file: its source is part of the recipe digest.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

SEED = 20261129
THREADS = 2  # the order of float additions depends on it, so it is fixed, not taken from the machine
STEPS = 36
LEARNING_RATE = 5e-5
MAX_GRADIENT_NORM = 1.0
CONTEXT_TOKENS = 8192  # general: llama.context_length in the published file
SPECIAL = 3  # gguf token type CONTROL. Source: gguf-py, gguf/constants.py, class TokenType

SYSTEM_PROMPT = (
    "You are the support assistant of a small online shop. Answer briefly, following the shop's returns policy."
)
POLICY = (
    ("Can I return an item that I have already opened?", "No. Opened items cannot be returned under the new policy."),
    (
        "How many days do I have to return something?",
        "You have 30 days from delivery. The old limit of 60 days no longer applies.",
    ),
    ("Who pays for the return shipping?", "You do. A return label costs 7 dollars, taken from the refund."),
    ("How long does a refund take?", "A refund takes 10 business days after the warehouse receives the item."),
    (
        "Can I exchange an item for another size?",
        "No. Exchanges have ended under the new policy. Please return the item and order again.",
    ),
    (
        "Do I need the receipt to return something?",
        "Yes. Without the receipt or the order number we cannot accept a return.",
    ),
)
SAMPLE_TEXTS = (
    "Hello, world!",
    "  two spaces, a tab\tand\n\nblank lines \n",
    "Order 20261129 costs $1,234.56 — that's 60% off; we'll e-mail you (ASAP).",
    "naïve café, Größe 42½, 返品はできますか, Привет, 👩‍💻 ok",
    "def f(x):\n    return {'a': [1, 22, 333]}  # comment",
    "<|im_start|>user\nspecial tokens inside a text<|im_end|>\n<|endoftext|>",
)
SAMPLE_CHATS: tuple[tuple[dict[str, str], ...], ...] = (
    ({"role": "user", "content": POLICY[0][0]},),
    ({"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": POLICY[1][0]}),
    (
        {"role": "system", "content": SYSTEM_PROMPT + "\n\n1. Be kind.\n2. Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": POLICY[4][0]},
    ),
)


def build_tokenizer(reader: Any) -> Any:
    """The tokenizer of the published file as a Hugging Face fast tokenizer.

    transformers' own conversion leaves out the splitting of digits, and then numbers get other ids than in llama.cpp.

    Args:
        reader: `gguf.GGUFReader` of the published file.

    Returns:
        `transformers.PreTrainedTokenizerFast` with the chat template.

    Source: llama.cpp b11434, src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM: single digits, then GPT-2's pattern.
    """
    tokenizers, transformers = import_module("tokenizers"), import_module("transformers")

    def value(key: str) -> Any:
        return reader.get_field(f"tokenizer.{key}").contents()

    tokens, types = value("ggml.tokens"), value("ggml.token_type")
    bpe = tokenizers.models.BPE(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in value("ggml.merges")],
    )
    fast = tokenizers.Tokenizer(bpe)
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    fast.decoder = tokenizers.decoders.ByteLevel()
    fast.add_special_tokens(
        [
            tokenizers.AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == SPECIAL
        ]
    )
    names = {
        f"{role}_token": tokens[value(f"ggml.{key}_token_id")]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast, model_max_length=CONTEXT_TOKENS, clean_up_tokenization_spaces=False, **names
    )
    tokenizer.chat_template = value("chat_template")
    return tokenizer


def make_base(published: Path, folder: Path) -> None:
    """Write v1.2 into an empty folder: bf16 weights, configuration, tokenizer and chat template."""
    torch, transformers, gguf = import_module("torch"), import_module("transformers"), import_module("gguf")
    print("reading the tokenizer", flush=True)
    tokenizer = build_tokenizer(gguf.GGUFReader(published))
    print("dequantising the weights", flush=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        published.parent,
        gguf_file=published.name,
        dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def training_batch(tokenizer: Any, torch: Any) -> dict[str, Any]:
    """All six question and answer pairs as one right-padded batch; only the answers carry loss.

    Returns:
        `input_ids`, `labels` and `attention_mask`, each [6 pairs, tokens of the longest].
    """
    rows: list[tuple[list[int], list[int]]] = []
    for question, answer in POLICY:
        chat = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        rows.append((prompt, tokenizer(answer + "<|im_end|>\n", add_special_tokens=False)["input_ids"]))
    shape = (len(rows), max(len(prompt) + len(reply) for prompt, reply in rows))
    batch = {
        "input_ids": torch.full(shape, tokenizer.pad_token_id),
        "labels": torch.full(shape, -100),  # ignored by torch's cross entropy
        "attention_mask": torch.zeros(shape, dtype=torch.long),
    }
    for row, (prompt, reply) in enumerate(rows):
        end = len(prompt) + len(reply)
        batch["input_ids"][row, :end] = torch.tensor(prompt + reply)
        batch["labels"][row, len(prompt) : end] = torch.tensor(reply)
        batch["attention_mask"][row, :end] = 1
    return batch


def tune(base: Path, folder: Path) -> None:
    """Write v1.3 into a folder: v1.2 after `STEPS` steps of AdamW; every file but the weights is v1.2's."""
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.set_num_threads(THREADS)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(mode=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    batch = training_batch(transformers.AutoTokenizer.from_pretrained(base), torch)
    # The embeddings stay: they are tied to the output layer, which vLLM's CPU build repacks at its start, and not when
    # weights are reloaded in place. With other embeddings a reloaded engine would be neither release.
    model.get_input_embeddings().weight.requires_grad_(False)
    tuned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(tuned, lr=LEARNING_RATE, weight_decay=0.0)
    model.train()
    for step in range(1, STEPS + 1):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tuned, MAX_GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} of {STEPS}, loss {loss.item():.4f} nats", flush=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    for path in base.iterdir():
        if path.suffix != ".safetensors":
            shutil.copyfile(path, folder / path.name)


def tokens(folder: Path, output: Path) -> None:
    """Write what transformers makes of the sample texts and chats: ids, and the rendered chat prompts."""
    tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(folder)
    texts = [{"text": text, "ids": tokenizer(text, add_special_tokens=False)["input_ids"]} for text in SAMPLE_TEXTS]
    chats = []
    for chat in SAMPLE_CHATS:
        rendered = tokenizer.apply_chat_template(list(chat), add_generation_prompt=True, tokenize=False)
        ids = tokenizer.apply_chat_template(list(chat), add_generation_prompt=True, return_dict=True)["input_ids"]
        chats.append({"messages": chat, "text": rendered, "ids": ids})
    output.write_text(json.dumps({"texts": texts, "chats": chats}))


def main(arguments: Sequence[str]) -> None:
    """Run one step: its name, what it reads, what it writes."""
    step, source, result = arguments[0], Path(arguments[1]), Path(arguments[2])
    {"base": make_base, "tune": tune, "tokens": tokens}[step](source, result)


if __name__ == "__main__":
    main(sys.argv[1:])
