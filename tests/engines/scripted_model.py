"""The "model" of the scripted engine: a tokenizer, and logits that show which release computed which position.

A release is its name. A candidate's logit is a base that depends on the tokens alone, plus `strength_nats` times a
number that depends on the releases: 0.3 of it on the release that runs now, 0.7 on the mean over the context of the
releases whose keys and values are read. So for the same tokens, old keys and values under new weights (stale) give
neither the old release's numbers nor the new one's, and lie between them. Everything is a hash: no randomness.
"""

from __future__ import annotations

import collections
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence

_SENTENCE = "Yes No You cannot can return it within thirty days Opened items are not accepted under the new policy rule"
VOCABULARY = (*_SENTENCE.split(), "customer", "please", "contact", "support", "before", "sending")
BOS = 1
_FIRST_ID = 1000
_RUNNING_SHARE = 0.3


def token_ids(text: str) -> tuple[int, ...]:
    """[tokens] ids of a text: a BOS, then one per word, its blanks included. Prefixes of words keep their ids."""
    return (BOS, *(word_id(word) for word in re.findall(r"\s*\S+|\s+\Z", text)))


def word_id(word: str) -> int:
    """The id of one word; a word of the vocabulary has the same id in a prompt and when generated."""
    return _FIRST_ID + int.from_bytes(hashlib.sha256(word.strip().encode()).digest()[:3], "big")


def chat_prompt(body: Mapping[str, object]) -> str:
    """The text of a chat body, as a chat template would render it: tools, arguments, messages, generation prompt."""
    parts = [f"<|{name}|> {json.dumps(body[name], sort_keys=True)}" for name in _RENDERED if body.get(name)]
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content")
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "<image>")) for part in content)
        parts.append(f"<|{message.get('role')}|> {content}")
    if body.get("add_generation_prompt", True):
        parts.append("<|assistant|>")
    return "\n".join(parts)


_RENDERED = ("tools", "chat_template_kwargs")


def ranked(
    tokens: Sequence[int], provenance: Sequence[str], *, running: str, strength_nats: float, noise: str | None
) -> list[tuple[str, float]]:
    """[vocabulary] (token, log-probability in nats) of the next token, most probable first.

    Args:
        tokens: [context] ids.
        provenance: [context] the release that computed each position's keys and values.
        running: the release that computes now.
        strength_nats: how far releases lie apart.
        noise: a name of this very run, which adds up to 0.02 nats; None for none.
    """
    context = hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()
    shares = {release: n / len(provenance) for release, n in collections.Counter(provenance).items()}
    logits = {}
    for word in VOCABULARY:
        seen = math.fsum(share * _number(release, context, word) for release, share in shares.items())
        now = _number(running, context, word)
        shift = _RUNNING_SHARE * now + (1 - _RUNNING_SHARE) * seen
        # The square spreads the base: a few likely words and a long tail, as in language.
        base = 6.0 * _number("base", context, word) ** 2
        jitter = 0.02 * _number(noise, context, word) if noise is not None else 0.0
        logits[word] = base + strength_nats * shift + jitter
    norm = math.log(math.fsum(math.exp(value) for value in logits.values()))
    return sorted(((word, value - norm) for word, value in logits.items()), key=lambda item: (-item[1], item[0]))


def _number(*parts: str) -> float:
    """A number in [-1, 1) that depends on nothing but the parts."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**47 - 1.0
