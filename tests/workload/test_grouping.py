from __future__ import annotations

from kvrelease.workload.grouping import PrefixGroup, prefix_labels, shared_groups
from kvrelease.workload.prefix_tree import build_prefix_tree
from tests.workload.builders import chat_body, prompt, prompt_set

HEADER = [1] * 16
DESK = [*HEADER, *[2] * 100]
SHOP = [*HEADER, *[3] * 60]
TOKENS = {
    "d1": [*DESK, *[4] * 20, 7],
    "d2": [*DESK, *[4] * 20, 8],
    "d3": [*DESK, 9, 9],
    "d4": [*DESK, 10, 10],
    "s1": [*SHOP, 11],
    "s2": [*SHOP, 12],
    "x": [99] * 50,
}


def test_a_prompt_belongs_to_the_prefix_that_saves_the_most() -> None:
    assert shared_groups(build_prefix_tree(TOKENS, block_tokens=1)) == (
        PrefixGroup(length=116, prompt_ids=("d1", "d2", "d3", "d4"), saved=116 * 3),
        # Six prompts go through the header, but 16 x 5 saves more than 76 x 1.
        PrefixGroup(length=16, prompt_ids=("s1", "s2"), saved=16 * 5),
    )


def test_a_few_shared_tokens_are_no_prefix() -> None:
    tree = build_prefix_tree({"a": [*range(15), 90], "b": [*range(15), 91]}, block_tokens=1)
    assert shared_groups(tree) == ()


def test_labels_are_made_up_only_where_the_set_gives_none() -> None:
    given = {"d1": "system:desk"}
    prompts = prompt_set(*(prompt(key, {"prompt": [1]}, prefix=given.get(key)) for key in TOKENS))
    assert prefix_labels(prompts, build_prefix_tree(TOKENS, block_tokens=1)) == {
        "d1": "system:desk",
        "d2": "system:desk",
        "d3": "system:desk",
        "d4": "system:desk",
        "s1": "shared-1",
        "s2": "shared-1",
        "x": "unshared",
    }


def test_without_tokens_texts_are_compared() -> None:
    desk, shop = "You work at the desk. " * 9, "Answer for the shop. " * 9
    prompts = prompt_set(
        prompt("a", chat_body("One?", system=desk)),
        prompt("b", chat_body("Two?", system=desk)),
        prompt("c", chat_body("Three?", system=desk)),
        prompt("d", chat_body("One?", system=shop)),
        prompt("e", chat_body("Two?", system=shop)),
        prompt("f", {"prompt": "Alone"}),
    )
    expected = dict.fromkeys("abc", "shared-1") | dict.fromkeys("de", "shared-2") | {"f": "unshared"}
    assert prefix_labels(prompts) == expected


def test_tools_in_front_of_the_same_system_prompt_split_the_prefix() -> None:
    desk = "You work at the desk. " * 9
    prompts = prompt_set(
        prompt("a", chat_body("One?", system=desk, tools=[{"name": "a"}])),
        prompt("b", chat_body("Two?", system=desk, tools=[{"name": "b"}])),
    )
    assert set(prefix_labels(prompts).values()) == {"unshared"}
