"""The one place where an outcome becomes an exit code."""

from __future__ import annotations

import pytest

from kvrelease.artifacts import Fault, Verdict
from kvrelease.cli.outcome import exit_code
from kvrelease.errors import ExitCode
from kvrelease.release import diff_steps
from tests.cli.conftest import Kv
from tests.cli.shell import Releases


def test_our_own_bug_is_told_as_such_with_a_traceback(
    kv: Kv, releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("impossible")

    monkeypatch.setattr(diff_steps, "load_pair", broken)
    result = kv("diff", releases.old, releases.new)
    assert (result.code, result.out) == (70, "")
    assert "RuntimeError: impossible" in result.err
    assert "this is a bug of kvrelease" in result.err


def test_an_interrupt_before_anything_was_measured(kv: Kv, releases: Releases, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(diff_steps, "load_pair", interrupted)
    result = kv("diff", releases.old, releases.new)
    assert (result.code, result.out, result.err) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("verdict", "faults", "interrupted", "code"),
    [
        (Verdict.PASS, [], False, 0),
        (Verdict.FAIL, [], False, 1),
        (Verdict.INCONCLUSIVE, [], False, 3),
        (None, [], False, 0),
        (Verdict.INCONCLUSIVE, [5], False, 5),
        (Verdict.INCONCLUSIVE, [5, 4], False, 4),
        (Verdict.FAIL, [5], False, 1),
        (Verdict.FAIL, [], True, 130),
        (None, [], True, 130),
        (Verdict.INCONCLUSIVE, [0], False, 3),
    ],
)
def test_a_run_has_one_exit_code(verdict: Verdict | None, faults: list[int], code: int, *, interrupted: bool) -> None:
    """https://github.com/argoproj/argo-rollouts/pull/3873, https://github.com/argoproj/argo-rollouts/issues/1411.

    Also https://github.com/argoproj/argo-rollouts/issues/1905, https://github.com/argoproj/argo-rollouts/issues/943:
    what is inconclusive, or has no data, is promoted all the same.
    """
    told = [Fault(where="a", exit_code=fault, message="m") for fault in faults]
    assert exit_code(verdict=verdict, faults=told, interrupted=interrupted) is ExitCode(code)
