"""The order and the bodies of what is sent, as a real server logged them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kvrelease.artifacts import Verdict
from kvrelease.config import Production
from kvrelease.engines.base import EngineKind
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.checks import CheckId, CheckVerdict
from kvrelease.verify.consistency import ProbeVerdict
from kvrelease.verify.evidence import Isolation, Limits, RungOutcome
from kvrelease.verify.judge import judge
from kvrelease.verify.legs import LAST_LOOKS, NOISE_NONCES, WHOLE
from kvrelease.verify.peers import PEERS
from kvrelease.verify.reference_legs import REWRITTEN
from kvrelease.verify.repeats import REPEATS
from tests.engines.scripted import Generation, ScriptedEngine
from tests.verify.deployments import DESKS, deployment, observed, prompts, recorded, serve_users

SMALL = prompts(per_desk=2)
LIMITS = Limits(stale_below=0.4)


def kind_of(body: dict[str, Any], *, salt: str | None) -> str:
    """What a request of the log is."""
    if "messages" not in body:
        return "cut"
    is_nonce = len(body["messages"]) == 1
    carried = body.get("cache_salt")
    if body.get("prompt_logprobs") is not None or body.get("cache_prompt") is False:
        return "reference"
    if carried is not None and carried.startswith(("kvrelease-reference", "kvrelease-company")):
        return "reference"
    if is_nonce:
        return "nonce"
    return "production" if carried == salt else "exposure"


def log_of(engine: ScriptedEngine, *, since: int, salt: str | None) -> list[str]:
    return [kind_of(seen.body, salt=salt) for seen in engine.generations()[since:]]


def runs(kinds: list[str]) -> list[str]:
    """The log without repetitions."""
    return [kind for index, kind in enumerate(kinds) if index == 0 or kinds[index - 1] != kind]


@pytest.mark.parametrize("salt", [None, "release"])
def test_production_legs_come_first_then_other_spaces_nonces_and_references_last(salt: str | None) -> None:
    deployed = deployment(salt=salt, prompt_set=SMALL)
    with ScriptedEngine(release="new") as engine:
        observed(engine, deployed=deployed, limits=LIMITS)
        kinds = log_of(engine, since=0, salt=deployed.salt)
        # References, then entries written again in company and read; the last production legs prove residency.
        assert runs(kinds) == ["production", "exposure", "nonce", "reference", "production"]
        assert kinds.index("exposure") == len(SMALL)
        assert kinds.count("reference") == len(SMALL) * (1 + 1 + 2)


def test_a_clean_run_asks_each_of_sixty_probes_three_and_a_half_times_at_most_and_leaves_the_warm_set() -> None:
    deployed = deployment(salt="release", prompt_set=prompts(per_desk=20))
    with Ledger(IN_MEMORY) as ledger, ScriptedEngine(release="new") as engine:
        recorded(engine, deployed=deployed, ledger=ledger)
        since, computed = len(engine.generations()), engine.queried_tokens - engine.hit_tokens
        found = observed(engine, deployed=deployed, limits=Limits(stale_below=0.05), max_probes=60, ledger=ledger)
        report = judge(found.evidence)
        assert (report.verdict, len(report.probes)) == (Verdict.PASS, 60), report.reason
        assert report.cost.requests == len(engine.generations()) - since
        assert report.cost.requests <= 3.5 * 60
        assert (report.noise_floor.whole, report.noise_floor.apart) == (WHOLE, REWRITTEN)
        assert report.cost.computed_tokens == engine.queried_tokens - engine.hit_tokens - computed
        (residency,) = [check for check in report.checks if check.id is CheckId.RESIDENCY]
        assert residency.verdict is CheckVerdict.PASS
        assert f"still resident: {LAST_LOOKS} of {LAST_LOOKS}" in residency.detail


def test_a_cache_that_reference_legs_pushed_the_warm_set_out_of_is_told() -> None:
    # Room for the warm set alone.
    with Ledger(IN_MEMORY) as ledger, ScriptedEngine(release="new", capacity_blocks=60) as engine:
        deployed = deployment(prompt_set=SMALL)
        recorded(engine, deployed=deployed, ledger=ledger)
        report = judge(observed(engine, deployed=deployed, limits=LIMITS, ledger=ledger).evidence)
        (residency,) = [check for check in report.checks if check.id is CheckId.RESIDENCY]
        assert residency.verdict is CheckVerdict.NOTE
        assert "evicted" in residency.detail, residency.detail


def test_entries_written_again_are_written_in_company_and_read_alone() -> None:
    with ScriptedEngine(release="new") as engine:
        (replica,) = observed(engine, deployed=deployment(prompt_set=SMALL), limits=LIMITS).evidence.replicas
        seen = [str(one.body.get("cache_salt", "")) for one in engine.generations()]
        company = [salt for salt in seen if salt.startswith("kvrelease-company-")]
        assert len(set(company[: len(SMALL)])) == len(SMALL), "each is written into a key space of its own"
        assert sorted(company[len(SMALL) :]) == sorted(company[: len(SMALL)]), "and read there once"
        assert all(probe.rewritten[0].cached_tokens for probe in replica.probes)


def test_on_a_stale_engine_one_suspect_of_each_prefix_is_asked_again_in_turns_right_after_its_clean_twin() -> None:
    with ScriptedEngine(release="old") as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        since = len(engine.generations())
        found = observed(engine, deployed=deployment(prompt_set=SMALL), limits=LIMITS)
        assert found.faults == ()
        everything = log_of(engine, since=since, salt=None)
        assert runs(everything)[-1] == "cut", "cuts change the cache that they ask about"
        kinds = [kind for kind in everything if kind != "cut"]
        assert everything[: len(kinds)] == kinds
        (replica,) = found.evidence.replicas
        again = [probe for probe in replica.probes if probe.repeats.production]
        assert sorted(probe.prefix for probe in again) == sorted(DESKS)
        assert all(len(probe.repeats.production) == len(probe.repeats.clean) == REPEATS for probe in again)
        # A cold leg and its clean hit, then the repeats.
        first = kinds.index("reference") + 2
        turns = [set(kinds[place : place + 2]) for place in range(first, first + 2 * REPEATS, 2)]
        assert turns == [{"production", "reference"}] * REPEATS
        short = [one.body["max_tokens"] for one in engine.generations()[since + first :][: 2 * REPEATS]]
        assert short == [1] * (2 * REPEATS)


def test_small_staleness_under_three_prefixes_fails_by_its_rank_among_entries_written_again() -> None:
    with ScriptedEngine(release="old", strength_nats=0.05) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        since = len(engine.generations())
        found = observed(engine, deployed=deployment(prompt_set=SMALL), limits=LIMITS)
        asked: dict[str, list[str]] = {}
        for one in engine.generations()[since:]:
            asked.setdefault(str(one.body.get("cache_salt")), []).append(str(one.body.get("messages")))
    report = judge(found.evidence)
    assert report.verdict is Verdict.FAIL
    stale = [probe for probe in report.probes if probe.verdict is ProbeVerdict.STALE]
    assert {probe.prefix for probe in stale} == set(DESKS)
    assert all("no entry that was written again" in probe.detail for probe in stale)
    ranked = [probe for probe in found.evidence.replicas[0].probes if probe.peers]
    assert [len(probe.peers) for probe in ranked] == [PEERS[3]] * 3
    spaces = [messages for salt, messages in asked.items() if salt.startswith("kvrelease-company")]
    assert len(spaces) == len(SMALL) + 3 * PEERS[3]
    over_another = [messages for messages in spaces if len(set(messages)) == 2]
    assert 0.3 < len(over_another) / len(spaces) < 0.7, "users' entries lie over what another question left, or do not"


def test_llamacpp_repeats_each_prompt_at_once_before_anything_else_can_wipe_it() -> None:
    legs = 1 + REPEATS
    with ScriptedEngine(EngineKind.LLAMACPP, release="new") as engine:
        observed(engine, deployed=deployment(prompt_set=SMALL), limits=LIMITS)
        bodies = [seen.body for seen in engine.generations()]
        kinds = [kind_of(body, salt=None) for body in bodies]
        first = [str(body["messages"]) for body in bodies[: legs * len(SMALL)]]
        assert kinds[: len(first)] == ["production"] * len(first)
        assert runs(first) == list(dict.fromkeys(first))
        assert [first.count(body) for body in runs(first)] == [legs] * len(SMALL)
        rest = kinds[len(first) :]
        # The control, and the pairs that measure the noise; then, for each probe, a cold leg and its clean hit.
        nonces = 2 + 2 * NOISE_NONCES
        assert runs(rest[: nonces + 1]) == ["nonce", "reference"]
        assert rest[nonces:] == ["reference", "production"] * len(SMALL)


def test_every_request_is_greedy_short_and_otherwise_production_s_own() -> None:
    own = {"user": "support", "stop": ["\n\n"], "chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 500}
    deployed = replace(deployment(prompt_set=SMALL), production=Production(body=own))
    with ScriptedEngine(release="new") as engine:
        found = observed(engine, deployed=deployed, limits=LIMITS)
        sent = [seen.body for seen in engine.generations()][: len(SMALL)]
    asked = {prompt.id: prompt.body for prompt in SMALL.prompts}
    (seen,) = found.evidence.replicas
    for probe, body in zip(seen.probes, sent, strict=True):
        assert (body["temperature"], body["top_p"], body["max_tokens"], body["top_logprobs"]) == (0, 1, 8, 20)
        assert "cache_salt" not in body
        users = {**asked[probe.id], **own}
        changed = {field for field, value in users.items() if body.get(field) != value}
        assert changed == {"max_tokens"}


def test_nonces_are_sent_in_the_key_space_of_production_and_never_repeat() -> None:
    deployed = deployment(salt="release", prompt_set=SMALL)
    with ScriptedEngine(release="new") as engine:
        observed(engine, deployed=deployed, limits=LIMITS)
        nonces = [seen.body for seen in engine.generations() if len(seen.body["messages"]) == 1]
        control, binding = nonces[:2], nonces[2:]
        assert {body["cache_salt"] for body in control} == {deployed.namespace}
        assert len({str(body["messages"]) for body in nonces}) == 2
        assert [body["cache_salt"] for body in binding[:2]] == [deployed.namespace] * 2
        assert binding[2]["cache_salt"].startswith("kvrelease-binding-")


def test_where_no_clean_hit_can_be_had_nonces_measure_the_noise() -> None:
    # A store below that ignores salts: a fresh salt is not cold, a bypass is, and leaves nothing that could be hit.
    store: dict[str, str] = {}
    with ScriptedEngine(release="old", store=store) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.restart("new")
        found = observed(engine, deployed=deployment(prompt_set=SMALL), limits=LIMITS)
        (replica,) = found.evidence.replicas
        assert replica.isolation is Isolation.BYPASS
        given_up = [rung.isolation for rung in replica.rungs if rung.outcome is RungOutcome.GIVEN_UP]
        assert given_up == [Isolation.FRESH_SALT]
        assert len(replica.noise) == NOISE_NONCES
        assert all(probe.cold is not None and not probe.clean for probe in replica.probes)


class HidesStore(ScriptedEngine):
    """Usage tells local hits only; what came from the store below shows in the counters alone."""

    def generate(self, prompt: Any, body: Any) -> Generation:
        before = self.external_hit_tokens
        made = super().generate(prompt, body)
        made.cached -= self.external_hit_tokens - before
        return made


def test_a_reference_leg_that_only_the_counters_give_away_is_not_cold() -> None:
    store: dict[str, str] = {}
    with HidesStore(release="old", store=store) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.restart("new")
        (replica,) = observed(engine, deployed=deployment(prompt_set=SMALL), limits=LIMITS).evidence.replicas
        assert replica.isolation is Isolation.BYPASS
        assert "counters tell" in replica.rungs[0].detail
