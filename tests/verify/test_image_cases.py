"""Public reports of caches that mix up images (docs/cases.md, "Verifying"), on a scripted server that sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from kvrelease.verify.checks import CheckId
from kvrelease.verify.twins import Twins
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet
from tests.engines.scripted import Generation, ScriptedEngine
from tests.verify.deployments import deployment, question, recorded, system_prompt, verified
from tests.verify.scenarios.servers import LIMITS
from tests.verify.scenarios.verdicts import assert_fails, assert_passes, says


def about(image: str) -> Prompt:
    """One question about an image; nothing but the image differs between them."""
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}]
    return Prompt(
        id=image,
        weight=1.0,
        kind=PromptKind.CHAT,
        body={
            "messages": [
                {"role": "system", "content": system_prompt("photos", words=20)},
                {"role": "user", "content": [*parts, {"type": "text", "text": question(0)}]},
            ]
        },
        prefix="photos",
    )


ALBUM = PromptSet(name="album", source="album.yaml", prompts=tuple(about(image) for image in ("A", "B", "C", "D")))
ASKED = deployment(prompt_set=ALBUM)


class Seeing(ScriptedEngine):
    """A model that sees images, whose encoder's output depends on its weights.

    Args:
        tells_images_apart: whether block keys have the whole hash of an image; False stands for one cut to 16 bits.
        settings: of `ScriptedEngine`.

    Attributes:
        encoded: the encoder's cache, from image to the release that encoded it; no reset of prefixes empties it.
    """

    def __init__(self, *, tells_images_apart: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.tells_images_apart = tells_images_apart
        self.encoded: dict[str, str] = {}
        self._seen_at: dict[tuple[str | None, tuple[int, ...]], str] = {}

    def generate(self, prompt: Sequence[int], body: dict[str, Any]) -> Generation:
        content = body["messages"][-1]["content"]
        image = content[0]["image_url"]["url"] if isinstance(content, list) else ""
        keyed = body
        if image and self.tells_images_apart:
            keyed = body | {"cache_salt": f"{body.get('cache_salt')} {image}"}
        made = super().generate(prompt, keyed)
        if image:
            seen = f"{image} by {self.encoded.setdefault(image, self.release)}"
            entry = (keyed.get("cache_salt"), tuple(prompt))
            if made.cached:  # the image lies in the blocks that were hit
                seen = self._seen_at.get(entry, seen)
            else:
                self._seen_at.setdefault(entry, seen)
            made.tops = [
                sorted(((word, nats + _number(seen, word)) for word, nats in top), key=lambda item: -item[1])
                for top in made.tops
            ]
            made.words = [top[0][0] for top in made.tops]
        return made

    def flush(self) -> None:
        super().flush()
        self._seen_at.clear()


def _number(*parts: str) -> float:
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**46 - 2.0


def test_a31_an_image_described_as_another_one() -> None:
    """https://github.com/LMCache/LMCache/issues/3301, https://github.com/LMCache/LMCache/issues/4086.

    Also https://github.com/LMCache/LMCache/pull/4783: the hash of an image was cut to 16 bits in the key. Prompts that
    differ in their images alone have equal tokens: only answers tell.
    """
    with Seeing(release="new", tells_images_apart=False) as engine:
        mixed = verified(engine, deployed=ASKED, limits=LIMITS)
        assert_fails(mixed, CheckId.CONSISTENCY)
    with Seeing(release="new") as engine:
        assert_passes(verified(engine, deployed=ASKED, limits=LIMITS))


def test_a16_what_an_encoder_kept_of_the_old_weights_is_in_both_kinds_of_legs() -> None:
    """https://github.com/vllm-project/vllm/issues/44939: `/reset_prefix_cache` leaves the encoder's cache as it is."""
    with Seeing(release="new") as staging:
        golden = recorded(staging, deployed=ASKED)
    with Seeing(release="old") as engine:
        recorded(engine, deployed=ASKED)
        engine.reload("new", reset=True)
        unproven = verified(engine, deployed=ASKED, limits=LIMITS)
        assert_passes(unproven)
        assert "identity unproven" in unproven.reason
        engine.flush()
        stale = verified(engine, deployed=ASKED, limits=LIMITS, twins=Twins(golden=golden))
        assert_fails(stale, CheckId.IDENTITY)
        engine.encoded.clear()
        engine.flush()
        clean = verified(engine, deployed=ASKED, limits=LIMITS, twins=Twins(golden=golden))
        assert_passes(clean)
        assert says(clean, CheckId.IDENTITY).startswith("pass")
