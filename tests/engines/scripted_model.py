"""The "model" of the scripted engine: a tokenizer, and logits that show which release computed which position.

A release is its name. A candidate's logit is a base that depends on the tokens alone, plus `strength_nats` times a
number that depends on the releases: 0.3 of it on the release that runs now, 0.7 on the mean over the context of the
releases whose keys and values are read. So for the same tokens, old keys and values under new weights (stale) give
neither the old release's numbers nor the new one's, and lie between them. Everything is a hash: no randomness.
"""

from __future__ import annotations

import collections
import functools
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
# A gate asks the same few prompts a dozen times each, and hashing is most of what an answer costs.
_REMEMBERED = 4096


@functools.lru_cache(maxsize=_REMEMBERED)
def token_ids(text: str) -> tuple[int, ...]:
    """[tokens] ids of a text: a BOS, then one per word, its blanks included. Prefixes of words keep their ids."""
    return (BOS, *(word_id(word) for word in re.findall(r"\s*\S+|\s+\Z", text)))


@functools.lru_cache(maxsize=_REMEMBERED)
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
) -> tuple[tuple[str, float], ...]:
    """[vocabulary] (token, log-probability in nats) of the next token, most probable first.

    Args:
        tokens: [context] ids.
        provenance: [context] the release that computed each position's keys and values.
        running: the release that computes now.
        strength_nats: how far releases lie apart.
        noise: a name of this very run, which adds up to 0.02 nats; None for none.
    """
    computed = tuple(sorted(collections.Counter(provenance).items()))
    return _ranked(tuple(tokens), computed, running, strength_nats, noise)


@functools.lru_cache(maxsize=_REMEMBERED)
def _ranked(
    tokens: tuple[int, ...],
    computed: tuple[tuple[str, int], ...],
    running: str,
    strength_nats: float,
    noise: str | None,
) -> tuple[tuple[str, float], ...]:
    """The same, by how many positions each release `computed`."""
    context = hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()
    positions = sum(count for _, count in computed)
    shares = [(count / positions, _numbers(release, context)) for release, count in computed]
    bases, nows = _numbers("base", context), _numbers(running, context)
    noises = [0.0] * len(VOCABULARY) if noise is None else _numbers(noise, context)
    logits = []
    for place, base in enumerate(bases):
        seen = math.fsum(share * numbers[place] for share, numbers in shares)
        shift = _RUNNING_SHARE * nows[place] + (1 - _RUNNING_SHARE) * seen
        # The square spreads the base: a few likely words and a long tail, as in language.
        logits.append(6.0 * base**2 + strength_nats * shift + 0.02 * noises[place])
    norm = math.log(math.fsum(map(math.exp, logits)))
    made = ((word, value - norm) for word, value in zip(VOCABULARY, logits, strict=True))
    return tuple(sorted(made, key=lambda item: (-item[1], item[0])))


@functools.lru_cache(maxsize=_REMEMBERED)
def _numbers(name: str, context: str) -> tuple[float, ...]:
    """[vocabulary] numbers in [-1, 1) that depend on nothing but the two names and the word."""
    start = hashlib.sha256(f"{name}\0{context}\0".encode())
    found = []
    for word in VOCABULARY:
        digest = start.copy()
        digest.update(word.encode())
        found.append(int.from_bytes(digest.digest()[:6], "big") / 2**47 - 1.0)
    return tuple(found)
