"""A server whose prefix cache never hits, and which does not say so: it computes every prompt again."""

from __future__ import annotations

from typing import Any

from tests.engines.scripted import Generation, ScriptedEngine


class NeverHits(ScriptedEngine):
    """Prefix caching is off, by an option or by a rule of the engine."""

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        self.flush()
        return super().generate(prompt, body, **more)
