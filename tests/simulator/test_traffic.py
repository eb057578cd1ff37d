from __future__ import annotations

import pytest

from kvrelease.simulator.traffic import RequestSize, SimulatedRequest, request_of_hashes, request_of_tokens


@pytest.mark.parametrize(
    ("tokens", "answer", "expected"),
    [
        (33, 0, RequestSize(33, 2, 1, 0)),
        (32, 0, RequestSize(32, 1, 0, 0)),  # the last of whole blocks is computed anew
        (33, 1, RequestSize(33, 2, 1, 0)),  # the one generated token is never fed back
        (33, 16, RequestSize(33, 2, 0, 1)),
        (33, 40, RequestSize(33, 2, 1, 2)),
        (5, 0, RequestSize(5, 0, 1, 0)),
        (0, 0, RequestSize(0, 0, 0, 0)),
    ],
)
def test_a_request_needs_what_its_tokens_fill(tokens: int, answer: int, expected: RequestSize) -> None:
    request = request_of_tokens(range(tokens), block_tokens=16, answer_tokens=answer)
    assert request.size(16) == expected


def test_where_only_blocks_are_known_all_may_hit() -> None:
    assert SimulatedRequest(blocks=(1, 2)).size(16) == RequestSize(32, 2, 1, 0)


def test_requests_of_two_key_spaces_share_no_block() -> None:
    spaces = (None, "a", "b")
    keys = [request_of_tokens(range(32), block_tokens=16, key_space=space).blocks for space in spaces]
    assert len({block for blocks in keys for block in blocks}) == 6


def test_the_last_hash_of_a_trace_counts_only_when_its_block_is_full() -> None:
    assert request_of_hashes([1, 2, 3], block_tokens=512, prompt_tokens=1030).blocks == (1, 2)
    assert request_of_hashes([1, 2], block_tokens=512, prompt_tokens=1024).blocks == (1, 2)


def test_a_hash_that_repeats_within_a_prompt_names_its_block_only() -> None:
    one = request_of_hashes([1, 1, 2], block_tokens=512).blocks
    assert len(set(one)) == 3
