"""The promises of `prompts/`: counts, sizes, weights, and that they pass our own check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from kvrelease.workload.body import opening_text, whole_text
from kvrelease.workload.check import check_prompt_set
from kvrelease.workload.loading import load_prompt_set, shipped_prompt_sets

CONTEXT_TOKENS = 2048  # SmolLM2-135M as `make engines` serves it
RESERVED_TOKENS = 256  # the chat template, and what a probe generates
TOKENIZER = Path.home() / ".cache/kvrelease/models/smollm2-v1.2/tokenizer.json"

NAMES = ("demo", "few-shot", "long-document", "support")


def fewest_tokens(text: str) -> int:
    """No tokenizer that splits at spaces, as byte-level BPE does, makes fewer tokens than words."""
    return len(text.split())


def most_tokens(text: str) -> int:
    """SmolLM2's tokenizer makes a token of 3.9 to 4.6 characters of these texts; 3.5 leaves a margin of a tenth."""
    return len(text) * 2 // 7


def real_tokens() -> Callable[[str], int] | None:
    if not TOKENIZER.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    return lambda text: len(tokenizer.encode(text).ids)


def test_these_sets_are_shipped(tmp_path: Path) -> None:
    assert shipped_prompt_sets() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_set_passes_the_check_and_fits_the_context(name: str, tmp_path: Path) -> None:
    prompts = load_prompt_set(f"prompts/{name}.yaml", directory=tmp_path)
    count = real_tokens() or most_tokens
    assert check_prompt_set(prompts).warnings == ()
    texts = [whole_text(prompt.body, kind=prompt.kind) for prompt in prompts.prompts]
    assert max(map(count, texts)) + RESERVED_TOKENS <= CONTEXT_TOKENS
    assert {prompt.prefix is not None for prompt in prompts.prompts} == {True}


def test_support_has_three_long_system_prompts_and_sixty_questions(tmp_path: Path) -> None:
    prompts = load_prompt_set("support", directory=tmp_path)
    report = check_prompt_set(prompts)
    assert len(prompts.prompts) >= 60
    assert {prefix.prefix for prefix in report.shared_prefixes} == {
        "system:returns-desk",
        "system:billing-desk",
        "system:technical-desk",
    }
    assert min(prefix.prompts for prefix in report.shared_prefixes) >= 20
    openings = {opening_text(prompt.body) for prompt in prompts.prompts}
    assert len(openings) == 3
    for count in filter(None, (fewest_tokens, real_tokens())):
        assert min(map(count, openings)) >= 600


def test_support_traffic_is_skewed_but_no_prompt_rules_alone(tmp_path: Path) -> None:
    report = check_prompt_set(load_prompt_set("support", directory=tmp_path))
    assert report.largest_share < 0.2
    assert 10 < report.effective_prompts < report.prompts / 2


def test_the_other_shapes_have_one_long_prefix_each(tmp_path: Path) -> None:
    # 500 words of short sentences with names and colons are more than 600 tokens, and are measured when a tokenizer
    # is at hand.
    for name, at_least, words in (("few-shot", 12, 500), ("long-document", 8, 1000)):
        report = check_prompt_set(prompts := load_prompt_set(name, directory=tmp_path))
        assert report.prompts >= at_least
        assert len(report.shared_prefixes) == 1
        first = prompts.prompts[0]
        shared = whole_text(first.body, kind=first.kind)[: report.shared_prefixes[0].characters]
        assert fewest_tokens(shared) >= words


def test_long_document_is_as_long_as_it_says(tmp_path: Path) -> None:
    opening = opening_text(load_prompt_set("long-document", directory=tmp_path).prompts[0].body)
    count = real_tokens()
    assert fewest_tokens(opening) <= 1500
    assert most_tokens(opening) >= 1200
    assert count is None or 1200 <= count(opening) <= 1500
