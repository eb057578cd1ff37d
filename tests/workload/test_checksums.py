from __future__ import annotations

import pytest

from kvrelease.workload.checksums import is_iban, is_payment_card


# Numbers that the networks and banks publish for tests.
@pytest.mark.parametrize(
    "number", ["4111 1111 1111 1111", "5555-5555-5555-4444", "378282246310005", "6011111111111117"]
)
def test_a_card_number_has_its_digit(number: str) -> None:
    assert is_payment_card(number)
    assert not is_payment_card(number[:-1] + str((int(number[-1]) + 1) % 10))


@pytest.mark.parametrize("number", ["0000 0000 0000 0000", "1234567812345670", "411111111111"])
def test_other_digits_are_no_card(number: str) -> None:
    assert not is_payment_card(number)


@pytest.mark.parametrize("number", ["GB82 WEST 1234 5698 7654 32", "DE89370400440532013000", "NO9386011117947"])
def test_an_iban_has_its_remainder_and_its_length(number: str) -> None:
    assert is_iban(number)
    assert not is_iban(number[:-1] + ("1" if number[-1] != "1" else "2"))
    assert not is_iban(number + "0")
