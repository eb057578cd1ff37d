"""The tokenizer of both releases: a small byte-level BPE with GPT-2's splitting, which llama.cpp knows as `gpt-2`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 768
CONTEXT_TOKENS = 1024
PAD, SYSTEM, USER, ASSISTANT, END = SPECIALS = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor -%}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif -%}"
)


def train_tokenizer(texts: Sequence[str]) -> Any:
    """A `PreTrainedTokenizerFast` of these texts; the same texts give the same tokenizer.

    Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019, section 2.2 (byte-level BPE).
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast: Any = import_module("transformers").PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
