"""A scripted server whose hits answer otherwise than what it computes, as other kernels or a broken cache make them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from tests.engines.scripted import Generation, ScriptedEngine


class HitPath(ScriptedEngine):
    """Moves each candidate of an answer that hit, always the same way for one prompt.

    Args:
        shift_nats: the most by which a candidate moves.
        settings: of `ScriptedEngine`.
    """

    def __init__(self, *, shift_nats: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.shift_nats = shift_nats

    def generate(self, prompt: Sequence[int], body: dict[str, Any]) -> Generation:
        made = super().generate(prompt, body)
        if made.cached:
            made.tops = [
                sorted(
                    ((word, nats + self.shift_nats * _number(prompt, place, word)) for word, nats in top),
                    key=lambda item: -item[1],
                )
                for place, top in enumerate(made.tops)
            ]
            made.words = [top[0][0] for top in made.tops]
        return made


def _number(prompt: Sequence[int], place: int, word: str) -> float:
    """A number in [-1, 1) that depends on nothing but these."""
    digest = hashlib.sha256(f"{list(prompt)} {place} {word}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**47 - 1.0
