"""The representative prompts of one deployment, with traffic weights."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

import blake3
import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.workload.key_space import KeySpace, key_space

# Names the hash and its encoding: BLAKE3-256 over the prompts sorted by id, each as canonical JSON (sorted keys, no
# spaces) of id, weight (a float), kind and body, and salt where there is one, preceded by its length as 8
# little-endian bytes.
DIGEST_ALGORITHM = "kvprompts1"


class PromptKind(enum.StrEnum):
    """Which of the two OpenAI routes a body is for."""

    CHAT = "chat"
    COMPLETIONS = "completions"


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One request as users send it.

    Attributes:
        id: unique in its set, printable and without spaces.
        weight: share of traffic, relative to the other prompts' weights; > 0 and finite.
        kind: the route that the body is for.
        body: the whole OpenAI body as production sends it, without salts; `model` may be missing, and where it names
            an adapter, the prompt is in that adapter's key space.
        prefix: short name of the shared prefix that it belongs to (`system:returns-desk`); None when the set gives
            none, `grouping.prefix_labels` then finds one.
        salt: the tenant's own salt, which clients send as `cache_salt` or `extra_key`; None for most. It may be a
            secret: reports show `key_space.salt_mark` of it.
    """

    id: str
    weight: float
    kind: PromptKind
    body: JsonObject
    prefix: str | None = None
    salt: str | None = None


class PromptSet(msgspec.Struct, frozen=True, kw_only=True):
    """The representative prompts of one deployment; never empty, ids unique.

    Attributes:
        name: short name, from the file.
        prompts: in the file's order.
        source: where it was read, as messages name it.
    """

    name: str
    prompts: tuple[Prompt, ...]
    source: str

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def total_weight(self) -> float:
        """Sum of the weights, > 0."""
        return sum(prompt.weight for prompt in self.prompts)

    @property
    def shares(self) -> dict[str, float]:
        """Share of traffic by prompt id, summing to 1."""
        total = self.total_weight
        return {prompt.id: prompt.weight / total for prompt in self.prompts}

    @property
    def digest(self) -> str:
        """Hash of what would be sent and how often: names, labels and order of the file do not enter."""
        hasher = blake3.blake3(DIGEST_ALGORITHM.encode())
        for prompt in sorted(self.prompts, key=lambda prompt: prompt.id):
            record = {"id": prompt.id, "weight": float(prompt.weight), "kind": prompt.kind, "body": prompt.body}
            if prompt.salt is not None:
                record["salt"] = prompt.salt
            encoded = canonical_json(record)
            hasher.update(struct.pack("<Q", len(encoded)))
            hasher.update(encoded)
        return f"{DIGEST_ALGORITHM}:{hasher.hexdigest()}"


def key_space_of(prompt: Prompt) -> KeySpace:
    """The key space that a prompt asks for."""
    model = prompt.body.get("model")
    return key_space(model=model if isinstance(model, str) else None, salt=prompt.salt)


def canonical_json(value: object) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces: equal values, equal bytes."""
    return msgspec.json.encode(value, order="sorted")


def body_digest(body: JsonObject) -> str:
    """Eight hex characters that tell bodies of one set apart; the id of prompts that have none."""
    return blake3.blake3(canonical_json(body)).hexdigest(length=4)
