"""Letting a suspect go: only where it was asked again for what it had hit, and where noise makes as much."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kvrelease.artifacts import Verdict
from kvrelease.binding.observe import Leg
from kvrelease.verify.checks import CheckId
from kvrelease.verify.clearing import met_the_same
from kvrelease.verify.consistency import ProbeVerdict, judge_probes
from kvrelease.verify.evidence import Limits
from kvrelease.verify.judge import judge
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.repeats import LEGS_THAT_CLEAR, REPEATS
from tests.engines.scripted import Generation, ScriptedEngine
from tests.verify.builders import CACHED_TOKENS, clean_probes, evidence, leg, observation, probe, repeats, replica
from tests.verify.deployments import deployment, observed, prompts, serve_users, verified
from tests.verify.scenarios.verdicts import says

NOISY = NoiseFloor(pairs=40, p50=0.01, max=0.02, quantum=0.01, apart=40)
FOREIGN = leg(0.2, foreign=CACHED_TOKENS)  # 0.1 nats, where noise explains 0.12
SMALL = prompts(per_desk=2)
LIMITS = Limits(stale_below=0.4)
UNSALTED = deployment(prompt_set=SMALL)


def verdict(suspicious: Leg, *fresh: Leg, clean: tuple[Leg, ...] | None = None) -> tuple[ProbeVerdict, str]:
    found = probe(production=[suspicious], repeats=repeats(*fresh, clean=clean))
    (judged,) = judge_probes([found], floor=NOISY, replica="here")
    return judged.verdict, judged.detail


def test_a_suspect_that_hits_the_same_again_and_answers_as_it_should_is_noise() -> None:
    again = leg(foreign=CACHED_TOKENS)
    assert verdict(FOREIGN, *[again] * LEGS_THAT_CLEAR)[0] is ProbeVerdict.CLEAN
    assert verdict(leg(0.2, cached=0), *[leg()] * LEGS_THAT_CLEAR)[0] is ProbeVerdict.CLEAN


@pytest.mark.parametrize(
    "fresh",
    [
        leg(foreign=0),  # evicted, or run out, and computed anew by this release
        leg(cached=64, foreign=64),  # evicted in part
        leg(cached=0),  # evicted each time
        leg(foreign=None),  # the server does not tell token ids: nobody knows whose
        leg(cached=None),
        leg(foreign=CACHED_TOKENS, seen=replace(observation(), rank=1)),  # another rank's entries
    ],
    ids=["rewritten", "shorter", "gone", "unknown", "unwitnessed", "another rank"],
)
def test_a_suspect_whose_fresh_legs_hit_something_else_is_not_let_go(fresh: Leg) -> None:
    found, detail = verdict(FOREIGN, *[fresh] * REPEATS)
    assert found is ProbeVerdict.SUSPECT
    assert "did not hit what" in detail


def test_a_suspect_further_off_than_noise_was_seen_to_be_is_not_let_go_however_often_it_is_clean_again() -> None:
    far = leg(0.26, foreign=CACHED_TOKENS)
    found, detail = verdict(far, *[leg(foreign=CACHED_TOKENS)] * REPEATS)
    assert found is ProbeVerdict.SUSPECT
    assert "than noise" in detail
    # Where fresh clean legs differ among themselves by as much, noise was seen to.
    noisy = tuple([leg(0.26), leg()] * (REPEATS // 2))
    assert verdict(far, *[leg(foreign=CACHED_TOKENS)] * REPEATS, clean=noisy)[0] is ProbeVerdict.CLEAN


def test_fresh_legs_of_which_too_few_hit_the_same_do_not_let_it_go() -> None:
    same, other = leg(foreign=CACHED_TOKENS), leg(foreign=0)
    few = LEGS_THAT_CLEAR - 1
    assert verdict(FOREIGN, *[same] * few, *[other] * (REPEATS - few))[0] is ProbeVerdict.SUSPECT
    assert verdict(FOREIGN, *[other] * few, *[same] * LEGS_THAT_CLEAR)[0] is ProbeVerdict.CLEAN


def test_clean_legs_that_hit_foreign_entries_are_no_clean_legs() -> None:
    # A layer that ignores the salt now and then gives the reference's requests what it gives users.
    tainted = leg(0.6, foreign=CACHED_TOKENS)
    stale = [leg(0.6, foreign=CACHED_TOKENS)] * REPEATS
    some = [tainted] * 2 + [leg()] * REPEATS
    assert verdict(stale[0], *stale, clean=tuple(some))[0] is ProbeVerdict.STALE
    assert verdict(stale[0], *stale, clean=(tainted,) * REPEATS)[0] is ProbeVerdict.SUSPECT
    twin = probe(production=[stale[0]], clean=[tainted])
    (judged,) = judge_probes([twin], floor=NOISY, replica="here")
    assert judged.verdict is ProbeVerdict.SUSPECT, "compared with the cold leg instead"


def test_clean_hits_of_foreign_entries_do_not_widen_the_noise_floor() -> None:
    tainted = leg(0.6, foreign=CACHED_TOKENS)
    probes = [probe(f"p{number}", clean=[tainted, leg()]) for number in range(12)]
    probes += [replace(one, rewritten=(tainted,)) for one in clean_probes(2)]
    report = judge(evidence(replica(probes)))
    assert report.noise_floor.max == 0.0


def test_what_is_foreign_ever_after_is_met_again_by_more_tokens() -> None:
    assert met_the_same(leg(cached=192, foreign=192), leg(cached=80, foreign=80))
    assert not met_the_same(leg(cached=192, foreign=64), leg(cached=80, foreign=80))


# --- the whole gate: nothing stale passes because something else was asked again -----------------------------------


def test_stale_entries_that_the_run_itself_evicts_do_not_pass() -> None:
    with ScriptedEngine(release="old", capacity_blocks=60) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is not Verdict.PASS, report.reason


class Busy(ScriptedEngine):
    """Other clients write: with each request that comes, one of theirs about something else."""

    others = 0

    def generate(self, prompt: Any, body: Any) -> Generation:
        made = super().generate(prompt, body)
        self.others += 1
        super().generate([-self.others * 100 - place for place in range(96)], {"max_tokens": 1})
        return made


# Entries that are not asked for live for some twenty requests: a run has 45.
@pytest.mark.parametrize("release", ["old", "new"])
def test_what_other_clients_evict_during_the_run_is_judged_before_it_is_gone(release: str) -> None:
    with Busy(release=release, capacity_blocks=200) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is (Verdict.FAIL if release == "old" else Verdict.PASS), report.reason
        assert "evicted" in says(report, CheckId.RESIDENCY)


class StaleRankFirst(ScriptedEngine):
    """Two caches behind one URL: the first request of a prompt meets the one that is stale, later ones the other."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(ranks=2, **settings)
        self.asked: set[tuple[int, ...]] = set()

    def generate(self, prompt: Any, body: Any) -> Generation:
        is_first = tuple(prompt) not in self.asked and not body.get("cache_salt")
        self.asked.add(tuple(prompt))
        self.routing.rank = 0 if is_first else 1
        return super().generate(prompt, body)


