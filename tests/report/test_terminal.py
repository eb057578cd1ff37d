from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvrelease.report.document import Commands, Document, Tone, Verdict, Word
from kvrelease.report.terminal import print_document, render_text

PAGE = Document(title="t", blocks=(Verdict(word=Word(text="FAIL", tone=Tone.BAD), reason="stale"),))


def on_terminal() -> str:
    target = io.StringIO()
    print_document(PAGE, Console(file=target, width=80, force_terminal=True, highlight=False))
    return target.getvalue()


def test_a_terminal_gets_colour_and_the_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[1;31mFAIL" in on_terminal()


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    text = on_terminal()
    assert "31m" not in text
    assert "FAIL" in text


def test_a_file_has_no_escape_codes_though_ci_forces_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"):
        monkeypatch.setenv(name, "1")
    assert render_text(PAGE) == "t\n\nFAIL  stale\n"


def test_a_command_is_never_wrapped() -> None:
    command = "kvrelease namespace " + "x" * 200
    assert command in render_text(Document(title="t", blocks=(Commands(title="Next", lines=(command,)),)), width=80)
