from __future__ import annotations

import struct

import blake3
import msgspec
import pytest

from kvrelease.workload.prompt_set import PromptSet
from tests.workload.builders import chat_body, prompt, prompt_set

ONE = prompt("one", chat_body("First?"), weight=3)
TWO = prompt("two", {"prompt": "Second"}, weight=1)


def test_digest_names_its_algorithm() -> None:
    algorithm, _, value = prompt_set(ONE, TWO).digest.partition(":")
    assert algorithm == "kvprompts1"
    assert len(value) == 64


def test_digest_is_what_its_description_says() -> None:
    one = b'{"body":{"messages":[{"content":"First?","role":"user"}]},"id":"one","kind":"chat","weight":3.0}'
    two = b'{"body":{"prompt":"Second"},"id":"two","kind":"completions","weight":1.0}'
    described = b"kvprompts1" + struct.pack("<Q", len(one)) + one + struct.pack("<Q", len(two)) + two
    assert prompt_set(TWO, ONE).digest == f"kvprompts1:{blake3.blake3(described).hexdigest()}"


def test_a_salt_enters_the_digest_as_a_key_of_its_own() -> None:
    one = b'{"body":{"prompt":"Second"},"id":"two","kind":"completions","salt":"t","weight":1.0}'
    described = b"kvprompts1" + struct.pack("<Q", len(one)) + one
    salted = msgspec.structs.replace(TWO, salt="t")
    assert prompt_set(salted).digest == f"kvprompts1:{blake3.blake3(described).hexdigest()}"


def test_digest_forgets_order_labels_and_file() -> None:
    moved = PromptSet(name="other", prompts=(TWO, msgspec.structs.replace(ONE, prefix="system:x")), source="elsewhere")
    assert moved.digest == prompt_set(ONE, TWO).digest


def test_digest_forgets_the_order_of_keys_in_a_body() -> None:
    turned = msgspec.structs.replace(ONE, body=dict(reversed(chat_body("First?", top_p=1).items())))
    straight = msgspec.structs.replace(ONE, body=chat_body("First?", top_p=1))
    assert prompt_set(turned).digest == prompt_set(straight).digest


@pytest.mark.parametrize(
    "changed",
    [
        msgspec.structs.replace(ONE, id="uno"),
        msgspec.structs.replace(ONE, weight=3.5),
        msgspec.structs.replace(ONE, body=chat_body("First? ")),
        msgspec.structs.replace(ONE, body=chat_body("First?", temperature=0)),
    ],
)
def test_digest_sees_every_change_of_what_is_sent(changed: object) -> None:
    assert isinstance(changed, type(ONE))
    assert prompt_set(changed, TWO).digest != prompt_set(ONE, TWO).digest


def test_shares_are_relative_weights() -> None:
    assert prompt_set(ONE, TWO).shares == {"one": 0.75, "two": 0.25}
