"""Every way in which the gate does not pass says what to do next, by a command or a setting."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from kvrelease.artifacts import Fault, Verdict
from kvrelease.engines.base import EngineKind
from kvrelease.report.document import Text
from kvrelease.report.verify import verify_document
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.evidence import ControlEvidence, Evidence, Isolation, Limits, ReferencePair
from kvrelease.verify.judge import VerifyReport, judge
from kvrelease.verify.next_step import NextStep
from kvrelease.verify.open_checks import step_of
from tests.verify.builders import (
    NAMESPACE,
    URL,
    clean_probes,
    evidence,
    identity,
    leg,
    observation,
    probe,
    replica,
    stale_probe,
)

FAIL, INCONCLUSIVE = CheckVerdict.FAIL, CheckVerdict.INCONCLUSIVE
# A command of ours, an option, a setting of kvrelease.yaml.
ACTIONABLE = re.compile(r"kvrelease [a-z]+|--[a-z-]+|production\.[a-z]+")


def told(step: NextStep) -> str:
    return " ".join((step.text, step.call or "", step.detail))


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize("verdict", [FAIL, INCONCLUSIVE])
@pytest.mark.parametrize("name", CheckId)
def test_every_check_that_is_not_passed_has_a_step_with_a_command_or_a_setting(
    name: CheckId, verdict: CheckVerdict, kind: EngineKind
) -> None:
    seen = evidence(replica(who=identity(kind=kind)))
    over_all = name in (CheckId.REPLICAS, CheckId.POWER)
    step = step_of(
        Check(id=name, verdict=verdict, detail="", replica=None if over_all else URL), seen, fronts={URL: "purge it"}
    )
    assert step.text
    assert ACTIONABLE.search(told(step)) or step.detail.startswith("purge it"), step


def first_line(seen: Evidence) -> tuple[VerifyReport, str]:
    report = judge(replace(seen, prompts="prompts/support.yaml"))
    texts = [block.text for block in verify_document(report).blocks if isinstance(block, Text)]
    assert len(texts) == 1, "one line under the verdict says what to do first"
    assert texts[0].startswith("Next: ")
    return report, texts[0]


GOLDEN = tuple(ReferencePair(probe=f"p{number}", witness=observation(1.0)) for number in range(4))
NEVER_HITS = ControlEvidence(legs=(leg(cached=0), leg(cached=0)), counted_hits=None)

DOZEN = [f"p{number}" for number in range(12)]
CLAIM_OF_A_TWENTIETH = evidence(limits=Limits(stale_below=0.05))
# What a run showed, and what the line has to name.
WAYS: dict[str, tuple[Evidence, str]] = {
    "other weights": (
        evidence(replace(replica(), identity_pairs=GOLDEN, identity_source="golden")),
        "restart http://one:8000 with /models/new",
    ),
    "nothing can hit": (evidence(replica(control=NEVER_HITS)), "without --no-enable-prefix-caching"),
    "nobody tells hits": (
        evidence(replica([probe(name, production=[leg(cached=None)]) for name in DOZEN])),
        "--enable-prompt-tokens-details",
    ),
    "not bound": (
        evidence(replica(binding=None, who=identity(has_salt=False))),
        "kvrelease namespace /models/new --engine vllm",
    ),
    "no isolation": (
        evidence(replica([replace(probe(name), cold=None, clean=()) for name in DOZEN], isolation=Isolation.NONE)),
        "--reference URL",
    ),
    "too few prompts": (CLAIM_OF_A_TWENTIETH, "--stale-below 0.23"),
    "too few probes of many prompts": (replace(CLAIM_OF_A_TWENTIETH, population=66), "--probes 59"),
    "power was asked for": (
        evidence(limits=Limits(stale_below=0.25, requires_power=True)),
        "--old-release DIRECTORY",
    ),
    "a suspect that was not repeated": (
        evidence(replica([*clean_probes(11), probe("s", production=[leg(0.6)])])),
        "verify http://one:8000 again",
    ),
    "stale": (evidence(replica([*clean_probes(11), stale_probe()])), "kvrelease namespace RELEASE --new-epoch"),
    "a dead answer": (
        evidence(replica([probe("p0", production=[leg(seen=observation(texts=()))])])),
        "kvrelease fingerprint /models/new --check",
    ),
    "a replica that is not ready": (
        replace(
            evidence(), faults=(Fault(where="http://two:8000", exit_code=5, message="no answer", hint="start it"),)
        ),
        "--wait 300",
    ),
    "cut short": (evidence(interrupted=True), "kvrelease verify --release /models/new"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_line_under_the_verdict_says_what_to_do_first(way: str) -> None:
    seen, expected = WAYS[way]
    report, line = first_line(seen)
    assert report.verdict is not Verdict.PASS
    assert expected in line


def test_a_pass_asks_for_nothing() -> None:
    report = judge(evidence())
    assert (report.verdict, report.next_steps) == (Verdict.PASS, ())
    assert NAMESPACE in report.reason


def test_a_golden_is_asked_for_with_the_users_own_arguments() -> None:
    near = tuple(ReferencePair(probe=f"p{number}", witness=observation(0.5)) for number in range(4))
    seen = evidence(replace(replica(), identity_pairs=near, identity_source="release"))
    _, line = first_line(seen)
    record = (
        "kvrelease record --release /models/new --engine-url CLEAN_URL --prompts prompts/support.yaml -o golden.json"
    )
    assert record in line
