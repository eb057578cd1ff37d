"""Ways in which users come to read another release's KV, on real engines: each told once stale, once clean.

A scenario puts a deployment into a state, sends what users send, and asks the gate. `stale` says whether the state is
the dangerous one or its harmless twin; the gate owes exit 1, by the check that sees it, to the one and 0 to the other.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.live.conftest import Operator, Pair, Run, write_dozen
from tests.live.servers import Server, llamacpp_server, vllm_server
from tests.live.upgrades import train_lora

# Eleven probes prove a stale share below 25 %.
CLAIM = ("--stale-below", "0.25")
MODEL = "smollm2"
LOAD_CONCURRENCY = 8
REQUEST_S = 300.0


@dataclasses.dataclass(frozen=True)
class Stage:
    """Where a scenario plays.

    Attributes:
        pair: the releases.
        prompts: a dozen of production's prompts, YAML.
        directory: of this one performance; empty at first.
        stale: the dangerous state, or its harmless twin.
    """

    pair: Pair
    prompts: Path
    directory: Path
    stale: bool

    @property
    def operator(self) -> Operator:
        """Somebody with a ledger of this performance's own."""
        return Operator(directory=self.directory)

    def verify(
        self,
        *urls: str,
        production: dict[str, Any] | None = None,
        old: Path | None = None,
        new: Path | None = None,
        **more: str,
    ) -> Run:
        """The gate for `new` after `old`; v1.3 after v1.2 where nothing else is said.

        Args:
            urls: replicas.
            production: of kvrelease.yaml: what users really send.
            old: the release that was served before.
            new: the release that is said to be served.
            more: further options by name.
        """
        old, new = old or self.pair.old, new or self.pair.new
        document = {"production": production} if production else {}
        (self.directory / "kvrelease.yaml").write_text(yaml.safe_dump(document))
        options = [part for name, value in more.items() for part in (f"--{name.replace('_', '-')}", value)]
        engines = [part for url in urls for part in ("--engine-url", url)]
        asked = ("--release", new, "--old-release", old, "--prompts", self.prompts)
        return self.operator.run("verify", *asked, *engines, *CLAIM, *options)


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One state of a deployment and its harmless twin.

    Attributes:
        name: what happened.
        fails_by: id of the check that tells the dangerous state.
        play: performs it and returns what the gate said. Where a server runs already, it is the second argument.
    """

    name: str
    fails_by: str
    play: Callable[..., Run]

    def wrong(self, ran: Run, *, stale: bool) -> str:
        """What the gate did that it should not have done; empty where it was right."""
        if ran.code != int(stale):
            return f"ended {ran.code}, not {int(stale)}: {ran.json['reason'] if ran.stdout else ran.stderr[-2000:]}"
        failed = {check["id"] for check in ran.json["checks"] if check["verdict"] == "fail"}
        if stale and self.fails_by not in failed:
            return f"failed by {', '.join(sorted(failed))}, not by {self.fails_by}"
        return ""


# --- what everybody does ---------------------------------------------------------------------------------------------


def chats(prompts: Path) -> list[dict[str, Any]]:
    """The bodies that users send for a prompt set."""
    document = yaml.safe_load(prompts.read_text())
    return [
        {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": document["systems"][prompt["system"]]},
                {"role": "user", "content": prompt["user"]},
            ],
            "temperature": 0,
            "max_tokens": 2,
        }
        for prompt in document["prompts"]
    ]


def users(server: Server, prompts: Path, *, at_once: int = 4, **extra: Any) -> None:
    """Every prompt of the set once, as users send it.

    Args:
        server: that they reach.
        prompts: a prompt set.
        at_once: requests in flight.
        extra: further fields of each body.
    """
    with (
        httpx.Client(base_url=server.url, timeout=REQUEST_S, trust_env=False) as client,
        ThreadPoolExecutor(at_once) as pool,
    ):
        for reply in pool.map(lambda body: client.post("/v1/chat/completions", json=body | extra), chats(prompts)):
            assert reply.status_code == httpx.codes.OK, reply.text


@contextmanager
def load(server: Server) -> Iterator[None]:
    """A second client, with so many requests in flight, that asks about other things for as long as the block lasts."""
    ended = threading.Event()

    def ask(number: int) -> int:
        answered = 0
        with httpx.Client(base_url=server.url, timeout=REQUEST_S, trust_env=False) as client:
            while not ended.is_set():
                question = f"Client {number}, request {answered}: say something about the number {number * answered}."
                body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": 8}
                assert client.post("/v1/chat/completions", json=body).status_code == httpx.codes.OK
                answered += 1
        return answered

    with ThreadPoolExecutor(LOAD_CONCURRENCY) as pool:
        clients = [pool.submit(ask, number) for number in range(LOAD_CONCURRENCY)]
        try:
            yield
        finally:
            ended.set()
    assert all(client.result() > 0 for client in clients)


# --- vLLM ------------------------------------------------------------------------------------------------------------


@contextmanager
def vllm(pair: Pair, *, directory: Path, extra_args: Sequence[str] = ()) -> Iterator[Server]:
    """A vLLM that serves v1.2, and can load another release in place."""
    log = directory / "vllm.log"
    with vllm_server(pair.old, served_model_name=MODEL, log_path=log, extra_args=extra_args) as server:
        yield server


def _post(server: Server, path: str, body: dict[str, Any] | None = None) -> None:
    reply = httpx.post(f"{server.url}{path}", json=body or {}, timeout=REQUEST_S, trust_env=False)
    assert reply.status_code == httpx.codes.OK, reply.text


def serve(server: Server, release: Path) -> None:
    """Loads a release's weights in place; the prefix cache stays."""
    _post(server, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(release)}})


