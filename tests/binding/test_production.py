"""What users really send, whole, made greedy, and in the key space that is judged."""

from __future__ import annotations

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.binding.production import production_body, production_request
from kvrelease.config import Production
from kvrelease.engines.base import EngineKind, Route
from kvrelease.errors import UsageError
from kvrelease.workload.prompt_set import Prompt, PromptKind

MESSAGES = [{"role": "user", "content": "May I?"}]


def body(own: JsonObject, *, kind: EngineKind = EngineKind.OPENAI, **production: object) -> JsonObject:
    return production_body(own, production=Production(**production), model="served", kind=kind)  # type: ignore[arg-type]


def test_a_body_is_sent_whole_with_productions_fields() -> None:
    sent = body({"messages": MESSAGES, "tools": []}, body={"user": "gateway", "chat_template_kwargs": {"x": 1}})
    assert sent["messages"] == MESSAGES
    assert (sent["tools"], sent["user"], sent["chat_template_kwargs"]) == ([], "gateway", {"x": 1})


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (EngineKind.VLLM, {"top_k": 0, "min_p": 0, "repetition_penalty": 1}),
        (EngineKind.LLAMACPP, {"repeat_penalty": 1}),
        (EngineKind.OPENAI, {}),
    ],
)
def test_every_sampling_parameter_is_said_out_loud(kind: EngineKind, own: JsonObject) -> None:
    sent = body({"messages": MESSAGES, "temperature": 0.8, "top_p": 0.9}, kind=kind)
    greedy = {"temperature": 0, "top_p": 1, "n": 1, "presence_penalty": 0, "frequency_penalty": 0}
    assert sent == {"messages": MESSAGES, **greedy, **own, "model": "served"}


def test_a_prompt_that_names_an_adapter_keeps_it() -> None:
    assert body({"messages": MESSAGES, "model": "lora-a"})["model"] == "lora-a"
    assert body({"messages": MESSAGES})["model"] == "served"


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
def test_a_salt_in_a_body_is_refused_because_another_key_space_would_be_judged(field: str) -> None:
    with pytest.raises(UsageError, match=field):
        body({"messages": MESSAGES, field: "tenant-a"})
    with pytest.raises(UsageError, match=field):
        body({"messages": MESSAGES}, body={field: "tenant-a"})


def test_completions_go_to_their_own_route() -> None:
    prompt = Prompt(id="p", weight=1.0, kind=PromptKind.COMPLETIONS, body={"prompt": "Once"})
    sent = production_request(
        prompt, production=Production(), model="m", kind=EngineKind.VLLM, salt="s", max_tokens=3, top_logprobs=2
    )
    assert (sent.route, sent.salt, sent.max_tokens, sent.top_logprobs) == (Route.COMPLETIONS, "s", 3, 2)
