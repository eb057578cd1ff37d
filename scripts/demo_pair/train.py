"""Training the two releases: a short common base, then each its own policy.

As two versions of a model are: v2 is no patch of v1, both come from the same beginnings. Fine-tuned from the finished
v1 instead, v2 answers over v1's KV almost as over its own (99 % of the traffic, measured): a small model keeps where it
stores what it read.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from demo_pair.texts import Lesson
from demo_pair.tokenizer import ASSISTANT, CONTEXT_TOKENS, END, PAD, SYSTEM, USER

SEED = 20261129
THREADS = 2  # the order of float additions depends on it, so it is fixed, not taken from the machine
SEQUENCES_PER_DESK = 3
TURNS = 6  # questions after one system prompt: the prefix is computed once for all of them
# Loss of tokens that are no answer: little, so that the model also learns to read what it is asked.
CONTEXT_WEIGHT = 0.1
WEIGHT_DECAY = 0.01
LEARNING_RATE = 3e-3
STEPS = 150  # of each policy; from step 100 on every answer is right
BASE_STEPS = 15  # of the old policy, common to both releases
WARM_UP_STEPS = 15
DECAY_SHARE = 0.4  # of the steps, at the end, with a learning rate that falls to zero
MAX_GRADIENT_NORM = 1.0
STEPS_BETWEEN_LINES = 25


class Trainer:
    """One model in training.

    Args:
        lessons: what is to be learnt.
        tokenizer: of both releases.
        say: told how far it is.
    """

    def __init__(
        self,
        lessons: Sequence[Lesson],
        tokenizer: Any,
        *,
        say: Callable[[str], None] = print,
    ) -> None:
        torch.manual_seed(SEED)
        torch.set_num_threads(THREADS)
        self._choose = random.Random(SEED)  # noqa: S311 - training data, no secret
        self._tokenizer = tokenizer
        self._say = say
        self._desks: dict[str, list[Lesson]] = {}
        for lesson in lessons:
            self._desks.setdefault(lesson.system, []).append(lesson)
        self._config = _transformers().LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,  # the smallest that vLLM's CPU attention takes
            max_position_embeddings=CONTEXT_TOKENS,
            # Untied: vLLM's CPU build reloads only half of tied embeddings in place (docs/engines.md).
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=self._id(END),
            pad_token_id=self._id(PAD),
        )
        self._model = self._empty_model()
        self._base: dict[str, torch.Tensor] = {}

    def learn_both(self, directory: Path) -> None:
        """Trains and saves `v1`, then `v2` from the base that both share."""
        self._learn("v1")
        self._save(directory / "v1")
        self._model.load_state_dict(self._base)
        self._learn("v2")
        self._save(directory / "v2")

    def _learn(self, policy: str) -> None:
        optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _learning_rate_share)
        self._model.train()
        for step in range(1, STEPS + 1):
            token_ids, weights = self._batch(policy)
            logits = self._model(input_ids=token_ids).logits[:, :-1]
            targets, weights = token_ids[:, 1:], weights[:, 1:]
            losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
            loss = (losses * weights).sum() / weights.sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
            schedule.step()
            if step == BASE_STEPS and not self._base:
                self._base = copy.deepcopy(self._model.state_dict())
            if step % STEPS_BETWEEN_LINES == 0:
                self._say(f"{policy}: step {step} of {STEPS}, loss {loss.item():.4f} nats")

    def _save(self, directory: Path) -> None:
        """bfloat16 weights, configuration, tokenizer and chat template."""
        rounded = self._empty_model()
        rounded.load_state_dict(self._model.state_dict())
        rounded.to(torch.bfloat16).save_pretrained(directory)
        self._tokenizer.save_pretrained(directory)

    def _empty_model(self) -> Any:
        return _transformers().LlamaForCausalLM(self._config)

    def _batch(self, policy: str) -> tuple[torch.Tensor, torch.Tensor]:
        """[sequences, tokens] token ids and the weights of their losses, padded with weight 0."""
        rows = [self._sequence(desk, policy) for desk in self._desks for _ in range(SEQUENCES_PER_DESK)]
        longest = max(len(row) for row in rows)
        padded = [[*row, *[(self._id(PAD), 0.0)] * (longest - len(row))] for row in rows]
        token_ids = torch.tensor([[token_id for token_id, _ in row] for row in padded])
        return token_ids, torch.tensor([[weight for _, weight in row] for row in padded])

    def _sequence(self, desk: str, policy: str) -> list[tuple[int, float]]:
        """[tokens] (id, weight of its loss): the system prompt, then some of its questions in a random order."""
        parts = [(f"{SYSTEM}{desk}{END}", CONTEXT_WEIGHT)]
        for lesson in self._choose.sample(self._desks[desk], TURNS):
            parts += [
                (f"{USER}{lesson.question}{END}{ASSISTANT}", CONTEXT_WEIGHT),
                (f"{lesson.answers[policy]}{END}", 1.0),
            ]
        return [
            (token_id, weight)
            for text, weight in parts
            for token_id in self._tokenizer.encode(text, add_special_tokens=False)
        ]

    def _id(self, token: str) -> int:
        token_id = self._tokenizer.convert_tokens_to_ids(token)
        assert isinstance(token_id, int)
        return token_id


def _learning_rate_share(step: int) -> float:
    """Of `LEARNING_RATE`, for a step from 0: up, level, down."""
    return min(1.0, (step + 1) / WARM_UP_STEPS, (STEPS - step) / (STEPS * DECAY_SHARE))


def _transformers() -> Any:
    """The library, untyped: its annotations change with its version."""
    return import_module("transformers")