def flush(server: Server) -> None:
    """Empties vLLM's prefix cache."""
    _post(server, "/reset_prefix_cache")


def _begin(server: Server, release: Path) -> None:
    serve(server, release)
    flush(server)


def _reloaded(stage: Stage, server: Server, **extra: Any) -> None:
    """Users warmed v1.2, and v1.3 is loaded in place; the harmless twin empties the cache, and users return."""
    _begin(server, stage.pair.old)
    users(server, stage.prompts, **extra)
    serve(server, stage.pair.new)
    if not stage.stale:
        flush(server)
        users(server, stage.prompts, **extra)


def reload_in_place(stage: Stage, server: Server) -> Run:
    """Weights are reloaded in place and the cache keeps the old release's entries."""
    _reloaded(stage, server)
    return stage.verify(server.url)


def reload_under_load(stage: Stage, server: Server) -> Run:
    """The same, while another client keeps eight requests in flight."""
    _reloaded(stage, server)
    with load(server):
        return stage.verify(server.url)


def clients_half_bound(stage: Stage, server: Server) -> Run:
    """The release's own namespace is warm and clean, and users do not send it; or they do."""
    _begin(server, stage.pair.old)
    users(server, stage.prompts)
    serve(server, stage.pair.new)
    bound = {"salt": "release"}
    (stage.directory / "kvrelease.yaml").write_text(yaml.safe_dump({"production": bound}))
    warmed = stage.operator.run(
        *("prewarm", "--release", stage.pair.new, "--engine-url", server.url, "--prompts", stage.prompts)
    )
    warmed.expect(0)
    return stage.verify(server.url, production=None if stage.stale else bound)


def salt_misspelt(stage: Stage, server: Server) -> Run:
    """Users send the namespace under a name that vLLM does not know, so that nothing is bound; or they spell it well.

    In both the cache holds only what this release computed: what fails is that nothing keeps it so.
    """
    named = stage.operator.run("namespace", stage.pair.new, "--engine", "vllm").expect(0).json["namespace"]
    sent = {"cache_slat" if stage.stale else "cache_salt": named}
    _begin(server, stage.pair.new)
    users(server, stage.prompts, **sent)
    return stage.verify(server.url, production={"body": sent} if stage.stale else {"salt": "release"})


def rolled_back(stage: Stage, server: Server) -> Run:
    """v1.3 served users, then v1.2 is loaded again: v1.3's entries are the foreign ones now."""
    _begin(server, stage.pair.new)
    users(server, stage.prompts)
    serve(server, stage.pair.old)
    if not stage.stale:
        flush(server)
        users(server, stage.prompts)
    return stage.verify(server.url, old=stage.pair.new, new=stage.pair.old)


