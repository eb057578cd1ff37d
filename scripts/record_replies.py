"""Record what real servers reply, as contracts for unit tests: `python scripts/record_replies.py vllm|llamacpp FOLDER`.

`sglang FOLDER URL` records a server that runs already, with v1.2 (`docs/engines.md` says how it was started).

Each JSON file holds the request, the HTTP status and the reply as it came, with this machine's paths replaced by
`/models/…`. Needs `python scripts/engines.py install`, httpx and PyYAML.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.live.servers import installed, llamacpp_server, vllm_server  # noqa: E402 - needs the line above

MODEL = "smollm2"
REQUEST_S = 180.0  # the first 750 tokens take 2 s alone, and 60 s beside a compiler
MOST_TOKENS_KEPT = 1000  # a refused prompt is longer; its ids say nothing
RECORDED_PROMPT = "returns-store-return"  # v1.2, v1.3 and v1.3 on v1.2's cache give three texts
SGLANG_CHARACTERS = 400
KEPT_OF_SYSTEM = ("torch_version", "is_cuda_available", "cuda_compiled_version")
# Absolute paths of this machine, inside any string.
PATHS = re.compile(r"(?<![\w.])/(?:root|home|tmp|usr|opt|work|var|mnt|data)(?:/[\w.@+-]+)+")


def scrub(value: Any, *, known: dict[str, str]) -> Any:
    """The reply without this machine: model paths become `/models/…`, other absolute paths `/removed`."""
    match value:
        case dict():
            kept = {k: v for k, v in value.items() if k != "system_env"}
            if "system_env" in value:
                kept["system_env"] = {k: value["system_env"][k] for k in KEPT_OF_SYSTEM}
            return {scrub(k, known=known): scrub(v, known=known) for k, v in kept.items()}
        case list():
            return [scrub(v, known=known) for v in value]
        case str():
            for path, name in known.items():
                value = value.replace(path, name)
            return re.sub(r"\b(?:192|10|172)\.\d+\.\d+\.\d+", "127.0.0.1", PATHS.sub("/removed", value))
        case _:
            return value


@dataclass
class Recorder:
    """Sends requests to one server and writes each with its reply.

    Attributes:
        client: with the server's base URL.
        folder: receives one file per exchange.
        known: path on this machine to the name it gets in the files.
    """

    client: httpx.Client
    folder: Path
    known: dict[str, str]

    def __call__(self, name: str, path: str, body: dict[str, Any] | None = None, *, method: str | None = None) -> Any:
        """Send one request, write `NAME.json` (`.txt` for plain text), and return the reply."""
        method = method or ("GET" if body is None else "POST")
        reply = self.client.request(method, path, json=body)
        if "json" not in reply.headers.get("content-type", ""):
            (self.folder / f"{name}.txt").write_text(scrub(reply.text, known=self.known))
            return reply.text
        sent = body
        if body is not None and isinstance(body.get("prompt"), list) and len(body["prompt"]) > MOST_TOKENS_KEPT:
            sent = {**body, "prompt": f"<{len(body['prompt'])} token ids>"}
        document = {"request": {"method": method, "path": path, "body": sent}, "status": reply.status_code}
        document["reply"] = reply.json()
        text = json.dumps(scrub(document, known=self.known), indent=1, ensure_ascii=False)
        (self.folder / f"{name}.json").write_text(text + "\n")
        print(f"{name}: {reply.status_code}, {reply.elapsed.total_seconds():.2f} s", flush=True)
        return reply.json()


def production_chat() -> dict[str, Any]:
    """One request of `prompts/support.yaml`, greedy, with log-probabilities."""
    document = yaml.safe_load((ROOT / "prompts" / "support.yaml").read_text())
    (chosen,) = (prompt for prompt in document["prompts"] if prompt["id"] == RECORDED_PROMPT)
    messages = [
        {"role": "system", "content": document["systems"][chosen["system"]]},
        {"role": "user", "content": chosen["user"]},
    ]
    greedy = {"temperature": 0, "top_p": 1, "seed": 0, "max_tokens": 24}
    return {"model": MODEL, "messages": messages, **greedy, "logprobs": True, "top_logprobs": 5}


def record_vllm(folder: Path, logs: Path) -> None:
    """Every reply of vLLM that the tool reads, and the stale answer after an in-place reload."""
    old, new = installed("smollm2-v1.2"), installed("smollm2-v1.3")
    known = {str(old): "/models/smollm2-v1.2", str(new): "/models/smollm2-v1.3"}
    chat = production_chat()
    short = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 4}
    with (
        vllm_server(old, served_model_name=MODEL, log_path=logs / "vllm.log") as server,
        httpx.Client(base_url=server.url, timeout=REQUEST_S, trust_env=False) as client,
    ):
        print(f"vLLM up in {server.start_s:.1f} s", flush=True)
        record = Recorder(client, folder, known)
        record("version", "/version")
        record("models", "/v1/models")
        record("server_info", "/server_info?config_format=json")
        record("weight_info", "/weight_info")
        tokens = record("tokenize_messages", "/tokenize", {"model": MODEL, "messages": chat["messages"]})["tokens"]
        record("tokenize_prompt", "/tokenize", {"model": MODEL, "prompt": "Order 42", "return_token_strs": True})
        record("chat_cold", "/v1/chat/completions", chat)
        record("chat_hit", "/v1/chat/completions", chat)
        record("chat_salted", "/v1/chat/completions", {**chat, "cache_salt": "kv1-recorded-e0"})
        record("chat_bypassed", "/v1/chat/completions", {**chat, "prompt_logprobs": 0})
        record("chat_token_ids", "/v1/chat/completions", {**short, "return_token_ids": True, "logprobs": True})
        record(
            "chat_tokens_as_ids",
            "/v1/chat/completions",
            {**short, "return_tokens_as_token_ids": True, "logprobs": True, "top_logprobs": 2},
        )
        completion = {"model": MODEL, "prompt": tokens, "temperature": 0, "max_tokens": 4, "logprobs": 5}
        record("completion_ids", "/v1/completions", {**completion, "return_token_ids": True})
        record(
            "chat_stream", "/v1/chat/completions", {**short, "stream": True, "stream_options": {"include_usage": True}}
        )
        record("bad_salt", "/v1/chat/completions", {**short, "cache_salt": "a/b"})
        record("unknown_model", "/v1/chat/completions", {**short, "model": "nobody"})
        record("too_long", "/v1/completions", {"model": MODEL, "prompt": tokens * 6, "max_tokens": 4})
        record("metrics", "/metrics")
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(new)}}
        record("reload_weights", "/collective_rpc", reload)
        record("chat_stale", "/v1/chat/completions", chat)
        record("models_after_reload", "/v1/models")
        record("reset_prefix_cache", "/reset_prefix_cache", method="POST")
        record("chat_clean_new", "/v1/chat/completions", chat)


def record_llamacpp(folder: Path, logs: Path) -> None:
    """Every reply of llama-server that the tool reads, and the stale answer after a slot is restored."""
    old, new = installed("smollm2-v1.2.gguf"), installed("smollm2-v1.3.gguf")
    known = {str(old): "/models/smollm2-v1.2.gguf", str(new): "/models/smollm2-v1.3.gguf"}
    chat = production_chat()
    slots = logs / "slots"
    slots.mkdir()
    known[f"{slots}/"] = "/models/slots/"
    with (
        llamacpp_server(old, log_path=logs / "old.log", slot_dir=slots) as server,
        httpx.Client(base_url=server.url, timeout=REQUEST_S, trust_env=False) as client,
    ):
        print(f"llama.cpp up in {server.start_s:.1f} s", flush=True)
        record = Recorder(client, folder, known)
        record("health", "/health")
        record("props", "/props")
        record("models", "/v1/models")
        template = record("apply_template", "/apply-template", {"messages": chat["messages"]})["prompt"]
        content = {"content": template, "add_special": False, "parse_special": True}
        tokens = record("tokenize", "/tokenize", content)["tokens"]
        record("tokenize_pieces", "/tokenize", {"content": "Order 42", "with_pieces": True})
        record("chat_cold", "/v1/chat/completions", chat)
        record("chat_hit", "/v1/chat/completions", chat)
        record("slots", "/slots")
        record("metrics", "/metrics")
        record("slot_save", "/slots/0?action=save", {"filename": "support.bin"})
        record("chat_bypassed", "/v1/chat/completions", {**chat, "cache_prompt": False})
        record("chat_return_tokens", "/v1/chat/completions", {**chat, "return_tokens": True, "max_tokens": 4})
        completion = {"prompt": tokens, "temperature": 0, "n_predict": 4, "n_probs": 5, "return_tokens": True}
        record("completion_ids", "/completion", completion)
        record(
            "completion_openai",
            "/v1/completions",
            {"model": MODEL, "prompt": tokens, "temperature": 0, "max_tokens": 4, "logprobs": 5},
        )
        stream = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 4}
        record("chat_stream", "/v1/chat/completions", {**chat, **stream, "logprobs": False, "top_logprobs": None})
        record("too_long", "/completion", {"prompt": tokens * 6, "n_predict": 4})
    with (
        llamacpp_server(new, log_path=logs / "new.log", slot_dir=slots) as server,
        httpx.Client(base_url=server.url, timeout=REQUEST_S, trust_env=False) as client,
    ):
        record = Recorder(client, folder, known)
        record("slot_restore", "/slots/0?action=restore", {"filename": "support.bin"})
        record("chat_stale", "/v1/chat/completions", chat)
        record("slot_erase", "/slots/0?action=erase", {})
        record("chat_clean_new", "/v1/chat/completions", chat)
        record("slot_restore_missing", "/slots/0?action=restore", {"filename": "nothing.bin"})


def record_sglang(folder: Path, url: str) -> None:
    """Every reply of a running SGLang that the tool reads, and the stale answer after an in-place update."""
    old, new = installed("smollm2-v1.2"), installed("smollm2-v1.3")
    known = {str(old): "/models/smollm2-v1.2", str(new): "/models/smollm2-v1.3"}
    chat = {**production_chat(), "max_tokens": 4, "return_cached_tokens_details": True}
    # Without the kernels of SGLang's CPU build a prefill takes a second per 20 tokens.
    chat["messages"] = [{**message, "content": message["content"][:SGLANG_CHARACTERS]} for message in chat["messages"]]
    whole = {**chat, "return_meta_info": True}
    stream = {**chat, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.Client(base_url=url, timeout=REQUEST_S, trust_env=False) as client:
        record = Recorder(client, folder, known)
        record("flush_cache", "/flush_cache", method="POST")
        record("model_info", "/model_info")
        record("models", "/v1/models")
        record("server_info", "/server_info")
        asked = {"model": MODEL, "messages": chat["messages"]}
        tokens = record("tokenize_messages", "/v1/tokenize", asked)["tokens"]
        record("chat_cold", "/v1/chat/completions", whole)
        record("chat_hit", "/v1/chat/completions", whole)
        record("chat_salted", "/v1/chat/completions", {**whole, "extra_key": "kv1-recorded-e0"})
        record("chat_bypassed", "/v1/chat/completions", {**whole, "cache_salt": "kvrelease-bypass-recorded"})
        record("chat_stream", "/v1/chat/completions", stream)
        completion = {"model": MODEL, "prompt": tokens, "temperature": 0, "max_tokens": 4, "logprobs": 5}
        details = {"return_cached_tokens_details": True, "return_token_ids": True}
        record("completion_ids", "/v1/completions", {**completion, **details})
        record("any_model", "/v1/completions", {**completion, "model": "nobody", "max_tokens": 1})
        record("too_long", "/v1/completions", {"model": MODEL, "prompt": tokens * 80, "max_tokens": 4})
        record("bad_request", "/v1/chat/completions", {**stream, "return_meta_info": True})
        record("metrics", "/metrics")
        update = {"flush_cache": False}
        record(
            "update_weights", "/update_weights_from_disk", {**update, "model_path": str(new), "weight_version": "v1.3"}
        )
        record("chat_stale", "/v1/chat/completions", whole)
        greedy = {"sampling_params": {"temperature": 0, "max_new_tokens": 4}}
        recompute = {"input_ids": tokens, **greedy, "return_logprob": True, "logprob_start_len": 0}
        record("generate_recomputed_stale", "/generate", recompute)
        record("chat_bypassed_stale", "/v1/chat/completions", {**whole, "cache_salt": "kvrelease-bypass-again"})
        record("model_info_after_update", "/model_info")
        client.post("/flush_cache")
        record("chat_clean_new", "/v1/chat/completions", whole)
        client.post("/update_weights_from_disk", json={**update, "model_path": str(old), "weight_version": "default"})


RECORDINGS: dict[str, Callable[[Path, Path], None]] = {"vllm": record_vllm, "llamacpp": record_llamacpp}


def main(engine: str, folder: Path, url: str | None = None) -> None:
    """Record one engine into `FOLDER/ENGINE`."""
    target = folder / engine
    target.mkdir(parents=True, exist_ok=True)
    if url is not None:
        record_sglang(target, url)
        return
    with tempfile.TemporaryDirectory() as logs:
        RECORDINGS[engine](target, Path(logs))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
