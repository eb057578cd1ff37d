"""Several requests in one batch of the in-process engine: the answers of one by one, and the same entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvrelease.engines.base import Request, Route
from kvrelease.engines.local import LocalEngine
from kvrelease.errors import UsageError
from kvrelease.verify.distance import distance
from tests.engines.in_process import opened
from tests.loops import run
from tests.tiny_models import BYTES, VOCABULARY, build_release

# In float32 a batch adds up in another order, and no more.
MAX_GAP_NATS = 1e-4


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_release(tmp_path_factory.mktemp("batch") / "tiny", seed=1)


@pytest.fixture
def engine(release: Path) -> LocalEngine:
    return opened(release)


def request(seed: int, *, salt: str | None = None, tokens: int = 70) -> Request:
    ids = np.random.default_rng(seed).integers(0, BYTES, tokens).tolist()
    return Request(
        route=Route.COMPLETIONS,
        body={"prompt": ids, "ignore_eos": True},
        salt=salt,
        max_tokens=3,
        top_logprobs=VOCABULARY,
    )


def test_a_batch_answers_as_one_by_one_and_hits_what_it_wrote(engine: LocalEngine) -> None:
    asked = [request(seed) for seed in range(3)]
    alone = [run(engine.complete(request(seed, salt="alone"))) for seed in range(3)]
    cold, warm = run(engine.complete_together(asked)), run(engine.complete_together(asked))
    assert [one.cached_tokens for one in (*cold, *warm)] == [0, 0, 0, 64, 64, 64]
    for answers in (cold, warm, [run(engine.complete(one)) for one in asked]):
        for one, other in zip(alone, answers, strict=True):
            assert one.text == other.text
            assert (distance(one, other).nats or 0.0) < MAX_GAP_NATS


@pytest.mark.parametrize("other", [{"tokens": 71}, {"salt": "warm"}])
def test_a_batch_of_several_lengths_or_hits_is_refused(engine: LocalEngine, other: dict[str, Any]) -> None:
    run(engine.complete(request(1, salt="warm")))
    with pytest.raises(UsageError, match="one batch"):
        run(engine.complete_together([request(0), request(1, **other)]))
