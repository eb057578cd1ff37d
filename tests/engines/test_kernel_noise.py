"""The seeded noise of the in-process engine: of the size that is stated, with the entry or anew, and never unasked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvrelease.engines.base import Observation, Request, Route
from kvrelease.engines.kernel_noise import KernelNoise
from kvrelease.engines.local import LocalEngine
from kvrelease.errors import UsageError
from kvrelease.verify.distance import distance
from tests.engines import in_process
from tests.loops import run
from tests.tiny_models import BYTES, VOCABULARY, build_release

PROMPT_TOKENS = 200
READS = 40


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_release(tmp_path_factory.mktemp("noise") / "tiny", seed=1)


def opened(directory: Path, **sizes: Any) -> LocalEngine:
    return in_process.opened(directory, noise=KernelNoise(**sizes) if sizes else None)


def request(*, salt: str | None = None, tokens: int = PROMPT_TOKENS) -> Request:
    ids = np.random.default_rng(0).integers(0, BYTES, tokens).tolist()
    return Request(route=Route.COMPLETIONS, body={"prompt": ids}, salt=salt, max_tokens=1, top_logprobs=VOCABULARY)


def hits(
    engine: LocalEngine, *, salt: str | None = None, tokens: int = PROMPT_TOKENS, reads: int = 2
) -> list[Observation]:
    """Answers over the entry that this key space has."""
    asked = request(salt=salt, tokens=tokens)
    run(engine.complete(asked))
    return [run(engine.complete(asked)) for _ in range(reads)]


def gap(one: Observation, other: Observation) -> float:
    nats = distance(one, other).nats
    assert nats is not None
    return nats


@pytest.mark.parametrize("tokens", [PROMPT_TOKENS, 192], ids=["with an end", "whole blocks"])
def test_what_was_written_stays_with_the_entry(release: Path, tokens: int) -> None:
    engine = opened(release, written=0.02)
    one, again = hits(engine, salt="a", tokens=tokens)
    other, _ = hits(engine, salt="b", tokens=tokens)
    assert gap(one, again) == 0
    assert gap(one, other) > 0


@pytest.mark.parametrize("sizes", [{"read": 0.02}, {"read_nats": 0.02}])
def test_what_is_read_is_drawn_anew(release: Path, sizes: dict[str, float]) -> None:
    one, again = hits(opened(release, **sizes))
    assert gap(one, again) > 0


def test_an_entry_is_off_by_the_stated_share(release: Path) -> None:
    noise = 0.02
    stored = []
    for engine in (opened(release), opened(release, written=noise)):
        run(engine.complete(request()))
        keys = engine.key_scheme.block_keys(
            engine._tokens.encode(request()), block_tokens=engine.block_tokens, salt=None
        )
        blocks = engine.cache.prefix(keys, engine.shape).blocks
        # The first layer's keys depend on nothing that was written before.
        stored.append(
            np.concatenate(
                [np.frombuffer(block.keys, dtype=np.float32).reshape(engine.shape.dimensions)[0] for block in blocks],
                axis=1,
            )
        )
    exact, off = stored
    share = np.sqrt(((off - exact) ** 2).mean() / (exact**2).mean())
    assert share == pytest.approx(noise, rel=0.05)


def test_reads_lie_as_many_nats_apart_as_stated(release: Path) -> None:
    stated = 0.02
    reads = hits(opened(release, read_nats=stated), reads=READS)
    gaps = [gap(one, other) for one, other in zip(reads[::2], reads[1::2], strict=True)]
    assert np.mean(gaps) == pytest.approx(stated, rel=0.1)
    largest = [distance(one, other).largest_nats or 0.0 for one, other in itertools.pairwise(reads)]
    assert max(largest) <= 3 * stated + 0.01  # a hundredth more where the sum over all candidates moved


def test_a_worker_beside_reads_the_same_entries_with_noise_of_its_own(release: Path) -> None:
    quiet = opened(release)
    ((exact, *_), stated) = hits(quiet), 0.02
    reads = run(quiet.beside(KernelNoise(read_nats=stated)).reread(request(), times=READS))
    assert run(quiet.reread(request(), times=1))[0].tokens == exact.tokens
    assert {read.cached_tokens for read in reads} == {exact.cached_tokens}
    gaps = [gap(one, other) for one, other in itertools.pairwise(reads)]
    assert np.mean(gaps) == pytest.approx(stated, rel=0.1)


def test_the_same_seed_makes_the_same_noise_and_another_another(release: Path) -> None:
    (one, _), (same, _), (other, _) = (hits(opened(release, written=0.02, read=0.01, seed=seed)) for seed in (1, 1, 2))
    assert gap(one, same) == 0
    assert gap(one, other) > 0


def test_noise_of_no_size_is_none(release: Path) -> None:
    (one, _), (quiet, _) = hits(opened(release, seed=5)), hits(opened(release))
    assert gap(one, quiet) == 0


def test_an_engine_that_has_it_says_so_and_others_have_none(release: Path) -> None:
    noisy, quiet = (run(opened(release, **sizes).identify()).runtime for sizes in ({"written": 0.01}, {}))
    assert noisy["kernel_noise"] == "written 0.01, read 0, 0 nats, seed 0"
    assert "kernel_noise" not in quiet


@pytest.mark.parametrize("size", [-0.1, float("nan"), float("inf")])
def test_sizes_that_are_none_are_refused(size: float) -> None:
    with pytest.raises(UsageError, match="kernel noise"):
        KernelNoise(written=size)
