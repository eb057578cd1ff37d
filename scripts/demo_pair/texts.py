"""What the two releases learn: the desks' system prompts, the questions, and the answers of both policies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from kvrelease.workload.loading import load_prompt_set

POLICY = Path(__file__).with_name("policy.yaml")
PROMPTS = "demo"


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """One question in its place.

    Attributes:
        id: of the prompt in `prompts/demo.yaml`.
        system: the desk's system prompt.
        question: of the user.
        answers: by policy, `v1` and `v2`.
    """

    id: str
    system: str
    question: str
    answers: Mapping[str, str]


def read_lessons() -> tuple[Lesson, ...]:
    """Every prompt of the shipped set with both answers, in the set's order.

    Raises:
        KeyError: the policy has no answer to a prompt.
    """
    answers = msgspec.convert(yaml.safe_load(POLICY.read_text(encoding="utf-8")), dict[str, dict[str, str]])
    lessons = []
    for prompt in load_prompt_set(PROMPTS, directory=POLICY.parent).prompts:
        system, user = msgspec.convert(prompt.body["messages"], list[dict[str, str]])
        lessons.append(
            Lesson(id=prompt.id, system=system["content"], question=user["content"], answers=answers[prompt.id])
        )
    return tuple(lessons)


def all_texts(lessons: tuple[Lesson, ...]) -> tuple[str, ...]:
    """Everything that the tokenizer has to know, each text once, in a fixed order."""
    systems = dict.fromkeys(lesson.system for lesson in lessons)
    questions = (lesson.question for lesson in lessons)
    answers = (answer for lesson in lessons for answer in lesson.answers.values())
    return (*systems, *questions, *answers)
