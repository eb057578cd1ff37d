"""The process that runs a tokenizer on the probe text (`tokenizer_probe.py`): the file on stdin, JSON on stdout.

Run as a script, so it imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys

# The probe text has some 700 bytes, and no tokenizer makes more tokens than bytes but for a few special ones.
MAX_IDS = 4096


def main(text: str, cpu_s: int, memory_bytes: int) -> None:
    """Answers one probe."""
    limits = ((resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0))
    for limit, value in limits:
        # Some systems do not limit address space; the time limits hold.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (value, value))
    sys.stdout.write(json.dumps(_answer(sys.stdin.buffer.read(), text)))


def _answer(data: bytes, text: str) -> dict[str, object]:
    """The ids; whatever the library raises ends the process, and its last words are the reason."""
    import tokenizers  # noqa: PLC0415 - the limits hold for its import too

    tokenizer = tokenizers.Tokenizer.from_buffer(data)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = tokenizer.encode(text).ids
    if len(ids) > MAX_IDS:
        raise SystemExit(f"it makes more than {MAX_IDS} tokens of a short text")
    return {"ids": ids, "library": f"tokenizers {tokenizers.__version__}"}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