def test_one_stale_rank_of_an_engine_that_is_asked_as_a_whole_does_not_pass() -> None:
    with StaleRankFirst(release="old") as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        engine.caches[1].clear()
        engine.asked.clear()
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.INCONCLUSIVE, report.reason
        assert "each process and rank behind this URL" in says(report, CheckId.CONSISTENCY)


class RunsOut(ScriptedEngine):
    """Entries of the old release are gone once they were read: their time is up."""

    def generate(self, prompt: Any, body: Any) -> Generation:
        made = super().generate(prompt, body)
        kept = {key: by for key, by in self.cache.blocks.items() if by == self.release}  # type: ignore[attr-defined]
        self.cache.blocks = kept  # type: ignore[attr-defined]
        return made


def test_stale_entries_whose_time_is_up_when_they_are_asked_for_again_do_not_pass() -> None:
    with RunsOut(release="old") as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is not Verdict.PASS, report.reason


class AnswersSometimes(dict[str, str]):
    """A store that finds a block every second time."""

    def __init__(self, blocks: dict[str, str]) -> None:
        super().__init__(blocks)
        self.turn = 0

    def __contains__(self, key: object) -> bool:
        self.turn += 1
        return super().__contains__(key) and self.turn % 2 == 1

    def setdefault(self, key: str, default: str = "", /) -> str:
        return self.get(key, default)


@pytest.mark.parametrize("capacity", [None, 60, 12])
def test_a_store_that_answers_some_times_and_ignores_salts_does_not_pass(capacity: int | None) -> None:
    store: dict[str, str] = {}
    with ScriptedEngine(release="old", store=store) as before:
        serve_users(before, prompt_set=SMALL)
    with ScriptedEngine(release="new", store=AnswersSometimes(store), capacity_blocks=capacity) as engine:
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is not Verdict.PASS, report.reason


@pytest.mark.parametrize("capacity", [60, 30, 12])
def test_clean_entries_that_the_run_itself_evicts_never_fail(capacity: int) -> None:
    with ScriptedEngine(release="new", capacity_blocks=capacity, noise=True) as engine:
        serve_users(engine, prompt_set=SMALL)
        found = judge(observed(engine, deployed=UNSALTED, limits=LIMITS).evidence)
        assert found.verdict is not Verdict.FAIL, found.reason
