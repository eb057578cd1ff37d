"""Tenants with salts of their own: their requests are judged where they are answered, beside production's key space."""

from __future__ import annotations

import msgspec
import pytest

from kvrelease import artifacts
from kvrelease.artifacts import Verdict
from kvrelease.binding.salts import combined_salt
from kvrelease.engines.base import EngineKind
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.checks import CheckId, CheckVerdict
from kvrelease.verify.evidence import Isolation, Limits
from kvrelease.workload.prompt_set import PromptSet
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import deployment, observed, prompts, recorded, serve_users, verified, warmed

SECRETS = ("tenant-SECRET-a", "tenant-SECRET-b", None)
LIMITS = Limits(stale_below=0.65)  # three probes


def of_tenants() -> PromptSet:
    """One desk, of which each tenant asks in a key space of its own; the last has none."""
    made = prompts(per_desk=3, desks=("returns",))
    salted = tuple(
        msgspec.structs.replace(prompt, salt=SECRETS[number % 3]) for number, prompt in enumerate(made.prompts)
    )
    return PromptSet(name=made.name, prompts=salted, source=made.source)


TENANTS = of_tenants()
SALTED, UNSALTED = deployment(salt="release", prompt_set=TENANTS), deployment(prompt_set=TENANTS)


def test_each_prompt_is_asked_in_its_tenant_s_part_of_each_key_space() -> None:
    with ScriptedEngine(release="new") as engine:
        found = observed(engine, deployed=SALTED, limits=LIMITS)
        salts = [str(seen.body.get("cache_salt")) for seen in engine.generations()]
    expected = {combined_salt(SALTED.salt, own) for own in SECRETS}
    assert set(salts[: len(TENANTS)]) == expected
    (replica,) = found.evidence.replicas
    assert replica.isolation is Isolation.FRESH_SALT
    cold = {probe.cold.key_space for probe in replica.probes if probe.cold is not None}
    assert len(cold) == len(SECRETS)
    assert all(space is not None and space.startswith("kvrelease-reference-") for space in cold)
    assert not any("SECRET" in salt for salt in salts if salt.startswith(("kv1-", "kvrelease-")))
    assert "SECRET" not in artifacts.to_json(found.evidence)


def test_a_clean_release_passes_and_what_is_stale_in_one_tenant_s_key_space_fails() -> None:
    with Ledger(IN_MEMORY) as ledger, ScriptedEngine(release="new") as engine:
        warmed(engine, deployed=SALTED, ledger=ledger)
        report = verified(engine, deployed=SALTED, ledger=ledger, limits=LIMITS)
        assert report.verdict is Verdict.PASS, report.reason
    one = PromptSet(name="one", prompts=TENANTS.prompts[1:2], source=TENANTS.source)
    with ScriptedEngine(release="old") as engine:
        serve_users(engine, prompt_set=one)
        engine.reload("new")
        assert verified(engine, deployed=UNSALTED, limits=LIMITS).verdict is Verdict.FAIL
        assert verified(engine, deployed=SALTED, limits=LIMITS).verdict is Verdict.PASS


def test_a_dirty_tenant_s_key_space_is_not_remembered_as_the_release_s_own() -> None:
    with Ledger(IN_MEMORY) as ledger, ScriptedEngine(release="old") as engine:
        serve_users(engine, prompt_set=TENANTS)
        engine.reload("new")
        assert verified(engine, deployed=UNSALTED, ledger=ledger, limits=LIMITS).verdict is Verdict.FAIL
        assert warmed(engine, deployed=UNSALTED, ledger=ledger).verdict is Verdict.FAIL


def test_a_record_names_tenants_key_spaces_by_marks_alone_and_serves_as_golden() -> None:
    with ScriptedEngine(release="new") as staging:
        golden = recorded(staging, deployed=UNSALTED)
    assert golden.foreign_tokens == 0
    spaces = {one.leg.key_space for one in golden.observations}
    assert len(spaces) == len(SECRETS)
    assert "SECRET" not in artifacts.to_json(golden)


@pytest.mark.parametrize("has_salts", [True, False])
def test_a_reference_is_asked_in_one_key_space_where_it_has_no_salts(has_salts: bool) -> None:
    kind = EngineKind.VLLM if has_salts else EngineKind.OPENAI
    with (
        ScriptedEngine(release="new", ignores_salt=True, honours_bypass=False) as engine,
        ScriptedEngine(kind, release="new") as reference,
    ):
        serve_users(engine, prompt_set=TENANTS)
        report = verified(engine, deployed=UNSALTED, limits=LIMITS, reference=reference)
        assert report.isolation[0].used is Isolation.REFERENCE
        (bypass,) = [check for check in report.checks if check.id is CheckId.BYPASS]
        assert bypass.verdict is CheckVerdict.PASS
        carried = {seen.body.get("cache_salt") is not None for seen in reference.generations()}
        assert carried == {has_salts}
