"""`--help` is the manual."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.main

from kvrelease import __version__
from kvrelease.cli.program import application
from tests.cli.conftest import Kv

COMMANDS = (
    "fingerprint",
    "diff",
    "namespace",
    "prompts check",
    "prompts select",
    "prewarm",
    "record",
    "verify",
    "demo",
    "stores stamp",
)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_and_gives_an_example(kv: Kv, name: str) -> None:
    result = kv(*name.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert f"Example: kvrelease {name}" in result.out
    command = typer.main.get_command(application)
    for part in name.split():
        command = command.commands[part]  # type: ignore[attr-defined]
    assert command.params
    for parameter in command.params:
        is_option = parameter.opts[0].startswith("-")
        for word in parameter.opts if is_option else [parameter.metavar]:
            assert str(word) in result.out
        assert parameter.help  # type: ignore[attr-defined]
        if is_option and parameter.envvar:
            assert str(parameter.envvar) in "".join(result.out.split())


def test_the_program_lists_every_command_and_exit_code(kv: Kv) -> None:
    result = kv("--help")
    for name in ("fingerprint", "diff", "namespace", "prompts", "prewarm", "record", "verify", "demo", "stores"):
        assert f"\n  {name} " in result.out
    for code in ("0 yes", "1 no", "2 usage", "3 inconclusive", "4 bad input", "5 engine", "70 our bug", "130 Ctrl-C"):
        assert code in result.out


def test_help_and_version_work_beside_a_broken_configuration(kv: Kv) -> None:
    Path("kvrelease.yaml").write_text("{")
    assert kv("verify", "--help").code == 0
    assert kv("--version").out == f"kvrelease {__version__}\n"
    assert kv("fingerprint", "x").code == 2