def old_weights_under_the_new_label(stage: Stage, server: Server) -> Run:
    """The roll-out said v1.3, and v1.2 still answers, from an honest cache of its own."""
    _begin(server, stage.pair.old if stage.stale else stage.pair.new)
    users(server, stage.prompts)
    return stage.verify(server.url)


# --- vLLM with an adapter ---------------------------------------------------------------------------------------------

_ADAPTER = "support"
_ADAPTED = r"self_attn\.[qkv]_proj"


@contextmanager
def vllm_with_adapters(pair: Pair, *, directory: Path) -> Iterator[Server]:
    """A vLLM of v1.3 that takes adapters; two versions of one lie in the folder of its log."""
    for version in range(2):
        train_lora(_ADAPTED, first_conversation=version)(pair.new, directory / f"lora-{version}")
    log, settings = directory / "vllm.log", ("--enable-lora", "--max-lora-rank", "16")
    runtime = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    with vllm_server(pair.new, served_model_name=MODEL, log_path=log, extra_args=settings, env=runtime) as server:
        yield server


def _load_adapter(server: Server, version: Path) -> None:
    """Replaces the files that the adapter's name stands for, and has vLLM read them anew."""
    served = version.parent / _ADAPTER
    shutil.copytree(version, served, dirs_exist_ok=True)
    _post(server, "/v1/load_lora_adapter", {"lora_name": _ADAPTER, "lora_path": str(served), "load_inplace": True})


def adapter_replaced(stage: Stage, server: Server) -> Run:
    """A LoRA's second version is loaded under the first one's name, and the cache keeps what the first one computed."""
    old, new = (server.log_path.parent / f"lora-{version}" for version in range(2))
    flush(server)
    _load_adapter(server, old)
    users(server, stage.prompts, model=_ADAPTER)
    _load_adapter(server, new)
    if not stage.stale:
        flush(server)
        users(server, stage.prompts, model=_ADAPTER)
    releases = []
    for version in (old, new):
        release = stage.directory / f"{version.name}.json"
        adapted = ("--adapter", f"{_ADAPTER}={version}")
        stage.operator.run("fingerprint", stage.pair.new, *adapted, "-o", release).expect(0)
        releases.append(release)
    return stage.verify(server.url, old=releases[0], new=releases[1], model=_ADAPTER)


# --- vLLM over a store ------------------------------------------------------------------------------------------------


@contextmanager
def vllm_over_a_store(pair: Pair, *, directory: Path) -> Iterator[Server]:
    """A vLLM of v1.3 over a persistent store, `store` in the folder of its log; `left` there is what v1.2 wrote."""
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(directory / "store")},
    }
    settings = ("--kv-transfer-config", json.dumps(connector))
    log, prompts = directory / "old.log", write_dozen(directory / "dozen.yaml")
    with vllm_server(pair.old, served_model_name=MODEL, log_path=log, extra_args=settings) as old:
        users(old, prompts, at_once=1)
    (directory / "store").rename(directory / "left")
    log = directory / "new.log"
    with vllm_server(pair.new, served_model_name=MODEL, log_path=log, extra_args=settings) as server:
        yield server


def restarted_over_a_store(stage: Stage, server: Server) -> Run:
    """A new process of v1.3 opens the directory that v1.2 filled; its keys are tokens, and it knows no salt."""
    directory = server.log_path.parent
    shutil.rmtree(directory / "store", ignore_errors=True)
    if stage.stale:
        shutil.copytree(directory / "left", directory / "store")
    flush(server)
    if not stage.stale:
        users(server, stage.prompts, at_once=1)
    return stage.verify(server.url, reference="local")


@dataclasses.dataclass(frozen=True)
class OnVllm:
    """Scenarios that one server serves.

    Attributes:
        start: that server, from the pair and a folder of its own.
        scenarios: in the order in which they play.
    """

    start: Callable[..., AbstractContextManager[Server]]
    scenarios: tuple[Scenario, ...]


