"""How the scripted engine differs where it imitates SGLang.

Source: SGLang 0.5.23: routes and errors (entrypoints/http_server.py, openai/serving_base.py: the message is not below
`error`), limits (managers/tokenizer_manager.py `_validate_one_request`), extensions (openai/protocol.py `SglExt`,
serving_chat.py), cached tokens by source (managers/scheduler_components/output_streamer.py), metrics
(observability/metrics_collector.py), `/server_info` (utils/common.py `build_server_info`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.engines.scripted_model import chat_prompt, token_ids, word_id

if TYPE_CHECKING:
    from tests.engines.scripted import Generation, ScriptedEngine

Json = dict[str, Any]

VERSION = "0.5.23"
FLUSHED = b"Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n"  # noqa: E501 - the server's own line


def error(message: str, kind: str = "BadRequestError", code: int = 400) -> Json:
    """An error as the OpenAI routes send it."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def key_space(body: Json) -> str | None:
    """The namespace of a radix key; an empty field is none, and an adapter has one of its own."""
    adapter = body.get("model", "").partition(":")[2]
    extra, salt = (body.get("extra_key") or "") + adapter, body.get("cache_salt") or ""
    return f"{len(extra)}:{extra}|{salt}" if extra or salt else None


def refused(engine: ScriptedEngine, *, is_chat: bool, longest: int, body: Json) -> tuple[int, Json] | None:
    """What is refused, any name of a model being taken for the served one."""
    asked = ("return_meta_info", "return_token_ids")
    if is_chat and body.get("stream") and (wrong := [name for name in asked if body.get(name)]):
        return 400, error(f"{wrong[0]} is not supported with streaming.", "BadRequest")
    if longest >= engine.context_tokens:
        limit = f"model's context length ({engine.context_tokens} tokens)"
        return 400, error(f"The input ({longest} tokens) is longer than the {limit}.")
    wanted = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
    if longest + wanted > engine.context_tokens:
        words = (
            f"Requested token count exceeds the model's maximum context length of {engine.context_tokens} tokens. You "
            f"requested a total of {longest + wanted} tokens: {longest} tokens from the input messages and {wanted} "
            "tokens for the completion."
        )
        return 400, error(words)
    return None


def tiers(engine: ScriptedEngine, made: Generation) -> Json | None:
    """`cached_tokens_details`: nothing on a miss; storage only where a store is attached."""
    if not made.cached:
        return None
    found: Json = {"device": made.cached - made.external, "host": 0}
    return found | ({"storage": made.external, "storage_backend": "HiCacheFile"} if engine.has_store else {})


def choice_fields(engine: ScriptedEngine, *, is_chat: bool, body: Json, made: Generation) -> Json:
    """What a whole answer's choice holds beyond the protocol."""
    ids = [word_id(word) for word in made.words]
    if not is_chat:
        return {"token_ids": ids if body.get("return_token_ids") else None, "prompt_token_ids": None}
    if not (body.get("return_meta_info") and engine.keeps_extensions):
        return {}
    meta: Json = {
        "prompt_tokens": made.prompt_tokens,
        "cached_tokens": made.cached,
        "weight_version": engine.weight_versions[-1],
        "dp_rank": engine.rank_of[-1],
        "cached_tokens_details": tiers(engine, made),
    }
    if body.get("logprobs"):
        chosen = [top[0] for top in made.tops]
        meta["output_token_logprobs"] = [[p, i, w] for (w, p), i in zip(chosen, ids, strict=True)]
    return {"meta_info": meta}


def answer_fields(engine: ScriptedEngine, *, body: Json, made: Generation) -> Json:
    """What a whole answer holds beyond the protocol."""
    return {"metadata": _metadata(engine, made)} | extension(engine, body=body, made=made)


def extension(engine: ScriptedEngine, *, body: Json, made: Generation) -> Json:
    """`sglext`, in a stream an event of its own before the usage; left out where it would be empty."""
    found = tiers(engine, made) if body.get("return_cached_tokens_details") and engine.keeps_extensions else None
    return {} if found is None else {"sglext": {"cached_tokens_details": found}}


def _metadata(engine: ScriptedEngine, made: Generation) -> Json:
    versions = engine.weight_versions
    ends = [*range(1, len(versions)), len(made.words)]
    starts = [0, *ends[:-1]]
    spans = [{"version": v, "start": s, "end": e} for v, s, e in zip(versions, starts, ends, strict=True)]
    return {"weight_version": versions[-1], "weight_versions": spans}


