"""What a fixed text becomes under a tokenizer: the shortest proof that two tokenizers differ where users notice.

The library that tokenises follows whatever a file says: patterns that never end, replacements that double a text forty
times. So it runs in a process of its own, with bounded time and memory, and what goes wrong there is a sentence here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
from blake3 import blake3

from kvrelease.release import tokenizer_process
from kvrelease.release.details import Probe

# Changed text, changed name: ids of two texts say nothing about each other.
PROBE_NAME = "kvprobe1"
PROBE_TEXT = (
    "The quick brown fox jumps over 13 lazy dogs; don't you agree?\n"
    "  Prices: $1,234.56 (about €1.150,00), 2026-01-31T23:59:59Z, 100% of 3.14e-10.\n"
    "def f(x):\n\treturn {'key': [x ** 2 for _ in range(10)], \"n\": None}  # ok\n"
    "Ünïcödé naïve Straße ﬁancé café ½ ² İstanbul\r\n"
    "你好，世界！こんにちは 안녕하세요 Привет, мир! שלום مرحبا नमस्ते\n"
    "🙂👩🏽‍🚀🇩🇪 ZWJ\u200djoin NBSP\u00a0end   three   spaces\n\n\nUser: <b>bold</b> &amp; [INST] {{ x }} http://a.example/b?c=d#e"
)
# A tokenizer of 33 MB takes two seconds to load, and 0.6 GB.
CPU_SECONDS = 15
MEMORY_BYTES = 3 * 1024**3
TIMEOUT_S = 30
_WORDS_SHOWN = 200


class ProbeFailed(Exception):
    """Why the probe has no ids: a sentence's end."""


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the process answers."""

    ids: tuple[int, ...]
    library: str


# Many releases share a tokenizer: what one became is not tried again in the same process.
_MAX_REMEMBERED = 64
_remembered: dict[bytes, Probe | str] = {}


def probe_tokenizer(
    tokenizer: bytes, *, cpu_s: int = CPU_SECONDS, memory_bytes: int = MEMORY_BYTES, timeout_s: float = TIMEOUT_S
) -> Probe:
    """The token ids of the probe text under a `tokenizer.json`.

    Args:
        tokenizer: the file.
        cpu_s: that the library may compute, seconds.
        memory_bytes: that it may take.
        timeout_s: that it may last, on a machine with other work.

    Raises:
        ProbeFailed: the library cannot load it or run it within these bounds.
    """
    key = blake3(tokenizer).digest()
    found = _remembered.get(key)
    if found is None:
        found = _run(tokenizer, cpu_s=cpu_s, memory_bytes=memory_bytes, timeout_s=timeout_s)
        if len(_remembered) < _MAX_REMEMBERED:
            _remembered[key] = found
    if isinstance(found, str):
        raise ProbeFailed(found)
    return found


def _run(tokenizer: bytes, *, cpu_s: int, memory_bytes: int, timeout_s: float) -> Probe | str:
    """The ids, or why there are none.

    Raises:
        ProbeFailed: for a reason that may be gone next time.
    """
    script = str(Path(tokenizer_process.__file__))
    command = [sys.executable, "-P", script, PROBE_TEXT, str(cpu_s), str(memory_bytes)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and script
            command, input=tokenizer, capture_output=True, env=environment, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ProbeFailed(f"the tokenizers library did not finish within {timeout_s:g} s") from error
    except OSError as error:
        raise ProbeFailed(f"no process could be started for it: {error.strerror or error}") from error
    try:
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except msgspec.MsgspecError:
        return _last_words(done)
    return Probe(text=PROBE_NAME, ids=answer.ids, library=answer.library)


def _last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    """Why a process ended without an answer."""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode < 0 or not lines:
        return f"the tokenizers library gave up within its bounds of time and memory (exit {done.returncode})"
    return f"the tokenizers library refuses it: {lines[-1][:_WORDS_SHOWN]}"
