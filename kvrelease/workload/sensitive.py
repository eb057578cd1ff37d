"""Likely secrets and personal data in prompts: what kinds, how often. What was found is never kept.

Only forms that hardly anything else has: keys by the prefixes of those who issue them, numbers by their checksums. So
nothing found proves nothing, and what is found deserves a look.

Source:
    Keys: the issuers' documentation and the rules of Yelp/detect-secrets 1.5.0 and gitleaks/gitleaks v8, as facts about
    the forms. Luhn: ISO/IEC 7812-1. IBAN: ISO 13616, check by ISO/IEC 7064 (mod 97). NANP and SSN rules: nanpa.com,
    ssa.gov/employer/randomization.html. Domains for documentation: RFC 2606.
"""

from __future__ import annotations

import base64
import binascii
import enum
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.workload.body import images_of, message_text
from kvrelease.workload.checksums import is_iban, is_payment_card
from kvrelease.workload.prompt_set import PromptKind, canonical_json


class SensitiveKind(enum.StrEnum):
    """What was found."""

    API_KEY = "api-key"
    BEARER_TOKEN = "bearer-token"  # noqa: S105 - a kind, no token
    PRIVATE_KEY = "private-key"
    JWT = "jwt"
    URL_CREDENTIAL = "url-credential"
    EMAIL = "e-mail"
    PHONE = "phone"
    IBAN = "iban"
    PAYMENT_CARD = "payment-card"
    US_SSN = "us-ssn"

    @property
    def is_secret(self) -> bool:
        """A credential, not personal data."""
        return self in _SECRETS


_SECRETS = frozenset(
    {
        SensitiveKind.API_KEY,
        SensitiveKind.BEARER_TOKEN,
        SensitiveKind.PRIVATE_KEY,
        SensitiveKind.JWT,
        SensitiveKind.URL_CREDENTIAL,
    }
)


class _Rule(msgspec.Struct, frozen=True):
    """A form.

    Attributes:
        kind: what it is.
        needs: texts of which one must occur, or the pattern is not tried; empty for always.
        pattern: of the whole.
        is_real: the check that the form allows, None without one.
    """

    kind: SensitiveKind
    needs: tuple[str, ...]
    pattern: re.Pattern[str]
    is_real: Callable[[str], bool] | None = None


def _key(*needs: str, pattern: str) -> _Rule:
    return _Rule(SensitiveKind.API_KEY, needs, re.compile(rf"(?<![A-Za-z0-9_-]){pattern}"))


