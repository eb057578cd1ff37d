from __future__ import annotations

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import GeneratedToken, Observation, Request, Route, TopLogprob
from kvrelease.engines.replies import Reply
from kvrelease.engines.wire import observation, request_body, without_logprobs
from kvrelease.errors import UnexpectedReply, UsageError

REPLY = Reply(what="POST x", status=200, headers={}, total_s=1.0, retries=0)


def seen(*payloads: JsonObject, top: int = 2) -> Observation:
    return observation(REPLY, [(payload, float(index)) for index, payload in enumerate(payloads)], top=top)


def choice(**fields: object) -> JsonObject:
    return {"choices": [{"index": 0} | fields]}


def test_chat_and_completions_log_probabilities_read_the_same() -> None:
    chat = {
        "content": [
            {
                "token": "No",
                "logprob": -0.5,
                "top_logprobs": [{"token": "Yes", "logprob": -1.0}, {"token": "No", "logprob": -0.5}],
            }
        ]
    }
    legacy = {"tokens": ["No"], "token_logprobs": [-0.5], "top_logprobs": [{"Yes": -1.0, "No": -0.5}]}
    expected = GeneratedToken(
        token="No",
        logprob=-0.5,
        top=(TopLogprob(token="No", logprob=-0.5), TopLogprob(token="Yes", logprob=-1.0)),
    )
    for found in (
        seen(choice(message={"content": "No"}, logprobs=chat)),
        seen(choice(text="No", logprobs=legacy)),
        seen(choice(text="No", logprobs=chat)),  # llama.cpp
    ):
        assert found.tokens == (expected,)
        assert found.text == "No"


def test_the_chosen_token_that_is_beyond_the_top_is_no_candidate() -> None:
    legacy = {"tokens": ["c"], "token_logprobs": [-3.0], "top_logprobs": [{"a": -1.0, "b": -2.0, "c": -3.0}]}
    (token,) = seen(choice(text="c", logprobs=legacy)).tokens
    assert [item.token for item in token.top] == ["a", "b"]
    assert token.logprob == -3.0


@pytest.mark.parametrize(
    "value", [None, float("nan"), float("-inf"), -9999.0, -9999, -100.0, -3.4e38, "-1", True, {"x": 1}]
)
def test_a_stand_in_for_minus_infinity_is_not_known(value: object) -> None:
    legacy = {"tokens": ["a"], "token_logprobs": [value], "top_logprobs": [{"a": value, "b": -1.0}]}
    (token,) = seen(choice(text="a", logprobs=legacy)).tokens
    assert token.logprob is None
    assert [item.token for item in token.top] == ["b"]


def test_top_lists_that_are_missing_or_short_leave_the_tokens() -> None:
    legacy = {"tokens": ["a", "b"], "token_logprobs": [-1.0], "top_logprobs": None}
    assert [(token.token, token.logprob, token.top) for token in seen(choice(text="ab", logprobs=legacy)).tokens] == [
        ("a", -1.0, ()),
        ("b", None, ()),
    ]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_usage_counts_in_any_chunk(position: int) -> None:
    chunks: list[JsonObject] = [choice(delta={"content": "a"}), choice(delta={"content": "b"}), {"choices": []}]
    chunks[position]["usage"] = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}
    chunks[2 if position == 0 else 0].setdefault("usage", None)
    found = seen(*chunks)
    assert (found.prompt_tokens, found.cached_tokens, found.text) == (9, 8, "ab")


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        (None, None),
        ({}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {}}, None),
        ({"prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens_details": {"cached_tokens": -1}}, None),
        ({"prompt_tokens_details": {"cached_tokens": True}}, None),
        ({"prompt_tokens_details": {"cached_tokens": "8"}}, None),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": 8}}, 8),
    ],
)
def test_null_is_not_zero(usage: object, cached: int | None) -> None:
    assert seen(choice(text="a") | {"usage": usage}).cached_tokens == cached


