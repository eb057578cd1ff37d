"""Proof that llama.cpp reads a GGUF file as transformers reads its directory: equal templates, equal token ids."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provision.errors import ProvisionError
from provision.programs import die_with_parent, last_line, stop_group

START_S = 60.0  # half a second is usual; the rest is for a machine that is busy
REQUEST_S = 120.0
ANSWER_TOKENS = 24


@contextmanager
def serving(server: Path, model: Path, *, log: Path) -> Iterator[str]:
    """Run llama-server on a free port of this machine and give its URL.

    Raises:
        ProvisionError: it did not come up.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    arguments = [str(server), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", "2048", "-np", "1"]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the installer starts no threads while a program runs
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + START_S
        while not _is_healthy(url):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise ProvisionError(
                    f"llama-server did not come up with {model.name}; its last line was: {last_line(log)!r}",
                    hint="Read the log; run the install again once the cause is mended",
                    log=log,
                )
            time.sleep(0.2)
        yield url
    finally:
        stop_group(process)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 - our own server on the loopback
            return True
    except (urllib.error.URLError, OSError):
        return False


def _post(url: str, body: dict[str, object]) -> Any:
    request = urllib.request.Request(  # noqa: S310 - our own server on the loopback
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=REQUEST_S) as reply:  # noqa: S310
        return json.load(reply)


def differences(expected: dict[str, Any], url: str) -> list[str]:
    """Where a running llama-server disagrees with transformers, one sentence each.

    Args:
        expected: `texts` of (text, ids) and `chats` of (messages, text, ids), made by transformers.
        url: the server.
    """
    found = []
    for chat in expected["chats"]:
        rendered = str(_post(f"{url}/apply-template", {"messages": chat["messages"]})["prompt"])
        if rendered != chat["text"]:
            found.append(f"the chat template renders {rendered[:80]!r} instead of {chat['text'][:80]!r}")
    for case in [*expected["texts"], *expected["chats"]]:
        body: dict[str, object] = {"content": case["text"], "add_special": False, "parse_special": True}
        ids = _post(f"{url}/tokenize", body)["tokens"]
        if ids != case["ids"]:
            found.append(f"{case['text'][:60]!r} gives {ids[:12]} instead of {case['ids'][:12]}")
    return found


def check_release(server: Path, model: Path, *, expected: Path, log: Path) -> str:
    """Compare tokens and template, ask the first sample chat, and return the greedy answer.

    Raises:
        ProvisionError: the server failed, the tokens differ, or the answer is empty.
    """
    cases = json.loads(expected.read_text())
    try:
        with serving(server, model, log=log) as url:
            found = differences(cases, url)
            if found:
                raise ProvisionError(
                    f"llama.cpp and transformers disagree on {model.name}: " + "; ".join(found),
                    hint="Benchmarks across engines would compare different prompts: mend build_tokenizer",
                    log=log,
                )
            body = {"messages": cases["chats"][0]["messages"], "temperature": 0, "max_tokens": ANSWER_TOKENS}
            answer = str(_post(f"{url}/v1/chat/completions", body)["choices"][0]["message"]["content"])
    except (OSError, KeyError, ValueError) as error:
        raise ProvisionError(
            f"Asked llama-server with {model.name}, and got no usable reply: {error}", hint="Read the log", log=log
        ) from error
    if not answer.strip():
        raise ProvisionError(f"{model.name} gave an empty answer", hint="Read the log", log=log)
    return answer
