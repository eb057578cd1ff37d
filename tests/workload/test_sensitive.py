"""Secrets and personal data are counted by kind; what only looks like them is not.

The keys are put together here, so that no scanner of repositories takes them for real ones.
"""

from __future__ import annotations

import base64

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.workload.prompt_set import PromptKind
from kvrelease.workload.sensitive import SensitiveKind, sensitive_in, sensitive_in_text
from tests.workload.builders import chat_body

ALNUM = "a1B2c3D4e5F6g7H8i9J0" * 5


def jwt(header: str) -> str:
    return ".".join(
        base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in (header, '{"sub": "someone"}', "sig")
    )


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"key: sk-proj-{ALNUM[:40]}", "api-key"),
        (f"sk-ant-api03-{ALNUM[:60]}", "api-key"),
        (f"(sk-{ALNUM[:48]})", "api-key"),
        ("AKIA" + "ABCDEFGHIJKLMNOP", "api-key"),
        (f"ghp_{ALNUM[:36]}", "api-key"),
        (f"xoxb-{ALNUM[:20]}", "api-key"),
        ("AIza" + ALNUM[:35], "api-key"),
        (f"hf_{ALNUM[:34]}", "api-key"),
        (f"sk_live_{ALNUM[:24]}", "api-key"),
        (f"aws_secret_access_key = '{ALNUM[:40]}'", "api-key"),
        (f"github_pat_{ALNUM[:62]}", "api-key"),
        (f"glpat-{ALNUM[:20]}", "api-key"),
        (f"https://hooks.slack.com/services/T{ALNUM[:8]}/B{ALNUM[:8]}/{ALNUM[:24]}", "api-key"),
        (f"npm_{ALNUM[:36]}", "api-key"),
        (f"pypi-AgE{ALNUM[:60]}", "api-key"),
        (f"SG.{ALNUM[:22]}.{ALNUM[:43]}", "api-key"),
        (f"AccountKey={ALNUM[:86]}==", "api-key"),
        ("dapi" + "0123456789abcdef" * 2, "api-key"),
        ("dop_v1_" + "0123456789abcdef" * 4, "api-key"),
        (f"gsk_{ALNUM[:44]}", "api-key"),
        (f"nvapi-{ALNUM[:64]}", "api-key"),
        (f"123456789:AA{ALNUM[:33]}", "api-key"),
        (f"https://b.example/x?sv=1&sig={ALNUM[:44]}", "url-credential"),
        ("https://b.example/x?X-Amz-Signature=" + "0123456789abcdef" * 4, "url-credential"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----", "private-key"),
        (f"Authorization: Bearer {ALNUM[:30]}", "bearer-token"),
        ("-----BEGIN RSA PRIVATE KEY-----", "private-key"),
        (jwt('{"alg": "HS256"}'), "jwt"),
        (f"postgres://app:{ALNUM[:12]}@db/orders", "url-credential"),
        (f"postgres://app:{ALNUM[:12]}@db.acme-shop.de/orders", "url-credential"),
        ("Write to ann.lee+work@acme-shop.co.uk today", "e-mail"),
        ("call +49 30 901820 now", "phone"),
        ("call (212) 867-5309", "phone"),
        ("to DE89 3704 0044 0532 0130 00, please", "iban"),
        ("card 4111-1111-1111-1111.", "payment-card"),
        ("SSN 078-05-1120", "us-ssn"),
    ],
)  # fmt: skip
def test_a_form_is_found_once(text: str, kind: str) -> None:
    assert sensitive_in_text(text) == {SensitiveKind(kind): 1}


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn and sk-short, risk-" + ALNUM,
        "The bearer of this letter may enter the building",
        jwt('{"not": "a header"}'),
        "a bearer onethousandnightsandonenights",
        "write @handle.here, or a @mention@nowhere",
        "call +49 30 12, +1 22 33",
        "DE88 3704 0044 0532 0130 00",
        "someone@example.com, root@localhost, @handle",
        "Order 4111111111111112 of 2024-05-10, 1715299200123, version 1.22.333.4444",
        "Rule 12-34-5678, 000-12-3456, 123-45-67890, ISBN 978-3-16-148410-0",
        "555-0100, +1 212 555 0123, 10.0.0.1",
        "GB82 WEST 1234 5698 7654 33",
        "deadbeef-dead-4bee-8dea-deadbeefdead",
    ],
)
def test_what_only_looks_like_it_is_not_counted(text: str) -> None:
    assert sensitive_in_text(text) == {}


def test_every_part_of_a_body_is_looked_into() -> None:
    address = "ann@acme-shop.de"
    call = {"function": {"name": "f", "arguments": f'{{"to": "{address}"}}'}}
    image = {"type": "image_url", "image_url": {"url": f"https://u:{ALNUM[:9]}@h/a.png"}}
    body: JsonObject = {
        "messages": [
            {"role": "system", "content": f"Reply to {address}"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "user", "content": [{"type": "text", "text": address}, image]},
        ],
        "tools": [{"function": {"description": address}}],
        "user": address,
    }
    found = sensitive_in(body, kind=PromptKind.CHAT)
    assert found == {SensitiveKind.EMAIL: 5, SensitiveKind.URL_CREDENTIAL: 1}


def test_token_ids_cannot_be_looked_into() -> None:
    assert sensitive_in({"prompt": [4111, 1111]}, kind=PromptKind.COMPLETIONS) is None
    assert sensitive_in(chat_body("Hi"), kind=PromptKind.CHAT) == {}


@pytest.mark.parametrize("piece", ["a", "1 ", "+1-", "a@", "eyJ", "DE12 ", "://a:", "sk-", "Bearer "])
def test_a_hostile_text_is_looked_through_to_its_end(piece: str) -> None:
    """Each of these would keep a pattern that goes back and forth busy for hours."""
    assert sensitive_in_text(piece * (200_000 // len(piece)) + ", +49 30 901820") == {SensitiveKind.PHONE: 1}