def test_a_role_alone_is_not_the_first_token() -> None:
    role, word, end = (
        choice(delta={"role": "assistant", "content": ""}),
        choice(delta={"content": "a"}),
        choice(delta={}),
    )
    assert seen(role, word, end).ttft_s == 1.0


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"refusal": "hm"},
        {"content": None, "tool_calls": [{"function": {"name": "hm", "arguments": None}}]},
    ],
)
def test_reasoning_refusals_and_tool_calls_are_text(delta: JsonObject) -> None:
    assert seen(choice(delta=delta)).text == "hm"
    assert seen(choice(message=delta)).text == "hm"


@pytest.mark.parametrize("finish", ["stop", "length", None])
def test_an_answer_without_a_token_is_an_error(finish: str | None) -> None:
    with pytest.raises(UnexpectedReply):
        seen(choice(message={"content": ""}, finish_reason=finish) | {"usage": {"completion_tokens": 0}})


@pytest.mark.parametrize(
    "payload",
    [
        choice(message={"content": None}, finish_reason="length"),
        choice(message={"content": None}, finish_reason="length") | {"usage": {"completion_tokens": 1}},
        choice(message={"content": ""}, finish_reason="stop") | {"usage": {"completion_tokens": 1}},
        choice(text="", finish_reason="stop", logprobs={"tokens": [""], "token_logprobs": [-0.1]}),
    ],
)
def test_a_token_that_leaves_no_text_is_a_token(payload: JsonObject) -> None:
    assert seen(payload).text == ""


@pytest.mark.parametrize("payload", [{}, {"choices": []}, {"choices": None}, {"choices": {"0": 1}}, {"object": "list"}])
def test_json_without_a_choice_is_no_generation(payload: JsonObject) -> None:
    with pytest.raises(UnexpectedReply):
        seen(payload)


def test_an_aborted_generation_is_an_error() -> None:
    with pytest.raises(UnexpectedReply):
        seen(choice(text="a", finish_reason="abort"))


def test_token_ids_are_used_where_they_match_one_for_one() -> None:
    legacy = {"tokens": ["a", "b"], "token_logprobs": [-1.0, -1.0]}
    assert [token.token_id for token in seen(choice(text="ab", logprobs=legacy, token_ids=[5, 6])).tokens] == [5, 6]
    assert [token.token_id for token in seen(choice(text="ab", logprobs=legacy, token_ids=[5])).tokens] == [None, None]


def test_only_the_first_choice_counts() -> None:
    payload: JsonObject = {"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}
    assert seen(payload).text == "a"


def test_a_request_keeps_its_own_model_and_all_its_budgets_become_the_probes() -> None:
    body: JsonObject = {"prompt": "x", "model": "mine", "max_tokens": 99, "n_predict": 98}
    request = Request(route=Route.COMPLETIONS, body=body, max_tokens=2, top_logprobs=5)
    assert request_body(request, model="other") == {
        "prompt": "x",
        "model": "mine",
        "max_tokens": 2,
        "n_predict": 2,
        "logprobs": 5,
    }
    assert body["max_tokens"] == 99


def test_without_log_probabilities_the_rest_stays() -> None:
    request = Request(route=Route.CHAT, body={"messages": []}, top_logprobs=5)
    assert without_logprobs(request_body(request, model="m")) == {"messages": [], "model": "m", "max_tokens": 1}


def test_a_least_number_of_tokens_is_no_more_than_the_budget_of_a_probe() -> None:
    body: JsonObject = {"messages": [], "min_tokens": 50, "max_tokens": 400, "min_new_tokens": 1}
    sent = request_body(Request(route=Route.CHAT, body=body, max_tokens=4), model="m")
    assert (sent["min_tokens"], sent["max_tokens"], sent["min_new_tokens"]) == (4, 4, 1)


def test_echo_and_an_empty_budget_are_refused() -> None:
    for request in (
        Request(route=Route.COMPLETIONS, body={"prompt": "x", "echo": True}),
        Request(route=Route.COMPLETIONS, body={"prompt": "x"}, max_tokens=0),
    ):
        with pytest.raises(UsageError):
            request_body(request, model="m")