def model(engine: ScriptedEngine) -> list[Json]:
    """The cards of `/v1/models`: the root is the served name."""
    card: Json = {"object": "model", "created": 1, "owned_by": "sglang", "parent": None}
    base = card | {"id": engine.model, "root": engine.model, "max_model_len": engine.context_tokens}
    adapter = {"root": "/adapters/x", "parent": engine.model, "max_model_len": None}
    return [base, *(card | {"id": name} | adapter for name in engine.adapters)]


def reply(engine: ScriptedEngine, method: str, path: str, body: Json) -> tuple[int, Json | bytes] | None:
    """The answer of every other route; None where there is none."""
    match method, path:
        case "GET", "/model_info" | "/get_model_info":
            version = engine.weight_versions[-1]
            return 200, {"model_path": engine.root, "served_model_name": engine.model, "weight_version": version}
        case "GET", "/server_info" | "/get_server_info" if engine.has_dev_routes:
            return 200, _server_info(engine)
        case "POST", "/v1/tokenize" | "/tokenize":
            return _tokenized(engine, body)
        case "POST", "/flush_cache":
            if engine.flush_reply is not None:
                return engine.flush_reply
            engine.flush()
            return 200, FLUSHED
        case _:
            return None


def _tokenized(engine: ScriptedEngine, body: Json) -> tuple[int, Json]:
    if ("prompt" in body) == ("messages" in body):
        return 400, error("Exactly one of 'prompt' or 'messages' must be provided.", "Bad Request")
    # Unlike the chat route, this one obeys `add_generation_prompt`.
    ids = token_ids(body["prompt"] if "prompt" in body else chat_prompt(body))
    return 200, {"tokens": list(ids), "count": len(ids), "max_model_len": engine.context_tokens}


def _server_info(engine: ScriptedEngine) -> Json:
    return {
        "model_path": engine.root,
        "api_key": engine.api_key,
        "launch_command": "python -m sglang.launch_server",
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "quantization": None,
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": engine.ranks,
        "page_size": engine.block_tokens,
        "context_length": None,
        "json_model_override_args": "{}",
        "disable_radix_cache": False,
        "enable_cache_report": engine.reports_cached_tokens,
        "enable_hierarchical_cache": engine.has_store,
        "hicache_storage_backend": "file" if engine.has_store else None,
        "enable_lmcache": False,
        "max_total_num_tokens": (engine.capacity_blocks or 1000) * engine.block_tokens,
        "startup_time": {"scheduler_e2e": engine.started / 1e8, "tokenizer_e2e": 11.25},
        "internal_states": [],
        "version": VERSION,
    }


def metrics(engine: ScriptedEngine) -> str:
    """The page of `--enable-metrics`: a counter appears with its first increment, and nothing tells the start."""
    labels = f'model_name="{engine.model}",engine_type="unified"'
    scheduler = f'{labels},tp_rank="0",pp_rank="0",moe_ep_rank="0"'
    lines = ["# TYPE sglang:num_running_reqs gauge"]
    several = [f',dp_rank="{rank}"' for rank in range(engine.ranks)] if engine.ranks > 1 else [""]
    lines += [f"sglang:num_running_reqs{{{scheduler}{rank}}} 0.0" for rank in several]
    lines.append("# TYPE sglang:realtime_tokens_total counter")
    for rank, queried, hits in zip(several, engine.queried_of_rank, engine.hits_of_rank, strict=True):
        modes = {"prefill_compute": queried - hits, "prefill_cache": hits}
        lines += [
            f'sglang:realtime_tokens_total{{{scheduler}{rank},mode="{mode}"}} {value}.0'
            for mode, value in modes.items()
            if value
        ]
    cached = {"device": engine.hit_tokens, "storage": engine.external_hit_tokens}
    if engine.queried_tokens:
        lines += [
            "# TYPE sglang:prompt_tokens_total counter",
            f'sglang:prompt_tokens_total{{{labels},is_streaming="false"}} {engine.queried_tokens}.0',
            "# TYPE sglang:uncached_prompt_tokens_histogram histogram",
            f'sglang:uncached_prompt_tokens_histogram_bucket{{{labels},le="+Inf"}} 1.0',
            f"sglang:uncached_prompt_tokens_histogram_count{{{labels}}} 1.0",
            f"sglang:uncached_prompt_tokens_histogram_sum{{{labels}}} {engine.queried_tokens - sum(cached.values())}.0",
        ]
    if any(cached.values()):
        lines.append("# TYPE sglang:cached_tokens_total counter")
    lines += [
        f'sglang:cached_tokens_total{{{labels},cache_source="{source}"}} {value}.0'
        for source, value in cached.items()
        if value
    ]
    return "\n".join(lines) + "\n"
