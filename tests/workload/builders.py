"""Prompts for these tests, and the code that reads a prompt set from text."""

from __future__ import annotations

from pathlib import Path

from kvrelease.artifacts import JsonObject
from kvrelease.workload.body import check_body
from kvrelease.workload.loading import load_prompt_set
from kvrelease.workload.place import Place
from kvrelease.workload.prompt_set import Prompt, PromptSet

PLACE = Place(source="here.yaml")


def chat_body(question: str, *, system: str | None = None, **fields: object) -> JsonObject:
    opening = [{"role": "system", "content": system}] if system is not None else []
    return {"messages": [*opening, {"role": "user", "content": question}], **fields}


def prompt(
    prompt_id: str, body: JsonObject, *, weight: float = 1.0, prefix: str | None = None, salt: str | None = None
) -> Prompt:
    kind = check_body(body, place=PLACE)
    return Prompt(id=prompt_id, weight=weight, kind=kind, body=body, prefix=prefix, salt=salt)


def prompt_set(*prompts: Prompt) -> PromptSet:
    return PromptSet(name="here", prompts=prompts, source="here.yaml")


def load_text(directory: Path, text: str, *, name: str = "set.yaml") -> PromptSet:
    (directory / name).write_bytes(text.encode())
    return load_prompt_set(name, directory=directory)
