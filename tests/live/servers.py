"""Real servers for live tests and docs: start one, wait until it answers, and leave nothing behind.

`python scripts/engines.py install` puts the engines and models in place; `installed(NAME)` finds them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ENGINES_SCRIPT = Path(__file__).parents[2] / "scripts" / "engines.py"
PR_SET_PDEATHSIG = 1  # Source: prctl(2)
VLLM_START_S = 300.0  # 30 s on an idle 2-core machine; three at once beside a test run have taken 120 s
LLAMACPP_START_S = 180.0  # half a second is usual
STOP_GRACE_S = 15.0
POLL_S = 0.2
TAIL_CHARACTERS = 3000

# OpenMP threads that sleep while they wait. Spinning ones are no faster alone, and ten times slower beside other load.
PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}

VLLM_ENVIRONMENT = {
    **PATIENT_THREADS,
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB: 23,296 tokens in float32, 46,592 in bfloat16
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


class ServerDidNotStart(Exception):
    """A real server ended, or did not answer in time; the message holds the end of its log."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One running server.

    Attributes:
        url: base URL without a trailing slash.
        pid: leader of the server's own process group.
        log_path: its stdout and stderr.
        port: on 127.0.0.1.
        start_s: seconds from the start of the process to the first good reply.
    """

    url: str
    pid: int
    log_path: Path
    port: int
    start_s: float


def installed(name: str) -> Path:
    """The path of an installed engine or model, such as `llama-server` or `smollm2-v1.2`.

    Raises:
        ServerDidNotStart: it is not installed; the message says how to install it.
    """
    found = subprocess.run(
        [sys.executable, str(ENGINES_SCRIPT), "path", name], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        raise ServerDidNotStart(found.stderr.strip())
    return Path(found.stdout.strip())


def fast_dtype() -> str:
    """The dtype that this CPU computes fast: bfloat16 with AVX-512, else float32.

    Without AVX-512, oneDNN has no bfloat16 product, and vLLM's fallback takes 17 s instead of 2 s for 700 tokens.
    """
    cpuinfo = Path("/proc/cpuinfo")
    return "bfloat16" if cpuinfo.exists() and "avx512bw" in cpuinfo.read_text() else "float32"


@contextmanager
def vllm_server(
    model_dir: Path,
    *,
    served_model_name: str,
    log_path: Path,
    extra_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    dtype: str | None = None,
) -> Iterator[Server]:
    """Run vLLM on a free port until the block ends.

    Args:
        model_dir: a Hugging Face directory.
        served_model_name: what clients send as `model`.
        log_path: receives stdout and stderr.
        extra_args: appended, so they win over the defaults here.
        env: variables that win over `VLLM_ENVIRONMENT`.
        dtype: of the weights; None takes what this CPU computes fast.

    Raises:
        ServerDidNotStart: it ended or did not answer within `VLLM_START_S`.
    """
    port = free_port()
    argv = [
        *(str(installed("vllm-python")), "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model_dir), "--served-model-name", served_model_name),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", dtype or fast_dtype()),
        *("--max-model-len", "4096", "--block-size", "32", "--enable-prompt-tokens-details"),
        # Compiling takes 80 s of a start and saves 0.3 s of a request on two cores.
        *("--enforce-eager", *extra_args),
    ]
    # vLLM keeps one core for its front end, which leaves one of two to compute; sharing both is 1.7 times as fast.
    threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(min(os.cpu_count() or 1, 4))}
    with _running(
        argv,
        port=port,
        log_path=log_path,
        env={**VLLM_ENVIRONMENT, **threads, **(env or {})},
        start_limit_s=VLLM_START_S,
    ) as server:
        yield server


@contextmanager
def llamacpp_server(
    gguf: Path,
    *,
    log_path: Path,
    extra_args: Sequence[str] = (),
    slot_dir: Path | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
) -> Iterator[Server]:
    """Run llama-server with one slot on a free port until the block ends.

    Args:
        gguf: the model file.
        log_path: receives stdout and stderr.
        extra_args: appended, so they win over the defaults here (`-np 2`, `--cache-ram 0`, …).
        slot_dir: existing folder for saved slots; None leaves saving switched off.
        host: number that it listens on.
        port: free there; None to find one.

    Raises:
        ServerDidNotStart: it ended or did not answer within `LLAMACPP_START_S`.
    """
    port = port or free_port(host)
    argv = [
        *(str(installed("llama-server")), "-m", str(gguf), "--host", host, "--port", str(port)),
        *("-c", "4096", "-np", "1", "--metrics", "--slots"),
        *(("--slot-save-path", f"{slot_dir}/") if slot_dir is not None else ()),
        *extra_args,
    ]
    with _running(
        argv, host=host, port=port, log_path=log_path, env=PATIENT_THREADS, start_limit_s=LLAMACPP_START_S
    ) as server:
        yield server


def free_port(*hosts: str) -> int:
    """A TCP port that nobody listens on now on any of these numbers of this machine; 127.0.0.1 where none is given."""
    first, *others = hosts or ("127.0.0.1",)
    while True:
        with ExitStack() as stack:
            probe = stack.enter_context(socket.socket())
            probe.bind((first, 0))
            port = int(probe.getsockname()[1])
            try:
                for host in others:
                    stack.enter_context(socket.socket()).bind((host, port))
            except OSError:
                continue
            return port


@contextmanager
def _running(
    argv: Sequence[str],
    *,
    port: int,
    log_path: Path,
    env: Mapping[str, str],
    start_limit_s: float,
    host: str = "127.0.0.1",
) -> Iterator[Server]:
    begun_s = time.monotonic()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as sink:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - it calls one C function and nothing else
        )
    try:
        url = f"http://{host}:{port}"
        _await_ready(process, url=url, log_path=log_path, deadline_s=begun_s + start_limit_s)
        yield Server(url=url, pid=process.pid, log_path=log_path, port=port, start_s=time.monotonic() - begun_s)
    finally:
        _stop(process)


_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded here: between fork and exec a child must not import or allocate


def _die_with_parent() -> None:
    # The kernel counts the starting thread as the parent: start servers from a thread that lives as long as they do.
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # vLLM's front end ends its engine processes on SIGTERM


def _await_ready(process: subprocess.Popen[bytes], *, url: str, log_path: Path, deadline_s: float) -> None:
    with httpx.Client(base_url=url, timeout=5.0, trust_env=False) as client:
        for route in ("/health", "/v1/models"):
            while not _answers(client, route):
                if process.poll() is not None:
                    what = f"ended with code {process.returncode} before {route} answered"
                elif time.monotonic() > deadline_s:
                    what = f"did not answer {route} in time"
                else:
                    time.sleep(POLL_S)
                    continue
                tail = log_path.read_text(errors="replace")[-TAIL_CHARACTERS:]
                raise ServerDidNotStart(f"{Path(process.args[0]).name} at {url} {what}; its log ends:\n{tail}")  # type: ignore[index, arg-type]


def _answers(client: httpx.Client, route: str) -> bool:
    try:
        return client.get(route).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the whole group, then SIGKILL to what is left of it."""
    deadline_s = time.monotonic() + STOP_GRACE_S
    _signal_group(process.pid, signal.SIGTERM)
    while _group_exists(process) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _group_exists(process: subprocess.Popen[bytes]) -> bool:
    process.poll()  # reap the leader, which would otherwise keep the group alive as a zombie
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _signal_group(group: int, sign: signal.Signals) -> None:
    try:
        os.killpg(group, sign)
    except ProcessLookupError:
        return
