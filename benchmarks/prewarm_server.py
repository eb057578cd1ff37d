"""Many engines in one process: `python -m benchmarks.prewarm_server COUNT` prints their ports, and serves until killed.

Each port is an engine with a prefix cache of its own that speaks the routes of vLLM which prewarming asks. It computes
nothing, so that what a client costs is seen; its cached tokens are true all the same: a prompt sent twice hits.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import time

BLOCK = 16
MODEL = "scripted"
CONTEXT = 8192
BLOCKS = 65536


class Prompts:
    """Token ids of texts and the keys of their blocks, each made once for all engines."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[list[int], tuple[int, ...]]] = {}

    def of(self, body: dict[str, object]) -> tuple[list[int], tuple[int, ...]]:
        """[tokens] ids, one a word, and [full blocks] chained keys."""
        messages = body.get("messages")
        assert isinstance(messages, list), "the benchmark sends chats"
        text = "\n".join(str(message["content"]) for message in messages)
        if text not in self._made:
            ids = [hash(word) & 0xFFFFFF for word in text.split()]
            keys, parent = [], 0
            for start in range(0, len(ids) - BLOCK + 1, BLOCK):
                parent = hash((parent, *ids[start : start + BLOCK]))
                keys.append(parent)
            self._made[text] = ids, tuple(keys)
        return self._made[text]


class Engine:
    """One port's cache and counters."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts
        self.seen: set[int] = set()
        self.queried = 0
        self.hits = 0
        self.computed = 0
        self.generations = 0
        self.started = time.time()

    def answer(self, path: str, data: bytes) -> tuple[bytes, str]:
        """Body and type of the answer to a request."""
        match path:
            case "/v1/models":
                entry = {"id": MODEL, "object": "model", "owned_by": "vllm", "root": "/m", "max_model_len": CONTEXT}
                return json.dumps({"object": "list", "data": [entry]}).encode(), "application/json"
            case "/version":
                return b'{"version":"0.32.0"}', "application/json"
            case "/metrics":
                return self._metrics(), "text/plain"
            case "/tokenize":
                ids, _ = self.prompts.of(json.loads(data))
                return json.dumps(
                    {"count": len(ids), "max_model_len": CONTEXT, "tokens": ids}
                ).encode(), "application/json"
            case "/v1/chat/completions":
                body = json.loads(data)
                return self._generate(body), "text/event-stream" if body.get("stream") else "application/json"
            case _:
                return b"", ""

    def _generate(self, body: dict[str, object]) -> bytes:
        ids, keys = self.prompts.of(body)
        cached = 0
        for key in keys[: (len(ids) - 1) // BLOCK]:
            if key not in self.seen:
                break
            cached += BLOCK
        self.seen.update(keys)
        self.queried += len(ids)
        self.hits += cached
        self.computed += len(ids) - cached
        self.generations += 1
        if not body.get("stream"):
            message = {"role": "assistant", "content": "a"}
            return json.dumps(
                {
                    "model": MODEL,
                    "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
                    "usage": {"prompt_tokens": len(ids), "prompt_tokens_details": {"cached_tokens": cached}},
                }
            ).encode()
        head = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"scripted","choices":'
        usage = (
            f'{{"prompt_tokens":{len(ids)},"completion_tokens":1,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}'
        )
        events = (
            head + '[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
            head + '[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}',
            head + '[{"index":0,"delta":{},"finish_reason":"length"}]}',
            head + f'[],"usage":{usage}}}',
            "[DONE]",
        )
        return "".join(f"data: {event}\n\n" for event in events).encode()

    def _metrics(self) -> bytes:
        labels = f'{{model_name="{MODEL}",engine="0"}}'
        config = f'{{block_size="{BLOCK}",num_gpu_blocks="{BLOCKS}",engine="0"}}'
        return (
            f"# TYPE vllm:prefix_cache_queries counter\nvllm:prefix_cache_queries_total{labels} {self.queried}\n"
            f"# TYPE vllm:prefix_cache_hits counter\nvllm:prefix_cache_hits_total{labels} {self.hits}\n"
            f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} 0\n"
            f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{labels} 0\n"
            f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{config} 1\n"
            f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {self.started}\n"
        ).encode()


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remembers where to answer."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answers every request that is complete."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            path = bytes(self._buffer[:end]).split(b" ", 2)[1].decode().partition("?")[0]
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            found, kind = self._engine.answer(path, body)
            status = b"200 OK" if kind else b"404 Not Found"
            self._transport.write(
                b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s"
                % (status, kind.encode() or b"application/json", len(found), found)
            )


async def main(count: int) -> None:
    """Serves until killed."""
    loop, prompts = asyncio.get_running_loop(), Prompts()
    ports = []
    for _ in range(count):
        connection = functools.partial(Connection, Engine(prompts))
        server = await loop.create_server(connection, "127.0.0.1", 0, backlog=512)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