def _is_jwt(found: str) -> bool:
    header = found.split(".", 1)[0]
    try:
        decoded = msgspec.json.decode(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
        return False
    return isinstance(decoded, dict) and ("alg" in decoded or "enc" in decoded)


def _has_digit(found: str) -> bool:
    return any(character.isdigit() for character in found)


def _is_real_domain(found: str) -> bool:
    return not re.search(r"[@.](?:example(?:\.(?:com|org|net))?|test|invalid|localhost)$", found.lower())


def _is_phone(found: str) -> bool:
    digits = re.sub(r"\D", "", found)
    # 555-0100 to 555-0199 are kept for fiction.
    return 8 <= len(digits) <= 15 and not re.search(r"55501\d\d$", digits)


# Ordered: what an earlier rule found is not looked at by later ones. Patterns begin with what they search for and look
# behind it afterwards, which is several times faster than the other way round.
_RULES = (
    _key("sk-", pattern=r"sk-(?:proj|svcacct|admin|ant-[a-z0-9]{2,12}|or-v1)-[A-Za-z0-9_-]{20,}"),
    _key("sk-", pattern=r"sk-[A-Za-z0-9]{40,}"),
    _key("AKIA", "ASIA", "ABIA", "ACCA", pattern=r"A(?:KIA|SIA|BIA|CCA)[A-Z2-7]{16}(?![A-Z0-9])"),
    _key("aws_secret", pattern=r"aws_secret_access_key[\"' ]{0,3}[=:][\"' ]{0,3}[A-Za-z0-9/+]{40}"),
    _key("gh", pattern=r"gh[pousr]_[A-Za-z0-9]{36,}"),
    _key("github_pat_", pattern=r"github_pat_[A-Za-z0-9_]{60,}"),
    _key("glpat-", pattern=r"glpat-[A-Za-z0-9_-]{20,}"),
    _key("xox", pattern=r"xox[abeprs]-[0-9A-Za-z-]{10,}"),
    _key("hooks.slack.com", pattern=r"hooks\.slack\.com/services/T\w{6,}/B\w{6,}/\w{20,}"),
    _key("_live_", pattern=r"[srp]k_live_[0-9A-Za-z]{16,}"),
    _key("AIza", pattern=r"AIza[0-9A-Za-z_-]{35}"),
    _key("hf_", pattern=r"hf_[A-Za-z0-9]{30,}"),
    _key("npm_", pattern=r"npm_[A-Za-z0-9]{36}"),
    _key("pypi-AgE", pattern=r"pypi-AgE[A-Za-z0-9_-]{50,}"),
    _key("SG.", pattern=r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    _key("AccountKey=", pattern=r"AccountKey=[A-Za-z0-9+/]{86}=="),
    _key("dapi", pattern=r"dapi[0-9a-f]{32}"),
    _key("dop_v1_", pattern=r"dop_v1_[0-9a-f]{64}"),
    _key("gsk_", pattern=r"gsk_[A-Za-z0-9]{40,}"),
    _key("nvapi-", pattern=r"nvapi-[A-Za-z0-9_-]{60,}"),
    _key(":AA", pattern=r"\d{8,10}:AA[A-Za-z0-9_-]{33}"),
    _Rule(
        SensitiveKind.PRIVATE_KEY,
        ("PRIVATE KEY",),
        re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"),
    ),
    _Rule(
        SensitiveKind.JWT,
        ("eyJ",),
        re.compile(r"\beyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+"),
        _is_jwt,
    ),
    _Rule(
        SensitiveKind.BEARER_TOKEN,
        ("earer ", "EARER "),
        re.compile(r"\bbearer {1,4}[A-Za-z0-9._~+/-]{20,}+", re.IGNORECASE),
        _has_digit,
    ),
    _Rule(
        SensitiveKind.URL_CREDENTIAL,
        ("://",),
        re.compile(r"://[^\s/:@]{1,64}:[^\s/:@]{3,128}@[\w.-]{1,253}"),
    ),
    _Rule(
        SensitiveKind.URL_CREDENTIAL,
        ("sig=", "X-Amz-Signature="),
        re.compile(r"[?&](?:sig=[A-Za-z0-9%+/]{40,}|X-Amz-Signature=[0-9a-f]{64})"),
    ),
    _Rule(
        SensitiveKind.EMAIL,
        ("@",),
        re.compile(r"@(?<=[\w+-]@)(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"),
        _is_real_domain,
    ),
    _Rule(
        SensitiveKind.IBAN,
        (),
        re.compile(r"[A-Z]{2}(?<!\w[A-Z]{2})\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"),
        is_iban,
    ),
    _Rule(
        SensitiveKind.PAYMENT_CARD,
        (),
        re.compile(r"\d(?<![\d.,-]\d)(?:[ -]?\d){12,18}(?![\d-]|[.,]\d)"),
        is_payment_card,
    ),
    _Rule(
        SensitiveKind.US_SSN,
        ("-",),
        re.compile(r"\d{3}(?<![\d-]\d{3})(?<!000)(?<!666)(?<!9\d\d)-(?!00)\d{2}-(?!0000)\d{4}(?![\d-])"),
    ),
    _Rule(
        SensitiveKind.PHONE,
        ("+",),
        re.compile(r"\+(?<![\w+.-]\+)[1-9]\d{0,2}(?:[ .-]?\(?\d{1,5}\)?){2,6}(?!\d)"),
        _is_phone,
    ),
    _Rule(
        SensitiveKind.PHONE,
        (),
        re.compile(r"[(2-9](?<![\w.(-].)(?:(?<=\()[2-9]\d\d\) ?|(?<!\()\d\d[.-])[2-9]\d\d[.-]\d{4}(?![\w-])"),
        _is_phone,
    ),
)
_MAX_REMEMBERED_CHARACTERS = 65_536


def sensitive_in(body: JsonObject, *, kind: PromptKind) -> Counter[SensitiveKind] | None:
    """How often each kind occurs in a checked body.

    Args:
        body: of a prompt or a logged request.
        kind: its route.

    Returns:
        Counts by kind, only those that occur; None when the prompt is token ids, which cannot be looked into.
    """
    prompt = body.get("prompt")
    if kind is PromptKind.COMPLETIONS and isinstance(prompt, list) and not all(isinstance(one, str) for one in prompt):
        return None
    found: Counter[SensitiveKind] = Counter()
    for text in _texts(body):
        # System prompts come again and again in a log.
        counts = _remembered(text) if len(text) <= _MAX_REMEMBERED_CHARACTERS else sensitive_in_text(text)
        found.update(counts)
    return found


def sensitive_in_text(text: str) -> dict[SensitiveKind, int]:
    """How often each kind occurs in a text."""
    found: Counter[SensitiveKind] = Counter()
    has_digits = _has_digit(text)
    for rule in _RULES:
        if (rule.needs and not any(need in text for need in rule.needs)) or (not rule.needs and not has_digits):
            continue
        matches = [
            match for match in rule.pattern.finditer(text) if rule.is_real is None or rule.is_real(match.group())
        ]
        if matches:
            found[rule.kind] += len(matches)
            text = _without(text, matches)
    return dict(found)


_remembered = lru_cache(maxsize=512)(sensitive_in_text)


def _texts(body: JsonObject) -> Iterator[str]:
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        yield message_text(message)
        if isinstance(message, dict) and message.get("tool_calls"):
            yield canonical_json(message["tool_calls"]).decode()
    prompt = body.get("prompt")
    yield from [prompt] if isinstance(prompt, str) else prompt if isinstance(prompt, list) else []
    yield from (url for url in images_of(body) if not url.startswith("data:"))
    rest = {name: value for name, value in body.items() if name not in ("messages", "prompt")}
    if rest:
        yield canonical_json(rest).decode()


def _without(text: str, matches: list[re.Match[str]]) -> str:
    pieces, end = [], 0
    for match in matches:
        pieces += [text[end : match.start()], " " * (match.end() - match.start())]
        end = match.end()
    return "".join([*pieces, text[end:]])