VLLM = (
    OnVllm(
        start=vllm,
        scenarios=(
            Scenario("in-place reload", "consistency", reload_in_place),
            Scenario("in-place reload, under load", "consistency", reload_under_load),
            Scenario("clients half bound", "consistency", clients_half_bound),
            Scenario("salt misspelt", "binding", salt_misspelt),
            Scenario("rollback", "consistency", rolled_back),
            Scenario("old weights under the new label", "identity", old_weights_under_the_new_label),
        ),
    ),
    OnVllm(
        start=vllm_with_adapters,
        scenarios=(Scenario("adapter replaced under its name", "consistency", adapter_replaced),),
    ),
    OnVllm(
        start=vllm_over_a_store,
        scenarios=(Scenario("restart over a persistent store", "consistency", restarted_over_a_store),),
    ),
)


# --- llama.cpp -------------------------------------------------------------------------------------------------------

_SLOT = "support.bin"
QUANTISED_KV = ("-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0")
FOUR_SLOTS = ("-np", "4", "-c", "16384")


@contextmanager
def _llamacpp(stage: Stage, gguf: Path, name: str, settings: Sequence[str]) -> Iterator[Server]:
    slots = stage.directory / "slots"
    slots.mkdir(exist_ok=True)
    log = stage.directory / f"{name}.log"
    with llamacpp_server(gguf, extra_args=settings, slot_dir=slots, log_path=log) as server:
        yield server


def _slot(server: Server, action: str) -> None:
    _post(server, f"/slots/0?action={action}", {"filename": _SLOT})


def _save_old_slot(stage: Stage, settings: Sequence[str] = ()) -> None:
    with _llamacpp(stage, stage.pair.old_gguf, "old", settings) as old:
        users(old, stage.prompts, at_once=1)
        _slot(old, "save")


def slot_restored(stage: Stage, *, settings: Sequence[str] = (), loaded: bool = False) -> Run:
    """A slot file of v1.2 is restored into v1.3; or v1.3 starts empty, and users come."""
    if stage.stale:
        _save_old_slot(stage, settings)
    with _llamacpp(stage, stage.pair.new_gguf, "new", settings) as new, ExitStack() as stack:
        if stage.stale:
            _slot(new, "restore")
        else:
            users(new, stage.prompts, at_once=1)
        if loaded:
            stack.enter_context(load(new))
        return stage.verify(new.url)


def one_bad_replica_of_three(stage: Stage) -> Run:
    """Three replicas of v1.3, and one of them restored a slot of v1.2."""
    if stage.stale:
        _save_old_slot(stage)
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(_llamacpp(stage, stage.pair.new_gguf, f"new-{number}", ())) for number in range(3)
        ]
        if stage.stale:
            _slot(replicas[1], "restore")
        for replica in replicas:
            if replica is not replicas[1] or not stage.stale:
                users(replica, stage.prompts, at_once=1)
        return stage.verify(*(replica.url for replica in replicas))


def old_gguf_under_the_new_label(stage: Stage) -> Run:
    """The roll-out said v1.3, and a llama-server of v1.2 answers."""
    gguf = stage.pair.old_gguf if stage.stale else stage.pair.new_gguf
    with _llamacpp(stage, gguf, "served", ()) as server:
        users(server, stage.prompts, at_once=1)
        return stage.verify(server.url)


def quantised_slot_restored(stage: Stage) -> Run:
    """The same with KV in eight bits."""
    return slot_restored(stage, settings=QUANTISED_KV)


def slot_restored_under_load(stage: Stage) -> Run:
    """The same in one of four slots, while another client keeps eight requests in flight."""
    return slot_restored(stage, settings=FOUR_SLOTS, loaded=True)


LLAMACPP = (
    Scenario("slot restore", "consistency", slot_restored),
    Scenario("slot restore, quantised KV", "consistency", quantised_slot_restored),
    Scenario("slot restore, under load", "consistency", slot_restored_under_load),
    Scenario("one bad replica of three", "consistency", one_bad_replica_of_three),
    Scenario("old weights under the new label", "identity", old_gguf_under_the_new_label),
)
"""Each starts the servers that it needs."""
