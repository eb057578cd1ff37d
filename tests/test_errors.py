from __future__ import annotations

import itertools

import pytest

from kvrelease.errors import (
    ExitCode,
    InputError,
    KvreleaseError,
    MissingExtra,
    PromptTooLong,
    Refused,
    ServiceError,
    Unreachable,
    UsageError,
    WrongModel,
    one_of,
    worst,
)

# DESIGN, section 3: "Where several hold: 70, 130, 1, 2, 4, 5, 3."
ORDER = (70, 130, 1, 2, 4, 5, 3, 0)


def test_every_exit_code_has_its_place() -> None:
    """https://github.com/promptfoo/promptfoo/issues/1441, https://github.com/promptfoo/promptfoo/issues/741.

    Also https://github.com/promptfoo/promptfoo/issues/634: a code that nobody documented breaks CI; and
    https://github.com/airspeed-velocity/asv/pull/865: the number of failures as a code makes 256 of them a success.
    """
    assert sorted(ORDER) == sorted(ExitCode)


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(ORDER, 2)))
def test_the_worse_of_two_codes_wins_in_either_order(first: int, second: int) -> None:
    codes = [ExitCode(first), ExitCode(second)]
    assert worst(codes) == worst(reversed(codes)) == first


def test_nothing_happened_is_ok() -> None:
    assert worst([]) is ExitCode.OK


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (WrongModel("x"), 2),
        (MissingExtra(extra="local", needed_for="x", module="torch"), 2),
        (InputError("x"), 4),
        (PromptTooLong("x"), 4),
        (ServiceError("x"), 5),
        (Refused("x", status=401), 5),
    ],
)
def test_each_class_has_its_exit_code(error: KvreleaseError, code: int) -> None:
    assert error.exit_code == code


def test_a_missing_extra_gives_the_pip_line() -> None:
    error = MissingExtra(extra="local", needed_for="--engine local", module="torch")
    assert error.hint == "pip install 'kvrelease[local]', or '.[local]' in a checkout"


def test_of_several_errors_the_worst_is_told() -> None:
    service, refused = Unreachable("no connection"), InputError("damaged")
    assert one_of(ExceptionGroup("two", [service, ExceptionGroup("inner", [refused])])) is refused


def test_of_equal_errors_the_first_is_told() -> None:
    first, second = Unreachable("a"), Refused("b", status=500)
    assert one_of(ExceptionGroup("two", [first, second])) is first


def test_a_bug_is_told_before_any_error_of_ours() -> None:
    bug = KeyError("x")
    assert one_of(ExceptionGroup("two", [UsageError("a"), bug])) is bug
