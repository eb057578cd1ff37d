"""One golden file for each kind and renderer; `pytest --update-golden` writes them anew."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec import Struct

from kvrelease.artifacts import Artifact, Fault
from kvrelease.binding.left_out import LeftOut, Why
from kvrelease.binding.target import BindingTarget
from kvrelease.demo.figures import Kept
from kvrelease.release.diff_record import ConfigChange
from kvrelease.release.drift_figures import DriftStatus
from kvrelease.report.markdown import render_markdown
from kvrelease.report.terminal import render_text
from kvrelease.verify.consistency import ProbeVerdict
from tests import builders
from tests.report.pages import page_of

Golden = Callable[[str, str], None]

PAGES = {**builders.every_page(), "fingerprint-fast": builders.fast_fingerprint()}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_as_text(name: str, golden: Golden) -> None:
    golden(f"{name}.txt", render_text(page_of(PAGES[name])))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_as_markdown(name: str, golden: Golden) -> None:
    golden(f"{name}.md", render_markdown(page_of(PAGES[name])))


@pytest.mark.parametrize("name", ["prewarm", "verify"])
def test_a_wide_page_on_a_narrow_terminal(name: str, golden: Golden) -> None:
    golden(f"{name}-80.txt", render_text(page_of(PAGES[name]), width=80))


def test_a_kept_demo_names_its_store(golden: Golden) -> None:
    kept = Kept(old="./my demo/v1", new="./my demo/v2", store="./my demo/store")
    report = builders.demo(kept=kept, example=None, ttft_gap=0.5)
    golden("demo-kept.txt", render_text(page_of(report)))


@pytest.mark.parametrize("target", list(BindingTarget))
def test_a_namespace_page_names_every_setting_whole(target: BindingTarget) -> None:
    report = builders.namespace(target)
    text = render_text(page_of(report), width=80)
    settings = report.settings
    named = (settings.env, settings.directories, settings.prefixes, settings.beside)
    for setting in (*settings.flags, *settings.body, *(text for one in named for pair in one.items() for text in pair)):
        assert setting in text


@pytest.mark.parametrize(
    "artifact",
    [
        builders.prewarm(replicas=(builders.unknown_replica(builders.REPLICA),)),
        builders.record(),
        builders.verify(probes=(builders.probe(1, ProbeVerdict.STALE, distance=None, foreign_tokens=None),)),
    ],
    ids=["prewarm", "record", "verify"],
)
@pytest.mark.parametrize("render", [render_text, render_markdown])
def test_what_is_not_known_is_a_question_mark(artifact: Artifact, render: Callable[..., str]) -> None:
    text = render(page_of(artifact))
    assert "?" in text
    assert "None" not in text


def test_whether_kv_depends_on_a_key_is_yes_no_or_unknown() -> None:
    changes = tuple(ConfigChange(key=f"key_{said}", old=1, new=2, affects_kv=said) for said in (True, False, None))
    text = render_text(page_of(builders.diff(config=changes)))
    assert [line.split() for line in text.splitlines() if "key_" in line] == [
        ["key_True", "1", "2", "yes"],
        ["key_False", "1", "2", "no"],
        ["key_None", "1", "2", "unknown"],
    ]


def test_an_unknown_replica_shows_no_zero() -> None:
    page = render_text(page_of(builders.prewarm(replicas=(builders.unknown_replica(builders.REPLICA),))))
    (row,) = [line for line in page.splitlines() if line.startswith(f"  {builders.REPLICA} ")]
    assert row.split() == [builders.REPLICA, "1/3", *["?"] * 4, "→", *["?"] * 3, "nobody"]


def test_an_address_of_a_name_is_told_with_the_name_on_every_line_about_it() -> None:
    place = "http://10.0.0.3:8000 (llm.prod.svc)"
    fault = Fault(where=place, exit_code=5, message="POST http://10.0.0.3:8000/v1/completions: no answer")
    left_out = LeftOut(prompt="long", why=Why.TOO_LONG, detail="900 tokens, where 512 fit")
    one = builders.replica("http://10.0.0.3:8000", name="llm.prod.svc", fault=fault, skipped=(left_out,))
    lines = render_text(page_of(builders.prewarm(replicas=(one,), faults=(fault,))), width=200).splitlines()
    assert sum(place in line for line in lines) == 3, "its row, its fault once, and what it refused"


def test_a_record_that_was_cut_short_says_so() -> None:
    page = render_text(page_of(builders.record(interrupted=True)))
    assert "interrupted" in page


def test_commands_to_copy_quote_a_hostile_directory() -> None:
    source = "models/v1 3; rm -rf $HOME"
    page = render_text(page_of(builders.fingerprint(release=builders.release(source=source))))
    assert f"kvrelease namespace '{source}' --engine vllm" in page


def many(what: Struct, count: int, **by_number: Callable[[int], object]) -> tuple[Struct, ...]:
    """So many of a record, each with its own name."""
    return tuple(
        msgspec.structs.replace(what, **{key: of(number) for key, of in by_number.items()}) for number in range(count)
    )


def long_pages() -> dict[str, tuple[Artifact, int]]:
    """Artifacts of thirty of something, and how many of those a page shows."""
    parts = builders.diff_of_parts()
    assert parts.tokenizer is not None
    value = parts.tokenizer.values[0]
    tokenizer = msgspec.structs.replace(parts.tokenizer, values=many(value, 30, key=lambda number: f"key {number}"))
    files = many(parts.files[0], 30, name=lambda number: f"{number}.json")
    moved = next(drift for drift in builders.diff_with_drift().drift if drift.status is DriftStatus.MEASURED)
    lost = next(drift for drift in builders.diff_with_drift().drift if drift.status is DriftStatus.INCOMPARABLE)
    name = {"tensor": lambda number: f"tensor {number}"}
    finding = builders.prompts().sensitive[0]
    return {
        "settings of the tokenizer": (builders.diff_of_parts(tokenizer=tokenizer), 12),
        "files": (builders.diff_of_parts(files=files), 12),
        "tensors that moved": (builders.diff(drift=many(moved, 30, **name)), 12),
        "reasons": (builders.diff(drift=many(lost, 30, **name, reason=lambda number: f"reason {number}")), 5),
        "findings": (builders.prompts(sensitive=many(finding, 30, prompt_id=str)), 20),
        "prompts": (builders.selection(prompts=many(builders.selection().prompts[0], 30, id=str)), 20),
        "observations": (builders.record(observations=many(builders.record().observations[0], 30, id=str)), 10),
        "dropped": (builders.prewarm(plan=builders.plan(dropped=tuple(map(str, range(30))))), 20),
    }


@pytest.mark.parametrize("what", long_pages())
@pytest.mark.parametrize("render", [render_text, render_markdown])
def test_no_page_leaves_anything_out_without_a_word(what: str, render: Callable[..., str]) -> None:
    artifact, shown = long_pages()[what]
    assert f"and {30 - shown} more (all of them in --format json)" in " ".join(render(page_of(artifact)).split())


@pytest.mark.parametrize(
    ("changed", "shown"), [(None, "?"), (0.0, "0.00%"), (576 / 134_515_008, "under 0.01%"), (0.0001, "0.01%")]
)
def test_a_share_of_changed_elements_is_never_rounded_to_zero(changed: float | None, shown: str) -> None:
    moved = next(drift for drift in builders.diff_with_drift().drift if drift.status is DriftStatus.MEASURED)
    page = render_text(page_of(builders.diff(drift=(msgspec.structs.replace(moved, changed=changed),))))
    assert page.count(f"  {shown}\n") == 1


@pytest.mark.parametrize(("slot", "words"), [(None, "at least 2,885 tokens"), (0, "up to 2,885 tokens")])
def test_a_plan_for_slots_says_the_most_that_they_compute(slot: int | None, words: str) -> None:
    page = render_text(page_of(builders.prewarm(plan=builders.plan(control_slot=slot))))
    assert words in " ".join(page.split())
