"""Check digits that tell account and card numbers from other digits.

Source:
    Luhn: ISO/IEC 7812-1; prefixes: the networks' ranges as of 2026. IBAN: ISO 13616, lengths from the SWIFT registry.
"""

from __future__ import annotations

import re

_CARD_PREFIX = re.compile(
    r"4|5[1-5]|2(?:2[2-9]|[3-6]|7[01]|720)|3[47]|3(?:0[0-5]|[68])|35(?:2[89]|[3-8])|6(?:011|4[4-9]|5)"
)
_CARD_DIGITS = range(13, 20)
# What other countries use is checked by digits alone, within what the standard allows.
_IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AT": 20, "BE": 16, "BG": 22, "BR": 29, "CH": 21, "CY": 28, "CZ": 24, "DE": 22, "DK": 18,
    "EE": 20, "ES": 24, "FI": 18, "FR": 27, "GB": 22, "GR": 27, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IS": 26,
    "IT": 27, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "MC": 27, "MT": 31, "NL": 18, "NO": 15, "PL": 28, "PT": 25,
    "RO": 24, "SA": 24, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "TR": 26, "UA": 29,
}  # fmt: skip
_IBAN_CHARACTERS = range(15, 35)


def is_payment_card(text: str) -> bool:
    """Whether digits, with or without separators, are a card number: a network's prefix, and the Luhn digit."""
    digits = re.sub(r"\D", "", text)
    return len(digits) in _CARD_DIGITS and _CARD_PREFIX.match(digits) is not None and _luhn(digits) == 0


def is_iban(text: str) -> bool:
    """Whether a text, with or without spaces, is an IBAN: the country's length, and the remainder 1 of 97."""
    compact = text.replace(" ", "")
    expected = _IBAN_LENGTHS.get(compact[:2])
    if len(compact) != expected if expected is not None else len(compact) not in _IBAN_CHARACTERS:
        return False
    moved = compact[4:] + compact[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1


def _luhn(digits: str) -> int:
    doubled = (int(digit) * (1 + position % 2) for position, digit in enumerate(reversed(digits)))
    return sum(value - 9 if value > 9 else value for value in doubled) % 10
