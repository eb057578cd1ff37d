from __future__ import annotations

import pytest

from kvrelease.engines.foreign import as_ids, as_number


@pytest.mark.parametrize("value", [10**400, -(10**400), True, "1", None])
def test_a_number_that_nothing_can_hold_is_not_told(value: object) -> None:
    assert as_number(value) is None


@pytest.mark.parametrize("value", [[-1], [2**32], [10**30, 1], [True], [1.0], "1", {}])
def test_what_no_vocabulary_has_is_no_list_of_token_ids(value: object) -> None:
    assert as_ids(value) is None


def test_token_ids_are_read() -> None:
    assert as_ids([0, 7, 2**32 - 1]) == (0, 7, 2**32 - 1)
