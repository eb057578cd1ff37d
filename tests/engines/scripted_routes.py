"""The routes of the scripted engine, in the spelling of the server that it imitates (see `scripted.py`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from kvrelease.engines.base import EngineKind
from tests.engines import scripted_sglang
from tests.engines.scripted_break import Break
from tests.engines.scripted_cache import SlotCache
from tests.engines.scripted_model import chat_prompt, token_ids, word_id
from tests.http_servers import QuickHandler

if TYPE_CHECKING:
    from tests.engines.scripted import Generation, ScriptedEngine

Json = dict[str, Any]

BUILD = "b11434-scripted"
VERSION = "0.32.0"
PAGE = b"<!DOCTYPE html><html><head><title>Welcome to the gateway</title></head><body>Hello</body></html>"
GENERATIONS = ("/v1/chat/completions", "/v1/completions")


class Handler(QuickHandler):
    """One connection. `engine` is set on a subclass made for each engine."""

    engine: ScriptedEngine

    def do_GET(self) -> None:
        self._serve("GET", {})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        self._serve("POST", json.loads(data) if data else {})

    def _serve(self, method: str, body: Json) -> None:
        from tests.engines.scripted import Seen

        engine, url = self.engine, urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        engine.routing.port = self.client_address[1]
        engine.requests.append(Seen(method, url.path, headers, body))
        broken = engine.take_breakage(url.path)
        try:
            if engine.api_key is not None and url.path.startswith("/v1") and not self._is_authorised():
                self._unauthorized()
            elif broken is not None and self._broke(broken, body):
                pass
            elif engine.refuses(url.path, body):
                self._json(
                    engine.refused_status, _error("At most 0 image(s)", "BadRequestError", engine.refused_status)
                )
            elif url.path in GENERATIONS and method == "POST":
                self._generation(url.path, body, broken)
            else:
                self._other(method, url.path, parse_qs(url.query), body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # --- generations -------------------------------------------------------------------------------------------------

    def _generation(self, path: str, body: Json, broken: Break | None) -> None:
        engine = self.engine
        if fault := self._refused(path, body):
            self._json(*fault)
            return
        rank = engine.routed({name.lower(): value for name, value in self.headers.items()})
        if rank >= engine.ranks:
            words = f"data_parallel_rank {rank} is out of range [0, {engine.ranks})."
            self._json(400, _error(words, "BadRequestError", 400))
            return
        engine.routing.rank = rank
        made = [engine.generate(prompt, body) for prompt in engine.prompt_ids(path, body)]
        if broken is Break.THINKING:
            self._json(200, self._answer(path, body, made, message={"role": "assistant", "content": None}))
        elif body.get("stream"):
            self._stream(path, body, made[0], broken)
        else:
            payload = self._answer(path, body, made)
            if broken is Break.EMPTY:
                payload = self._emptied(payload)
            if broken is Break.NAN:
                _spoil(payload)
            kind = "text/html" if broken is Break.WRONG_TYPE else "application/json"
            # Of NaN, which is no JSON, the standard library alone makes what careless servers write.
            data = json.dumps(payload).encode() if broken is Break.NAN else msgspec.json.encode(payload)
            self._send(200, data, kind)

    def _refused(self, path: str, body: Json) -> tuple[int, Json] | None:  # noqa: PLR0911 - one per rule
        engine = self.engine
        is_llama, is_sglang = engine.kind is EngineKind.LLAMACPP, engine.kind is EngineKind.SGLANG
        if body.get("model") not in (None, engine.model, *engine.loras) and not (is_llama or is_sglang):
            return 404, _error(f"The model `{body['model']}` does not exist.", "NotFoundError", 404)
        longest = max(len(prompt) for prompt in engine.prompt_ids(path, body))
        if is_sglang:
            return scripted_sglang.refused(engine, is_chat=path == GENERATIONS[0], longest=longest, body=body)
        if is_llama and longest >= engine.context_tokens:
            words = f"request ({longest} tokens) exceeds the available context size ({engine.context_tokens} tokens)"
            return 400, _error(words, "exceed_context_size_error", 400)
        if longest >= engine.context_tokens:
            words = (
                f"This model's maximum context length is {engine.context_tokens} tokens. However, your prompt contains "
                f"{longest} input tokens, which exceeds this limit even without any output tokens."
            )
            return 400, _error(words, "BadRequestError", 400)
        if engine.kind is EngineKind.VLLM:
            salt = body.get("cache_salt")
            if salt is not None and (not salt or len(salt) > 128 or any(c in salt for c in "@/\\\0")):
                return 400, _error("cache_salt is malformed", "BadRequestError", 400)
            if body.get("prompt_logprobs") is not None and body.get("stream"):
                return 400, _error("`prompt_logprobs` are not available when `stream=True`.", "BadRequestError", 400)
        if body.get("stream_options") and not body.get("stream"):
            return 400, _error("Stream options can only be defined when `stream=True`.", "BadRequestError", 400)
        return None

    def _answer(self, path: str, body: Json, made: list[Generation], message: Json | None = None) -> Json:
        choices = []
        is_sglang = self.engine.kind is EngineKind.SGLANG
        for index, one in enumerate(made):
            choice: Json = {"index": index, "finish_reason": "length"}
            text = " ".join(one.words)
            if path == GENERATIONS[0]:
                choice["message"] = message or {"role": "assistant", "content": text}
            else:
                choice["text"] = text
            if message is None:
                choice["logprobs"] = self._logprobs(path, body, one, range(len(one.words)))
                choice |= self._ids(body, one.words)
            if is_sglang:
                is_chat = path == GENERATIONS[0]
                choice |= scripted_sglang.choice_fields(self.engine, is_chat=is_chat, body=body, made=one)
            choices.append(choice)
        payload = self._common(path, "", body) | {"choices": choices, "usage": self._usage(made)}
        if is_sglang:
            payload |= scripted_sglang.answer_fields(self.engine, body=body, made=made[0])
        if self.engine.kind is EngineKind.LLAMACPP and self.engine.reports_cached_tokens:
            payload["timings"] = {"cache_n": made[0].cached, "prompt_n": made[0].prompt_tokens - made[0].cached}
        return payload

    def _stream(self, path: str, body: Json, made: Generation, broken: Break | None) -> None:
        is_chat = path == GENERATIONS[0]
        chunks: list[Json] = []
        if is_chat:
            chunks.append({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
        for index, word in enumerate(made.words):
            text = word if index == 0 else f" {word}"
            part: Json = {"delta": {"content": text}} if is_chat else {"text": text}
            probs = {"logprobs": self._logprobs(path, body, made, range(index, index + 1))}
            chunks.append({"index": 0, "finish_reason": None} | part | probs | self._ids(body, [word]))
        last: Json = {"delta": {}} if is_chat else {"text": ""}
        chunks.append({"index": 0, "finish_reason": "length"} | last)
        common = self._common(path, ".chunk", body)
        events = [common | {"choices": [chunk]} for chunk in chunks]
        if self.engine.kind is EngineKind.SGLANG and (
            beyond := scripted_sglang.extension(self.engine, body=body, made=made)
        ):
            events.append(common | {"choices": []} | beyond)
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append(common | {"choices": [], "usage": self._usage([made])})
        if self.engine.kind is EngineKind.LLAMACPP and self.engine.reports_cached_tokens:
            events[-1]["timings"] = {"cache_n": made.cached, "prompt_n": made.prompt_tokens - made.cached}
        if broken is Break.ERROR_EVENT:
            events = [events[0], _error("the engine core died", "InternalServerError", 500)]
        if broken is Break.EMPTY:
            events = [common | {"choices": [chunks[-1] | {"finish_reason": "stop"}]}]
        self._events(events, broken)

    def _events(self, events: list[Json], broken: Break | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(b": a comment, to be skipped\n\n")
        for index, event in enumerate(events):
            if broken in (Break.DROP, Break.CUT) and index == 2:
                if broken is Break.CUT:
                    self._chunk(b"")
                self.wfile.flush()
                self.close_connection = True
                return
            self._chunk(b"data: " + msgspec.json.encode(event) + b"\n\n")
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _logprobs(self, path: str, body: Json, made: Generation, positions: Iterable[int]) -> Json | None:
        """The log-probabilities in the shape of the route; llama.cpp has chat's shape on both, with ids."""
        is_chat = path == GENERATIONS[0]
        count = body.get("top_logprobs", 0) if is_chat else body.get("logprobs")
        if not body.get("logprobs") or count is None:
            return None
        wanted = [(made.words[index], made.tops[index][: int(count)], made.tops[index][0][1]) for index in positions]
        is_llama = self.engine.kind is EngineKind.LLAMACPP
        if is_chat or is_llama:
            content = [
                {
                    "token": word,
                    "logprob": chosen,
                    "bytes": list(word.encode()),
                    "top_logprobs": [{"token": token, "logprob": value} for token, value in top],
                }
                | ({"id": word_id(word)} if is_llama else {})
                for word, top, chosen in wanted
            ]
            return {"content": content}
        return {
            "text_offset": [0] * len(wanted),
            "tokens": [word for word, _, _ in wanted],
            "token_logprobs": [chosen for _, _, chosen in wanted],
            "top_logprobs": [dict(top) for _, top, _ in wanted],
        }

    def _ids(self, body: Json, words: list[str]) -> Json:
        is_completion = "messages" not in body
        tells = self.engine.kind is EngineKind.VLLM or (self.engine.kind is EngineKind.SGLANG and is_completion)
        if not tells or not body.get("return_token_ids"):
            return {}
        return {"token_ids": [word_id(word) for word in words]}

    def _common(self, path: str, suffix: str, body: Json) -> Json:
        is_llama = self.engine.kind is EngineKind.LLAMACPP
        name = "chat.completion" if path == GENERATIONS[0] else "text_completion"
        common: Json = {
            "id": "cmpl-scripted",
            "object": name + (suffix if name.startswith("chat") else ""),
            "created": 1,
        }
        if self.engine.kind is EngineKind.SGLANG:
            return common | {"model": body.get("model", "default")}  # an echo
        fingerprint = BUILD if is_llama else self.engine.fingerprint or f"vllm-{VERSION}-00000000"
        model = body["model"] if body.get("model") in self.engine.loras else self.engine.model
        return common | {"model": model, "system_fingerprint": fingerprint}

    def _usage(self, made: list[Generation]) -> Json:
        prompt = sum(one.prompt_tokens for one in made)
        generated = sum(len(one.words) for one in made)
        cached = {"cached_tokens": sum(one.cached for one in made)}
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": cached if self.engine.reports_cached_tokens else None,
        }
        return self.engine.usage(usage)

    def _emptied(self, payload: Json) -> Json:
        for choice in payload["choices"]:
            choice.update(finish_reason="stop", logprobs=None, token_ids=None)
            choice.update({"message": {"role": "assistant", "content": ""}} if "message" in choice else {"text": ""})
        payload["usage"]["completion_tokens"] = 0
        return payload

    # --- misbehaviour ------------------------------------------------------------------------------------------------

    def _broke(self, how: Break, body: Json) -> bool:  # noqa: PLR0912 - one per fault
        """Whether the misbehaviour was the whole answer."""
        match how:
            case Break.HTML:
                self._send(200, PAGE, "application/json")
            case Break.LOGIN:
                self._send(302, b"", "text/html", location="https://login.example/start?return=secret")
            case Break.UNAUTHORIZED:
                self._unauthorized()
            case Break.FORBIDDEN:
                self._fault(403, "Forbidden", "PermissionError")
            case Break.NO_ROUTE:
                self._json(404, {"detail": "Not Found"})
            case Break.BAD_REQUEST:
                quoted = body.get("prompt") or body["messages"][-1]["content"]
                self._fault(400, f"{{'msg': 'Field wrong', 'text': {quoted!r}}}", "BadRequestError")
            case Break.BUSY:
                self._send(429, json.dumps(_error("too many requests", "RateLimit", 429)).encode(), retry_after="0")
            case Break.LOADING:
                self._fault(503, "Loading model", "unavailable_error")
            case Break.CRASHING:
                self._fault(500, "Internal Server Error", "InternalServerError")
            case Break.INFINITE if body.get("logprobs"):
                self._fault(500, "Out of range float values are not JSON compliant: -inf", "Internal")
            case Break.HANG:
                self.engine.closing.wait()
                self.close_connection = True
            case Break.DROP if not body.get("stream"):
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"choices": [')
                self.wfile.flush()
                self.close_connection = True
            case Break.NOT_JSON:
                self._send(200, b'{"choices": [{"text": "Yes', "application/json")
            case Break.HUGE:
                self._send(200, b'{"x": "' + b"y" * 1_000_000 + b'"}')
            case Break.NO_CHOICES:
                self._json(200, {"choices": []})
            case Break.ERROR_EVENT if not body.get("stream"):
                self._json(200, _error("the engine core died", "InternalServerError", 500))
            case _:
                return False
        return True

    def _is_authorised(self) -> bool:
        return self.headers.get("authorization") == f"Bearer {self.engine.api_key}"

    def _unauthorized(self) -> None:
        given = self.headers.get("authorization")
        self._json(401, _error(f"Incorrect API key provided: {given}", "AuthenticationError", 401))

    # --- everything else ---------------------------------------------------------------------------------------------

    def _other(self, method: str, path: str, query: dict[str, list[str]], body: Json) -> None:
        engine = self.engine
        match method, path, engine.kind:
            case "GET", "/health", _:
                self._json(200, {"status": "ok"})
            case "GET", "/v1/models", _:
                is_sglang = engine.kind is EngineKind.SGLANG
                models = scripted_sglang.model(engine) if is_sglang else [*self._names(), *self._loras()]
                self._json(200, {"object": "list", "data": models})
            case "GET", "/metrics", EngineKind.SGLANG if engine.has_metrics:
                self._send(200, scripted_sglang.metrics(engine).encode(), "text/plain; version=0.0.4")
            case "GET", "/metrics", EngineKind.VLLM | EngineKind.LLAMACPP if engine.has_metrics:
                started = str(int(engine.started)) if engine.kind is EngineKind.LLAMACPP else None
                self._send(200, self._metrics().encode(), "text/plain; version=0.0.4", process_start_time_unix=started)
            case _, _, EngineKind.VLLM:
                self._vllm(method, path, body)
            case _, _, EngineKind.LLAMACPP:
                self._llamacpp(method, path, query, body)
            case _, _, EngineKind.SGLANG if found := scripted_sglang.reply(engine, method, path, body):
                status, data = found
                self._send(status, data, "text/plain") if isinstance(data, bytes) else self._json(status, data)
            case _:
                self._missing()

    def _model(self) -> Json:
        engine = self.engine
        model: Json = {"id": engine.model, "object": "model", "created": 1}
        match engine.kind:
            case EngineKind.VLLM:
                return model | {"owned_by": "vllm", "root": engine.root, "max_model_len": engine.context_tokens}
            case EngineKind.LLAMACPP:
                meta = {"n_ctx": engine.context_tokens, "n_params": 134515008, "size": 90100000}
                return model | {"owned_by": "llamacpp", "aliases": [], "meta": meta}
            case _:
                return model | {"owned_by": "somebody"}

    def _names(self) -> list[Json]:
        """The model by each of its names, as vLLM lists them."""
        return [self._model() | {"id": name} for name in (self.engine.model, *self.engine.other_names)]

    def _loras(self) -> list[Json]:
        """Adapters, as vLLM lists them beside the model that they change."""
        parent = self.engine.model
        return [
            {
                "id": name,
                "object": "model",
                "created": 1,
                "owned_by": "vllm",
                "root": f"/adapters/{name}",
                "parent": parent,
            }
            for name in self.engine.loras
        ]

    def _vllm(self, method: str, path: str, body: Json) -> None:
        engine = self.engine
        match method, path:
            case "GET", "/version":
                self._json(200, {"version": VERSION})
            case "POST", "/tokenize":
                ids = [token + engine.token_shift for token in engine.tokens_of(body)]
                self._json(200, {"count": len(ids), "max_model_len": engine.context_tokens, "tokens": ids})
            case "GET", "/server_info" if engine.has_dev_routes:
                self._json(200, {"vllm_config": self._config(), "vllm_env": {}, "system_env": {}})
            case "GET", "/weight_info" if engine.has_dev_routes:
                self._json(200, {"weight_version": "default"})
            case "POST", "/reset_prefix_cache" if engine.has_dev_routes:
                if engine.flush_reply is not None:
                    self._send(*engine.flush_reply)
                else:
                    engine.flush()
                    self._json(200, {"success": True})
            case "POST", "/collective_rpc" if engine.has_dev_routes:
                engine.reload(body["kwargs"]["weights_path"].rstrip("/").rpartition("/")[2])
                self._json(200, {"results": [None]})
            case _:
                self._missing()

    def _llamacpp(self, method: str, path: str, query: dict[str, list[str]], body: Json) -> None:
        engine = self.engine
        match method, path.split("/")[1:]:
            case "GET", ["props"]:
                self._json(200, self._props())
            case "POST", ["apply-template"]:
                self._json(200, {"prompt": chat_prompt(body)})
            case "POST", ["tokenize"]:
                ids = token_ids(body["content"])
                self._json(200, {"tokens": ids if body.get("add_special") else ids[1:]})
            case "POST", ["slots", number]:
                if not engine.has_dev_routes:
                    words = "This server does not support slots action. Start it with `--slot-save-path`"
                    self._json(501, _error(words, "not_supported_error", 501))
                    return
                self._slot(int(number), query["action"][0], body)
            case _:
                self._missing()

    def _slot(self, number: int, action: str, body: Json) -> None:
        cache = self.engine.cache
        assert isinstance(cache, SlotCache)
        slot = cache.slots[number]
        with self.engine.lock:
            match action:
                case "save":
                    self.engine.slot_files[body["filename"]] = (list(slot.tokens), list(slot.provenance))
                    self._json(200, {"id_slot": number, "n_saved": len(slot.tokens)})
                case "restore" if body["filename"] in self.engine.slot_files:
                    # No identity is checked: that is the incident.
                    tokens, provenance = self.engine.slot_files[body["filename"]]
                    slot.tokens, slot.provenance = list(tokens), list(provenance)
                    self._json(200, {"id_slot": number, "n_restored": len(slot.tokens)})
                case "erase":
                    erased, slot.tokens, slot.provenance = len(slot.tokens), [], []
                    self._json(200, {"id_slot": number, "n_erased": erased})
                case _:
                    self._json(400, _error("Invalid action or file", "invalid_request_error", 400))

    def _props(self) -> Json:
        engine = self.engine
        return {
            "default_generation_settings": {"n_ctx": engine.context_tokens},
            "total_slots": engine.slots,
            "model_alias": engine.model,
            "model_path": f"{engine.root}.gguf",
            "model_ftype": "Q4_1",
            "endpoint_slots": True,
            "endpoint_metrics": engine.has_metrics,
            "build_info": BUILD,
        }

    def _connector(self) -> Json:
        extra = {"shared_storage_path": self.engine.store_path, "password": "hunter2"}
        return {"kv_connector": "ExampleConnector", "kv_connector_extra_config": extra}

    def _config(self) -> Json:
        engine = self.engine
        return {
            "model_config": {
                "model": engine.root,
                "dtype": "torch.bfloat16",
                "max_model_len": engine.context_tokens,
                "quantization": None,
                "hf_overrides": {},
            },
            "cache_config": {
                "block_size": engine.block_tokens,
                "cache_dtype": "auto",
                "num_gpu_blocks": engine.capacity_blocks,
                "enable_prefix_caching": True,
            },
            "speculative_config": {"method": "mtp"} if engine.gives_up_a_block else None,
            "kv_transfer_config": self._connector() if engine.has_store else None,
            "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1},
        }

    def _metrics(self) -> str:
        engine = self.engine
        computed = engine.queried_tokens - engine.hit_tokens - engine.external_hit_tokens
        if engine.kind is EngineKind.LLAMACPP:
            return (
                f"# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens\n"
                f"# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total {computed}\n"
                f"# TYPE llamacpp:prompt_tokens_cached_total counter\n"
                f"llamacpp:prompt_tokens_cached_total {engine.hit_tokens}\n"
                f"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 0\n"
            )
        lines = [f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {engine.started}"]
        for rank in range(engine.ranks):
            label = f'{{engine="{rank}",model_name="{engine.model}"}}'
            counters = {
                "prefix_cache_queries": engine.queried_of_rank[rank],
                "prefix_cache_hits": engine.hits_of_rank[rank],
                "external_prefix_cache_queries": (
                    engine.queried_of_rank[rank] - engine.hits_of_rank[rank] if engine.has_store else 0
                ),
                "external_prefix_cache_hits": engine.external_hit_tokens if rank == 0 else 0,
            }
            for name, value in counters.items():
                lines += [f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{label} {float(value)}"]
                lines += [f"# TYPE vllm:{name}_created gauge", f"vllm:{name}_created{label} 1.7e+09"]
            if engine.external_source is not None:
                name = "vllm:prompt_tokens_cached_by_source_total"
                sources = {"device": counters["prefix_cache_hits"], "host": 0, "p2p": 0}
                sources[engine.external_source] = counters["external_prefix_cache_hits"]
                lines.append(f"# TYPE {name} counter")
                lines += [f'{name}{label[:-1]},source="{one}"}} {float(sources[one])}' for one in sources]
            for name, value in (("running", 0), ("waiting", engine.waiting)):
                full = f"vllm:num_requests_{name}"
                lines += [f"# TYPE {full} gauge", f"{full}{label} {float(value)}"]
            info = {
                "block_size": engine.block_tokens,
                "cache_dtype": "auto",
                "num_gpu_blocks": engine.capacity_blocks,
                "engine": rank,
            } | engine.cache_labels
            shown = ",".join(f'{name}="{value}"' for name, value in info.items())
            lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{shown}}} 1.0"]
        return "\n".join(lines) + "\n"

    def _missing(self) -> None:
        self._json(404, {"detail": "Not Found"})

    def _json(self, status: int, payload: Json) -> None:
        self._send(status, msgspec.json.encode(payload))

    def _fault(self, status: int, message: str, kind: str) -> None:
        """An error in the shape of the server."""
        is_sglang = self.engine.kind is EngineKind.SGLANG
        make = scripted_sglang.error if is_sglang else _error
        self._json(status, make(message, kind, status))

    def _send(self, status: int, data: bytes, kind: str = "application/json", **headers: str | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            if value is not None:
                self.send_header(name.replace("_", "-").title(), value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()


def _error(message: str, kind: str, code: int) -> Json:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _spoil(payload: Json) -> None:
    """Puts every stand-in for minus infinity that servers write among the log-probabilities."""
    probs = payload["choices"][0]["logprobs"]
    if "content" in probs:
        probs["content"][0]["logprob"] = math.nan
        for item, value in zip(probs["content"][0]["top_logprobs"][-4:], _STAND_INS, strict=True):
            item["logprob"] = value
    else:
        probs["token_logprobs"][0] = math.nan
        probs["top_logprobs"][0] |= dict(zip(list(probs["top_logprobs"][0])[-4:], _STAND_INS, strict=True))


_STAND_INS = (None, -math.inf, -9999.0, -100.0)
