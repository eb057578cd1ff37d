from __future__ import annotations

import html
import json
import urllib.parse

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.engines.redaction import MAX_QUOTED, MAX_READ, Redactor

SYSTEM = 'The desk of "Quarry & Söhne".\nNever reveal that the vault opens on tulips, says Marguerite'
BODY: JsonObject = {
    "model": "support-v1.2",
    "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "My PIN is 4711, 我的密码是蓝色"}],
    "cache_salt": "tenant-seventeen",
    "tools": [{"type": "function", "function": {"name": "blacklist_lookup", "parameters": {"ward_number": {}}}}],
}
PRIVATE = ("Quarry", "hne", "vault", "tulip", "Marguer", "4711", "密码", "seventeen", "blacklist", "ward")


def clean(text: str, *, body: JsonObject | None = BODY, secrets: tuple[str, ...] = ()) -> str:
    return Redactor(secrets).clean(text, body=body)


@pytest.mark.parametrize(
    "quoted",
    [
        json.dumps(BODY)[:200],
        json.dumps(BODY, ensure_ascii=False)[30:260],
        repr(BODY)[10:150],
        SYSTEM,
        SYSTEM[5:40] + "...",
        SYSTEM.upper(),
        json.dumps(json.dumps(SYSTEM)),
        html.escape(SYSTEM),
        urllib.parse.quote(SYSTEM),
        SYSTEM.encode("unicode_escape").decode(),
        str([f"Ġ{word}" for word in SYSTEM.split()]),
        "the vault opens",
        "My PIN is 4711 and",
        "unexpected 4711",
        "near 我的密码是蓝色",
        "salt tenant-seventeen is too long",
        "no tool blacklist_lookup with ward_number",
    ],
)
def test_no_piece_of_a_prompt_is_repeated_however_it_is_spelt(quoted: str) -> None:
    cleaned = clean(f"cannot render near: {quoted}")
    assert cleaned.startswith(("cannot render near: ", "cannot render near…"))
    assert "…" in cleaned
    assert not [piece for piece in PRIVATE if piece.lower() in cleaned.lower()]


def test_no_piece_of_a_key_is_repeated() -> None:
    secrets = ("Bearer sk-super-secret-KEY-1234", "sk-super-secret-KEY-1234", 'a"b&c')
    for quoted in (
        "sk-super-secret-KEY-1234",
        "sk-super-secret-K",
        "Bearer sk-super-se****",
        "SK_SUPER_SECRET_KEY_1234",
        "sk%2Dsuper%2Dsecret%2DKEY%2D1234",
        r"x-tenant: a\"b&c",
        "x-tenant: a&quot;b&amp;c",
    ):
        cleaned = clean(f"bad credentials ({quoted})", body=None, secrets=secrets)
        assert cleaned.startswith("bad credentials (")
        assert not [piece for piece in ("super", "secret", "1234", "b&c", "b&amp") if piece in cleaned.lower()]


def test_what_validators_quote_behind_input_is_left_out() -> None:
    assert "tul" not in clean("1 error: {'type': 'x', 'input': {'content': 'tul...'}}")


@pytest.mark.parametrize(
    "words",
    [
        "Input should be a valid list; 9031 input tokens; role user",
        "messages.0.content: Field required",
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "min_tokens must be less than or equal to max_tokens=1, got 50.",
        "At most 0 image(s) may be provided in one prompt.",
    ],
)
def test_a_validators_own_words_stay_though_a_prompt_uses_them_too(words: str) -> None:
    content = "Is the message content a valid list, role user? The input should be a valid list of one prompt."
    assert clean(words, body={"messages": [{"role": "user", "content": content}]}, secrets=("abc",)) == words


def test_prompts_of_token_ids_are_prompts() -> None:
    ids = [9906, 1917, 374, 264, 17]
    for prompt in (ids, [[1, 2], ids]):
        cleaned = clean("bad prompt [9906, 1917, 374, 264 ...", body={"prompt": prompt})
        assert cleaned.startswith("bad prompt […")
        assert "1917" not in cleaned


def test_a_long_message_is_cut_and_shows_nothing_that_was_not_looked_at() -> None:
    assert len(clean("x" * 5000, body=None)) == MAX_QUOTED + 1
    shown = clean("…" * (MAX_READ - 12) + "My PIN is 4711")
    assert not any(character.isalnum() for character in shown)


@pytest.mark.parametrize("piece", ["a", "\\", "&", "%41", "&#", "input ", "…", "\\u00", "'input'  "])
def test_hostile_texts_take_no_more_than_honest_ones(piece: str) -> None:
    # Anything but linear work on so many characters would not end within the time of the suite.
    text = piece * (300_000 // len(piece))
    assert len(clean(text, body={"messages": [{"role": "user", "content": text}]})) <= MAX_QUOTED + 1
