"""Many replicas tokenise a prompt set once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvrelease.binding.deployment import Replica, prepare_all
from kvrelease.binding.tokenising import SAMPLE, TokenTable
from kvrelease.binding.unready import ready_ones
from kvrelease.engines.base import EngineClient, EngineKind, Request, Route
from kvrelease.errors import PromptTooLong
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import deployment, prompts, question, with_clients


def prepared(
    engines: Sequence[ScriptedEngine], *, prompt_set: PromptSet | None = None, leaves_out: bool = False
) -> tuple[Replica, ...]:
    async def main(clients: list[EngineClient]) -> tuple[Replica, ...]:
        with Ledger(IN_MEMORY) as ledger:
            found = await prepare_all(
                clients,
                deployment=deployment(prompt_set=prompt_set),
                memory=ledger,
                max_tokens=1,
                leaves_out=leaves_out,
            )
        ready, unready = ready_ones(found)
        assert unready == ()
        return ready

    return with_clients(engines, main)


def tokenised(engine: ScriptedEngine) -> int:
    return sum(seen.path == "/tokenize" for seen in engine.requests)


def test_one_replica_is_asked_for_all_prompts_and_the_others_for_a_few() -> None:
    with ScriptedEngine() as first, ScriptedEngine() as second, ScriptedEngine() as third:
        replicas = prepared([first, second, third])
        counts = sorted(tokenised(engine) for engine in (first, second, third))
        assert counts == [SAMPLE, SAMPLE, len(prompts())]
        assert len({id(replica.tokens) for replica in replicas}) == 1
        assert len({id(replica.tree) for replica in replicas}) == 1


def test_a_replica_with_another_tokenizer_is_asked_for_all_prompts_itself() -> None:
    with ScriptedEngine() as first, ScriptedEngine() as second:
        second.token_shift = 1
        one, other = prepared([first, second])
        assert [tokenised(engine) for engine in (first, second)] == [len(prompts())] * 2
        assert one.tokens is not None
        assert other.tokens is not None
        assert one.tokens.keys() == other.tokens.keys()
        assert all(one.tokens[prompt_id] != other.tokens[prompt_id] for prompt_id in one.tokens)


def test_replicas_with_other_blocks_share_ids_and_have_trees_of_their_own() -> None:
    with ScriptedEngine() as first, ScriptedEngine(block_tokens=32) as second:
        one, other = prepared([first, second])
        assert one.tokens is other.tokens
        assert (one.tree.block_tokens, other.tree.block_tokens) == (16, 32)


def test_prompts_stay_in_the_order_of_the_set() -> None:
    with ScriptedEngine() as engine:
        (replica,) = prepared([engine])
        assert replica.tokens is not None
        assert list(replica.tokens) == [prompt.id for prompt in prompts()]


def test_replicas_of_one_context_share_the_table_of_what_fits_it() -> None:
    requests = {name: Request(route=Route.COMPLETIONS, body={"prompt": name}) for name in ("long", "short")}
    table = TokenTable(requests, {"long": (1,) * 9, "short": (1,) * 4}, left_out={})
    assert table.within(10, max_tokens=1) is table
    cut = table.within(9, max_tokens=1)
    assert cut is table.within(9, max_tokens=1)
    assert (list(cut.by_prompt), list(cut.left_out)) == (["short"], ["long"])
    with pytest.raises(PromptTooLong, match="no prompt fits the context of 4 tokens"):
        table.within(4, max_tokens=1)


def pictured(name: str, *, questions: int) -> Prompt:
    content = [
        {"type": "image_url", "image_url": {"url": "https://pictures.example/cat.png"}},
        {"type": "text", "text": question(1) * questions},
    ]
    return Prompt(id=name, weight=1.0, kind=PromptKind.CHAT, body={"messages": [{"role": "user", "content": content}]})


def test_prompts_with_pictures_do_not_speak_for_a_tokenizer_that_tells_no_ids_of_them() -> None:
    text = Prompt(
        id="text", weight=1.0, kind=PromptKind.CHAT, body={"messages": [{"role": "user", "content": question(1)}]}
    )
    pictures = [pictured("short", questions=0), pictured("long", questions=3), pictured("between", questions=2)]
    mixed = PromptSet(name="mixed", prompts=(text, *pictures), source="mixed.yaml")
    with ScriptedEngine(EngineKind.LLAMACPP, slots=4, context_tokens=100_000) as engine:
        (replica,) = prepared([engine], prompt_set=mixed, leaves_out=True)
    assert replica.tokens is not None
    assert set(replica.tokens) == {"text"}
    assert set(replica.left_out) == {"short", "long", "between"}
