"""Small prompt sets for live prewarming: questions to a few desks, each desk with one system prompt."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

WORDS = (
    *("a", "customer", "may", "return", "the", "item", "within", "thirty", "days", "when", "it", "is", "unopened"),
    *("and", "receipt", "at", "hand", "answer", "every", "question", "about", "delivery", "billing", "repairs"),
    *("refunds", "orders", "accounts", "in", "plain", "words", "never", "promise", "what", "rules", "do", "not", "say"),
    *("ask", "for", "order", "number", "first", "then", "look", "up", "tell", "happens", "next", "we", "keep", "them"),
)


def write_desks(
    path: Path, *, desks: int, questions: int, system_words: int, question_words: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Writes a set in an order that tells nothing of its weights, which fall off as 1/rank; returns chats by id.

    Args:
        path: of the YAML file.
        desks: system prompts.
        questions: to each desk.
        system_words: of a system prompt; about 1.1 tokens of SmolLM2 each.
        question_words: of a question.
        seed: of the words.
    """
    source = random.Random(seed)
    systems = {f"desk-{desk}": " ".join(source.choices(WORDS, k=system_words)) for desk in range(desks)}
    prompts = [
        {
            "id": f"d{desk}q{number}",
            "weight": 1.0 / (1 + desk) / (1 + number),
            "system": f"desk-{desk}",
            "user": f"{number} " + " ".join(source.choices(WORDS, k=question_words)),
        }
        for desk in range(desks)
        for number in range(questions)
    ]
    source.shuffle(prompts)
    document = {"name": path.stem, "systems": systems, "prompts": prompts}
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return {
        str(prompt["id"]): {
            "messages": [
                {"role": "system", "content": systems[str(prompt["system"])]},
                {"role": "user", "content": prompt["user"]},
            ],
            "temperature": 0,
            "max_tokens": 1,
        }
        for prompt in prompts
    }
