"""`kvrelease prompts select`: a log in, a set and a report out."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from kvrelease.workload.loading import load_prompt_set
from tests.cli.conftest import Kv
from tests.selection.builders import words


@pytest.fixture
def log(workdir: Path) -> Path:
    """A hundred and fifty requests, a second apart, over five system prompts."""
    rng = random.Random(8)
    systems = [words(rng, 700) for _ in range(5)]
    lines = []
    for number in range(150):
        system = rng.choices(systems, (16, 8, 4, 2, 1))[0]
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"SECRET-{words(rng, 90)}"}]
        lines.append(json.dumps({"messages": messages, "timestamp": 1_700_000_000 + number}) + "\n")
    path = workdir / "traffic.jsonl"
    path.write_text("".join(lines))
    return path


def test_the_set_is_written_and_the_report_printed(kv: Kv, log: Path, workdir: Path) -> None:
    result = kv("prompts", "select", log, "--requests", 3, "-o", "set.jsonl", "--format", "json")
    report = json.loads(result.out)
    assert result.code == 0
    assert (report["kind"], report["split"], report["held_out"]["requests"]) == ("kvrelease/selection", "time", 30)
    assert [one.weight for one in load_prompt_set("set.jsonl", directory=workdir)] == [
        one["weight"] for one in report["prompts"]
    ]
    assert kv("prompts", "check", "set.jsonl").code == 0


def test_no_text_of_a_prompt_is_in_what_is_printed_and_the_user_is_told_what_the_set_holds(kv: Kv, log: Path) -> None:
    for form in ("text", "json", "markdown"):
        result = kv("--verbose", "prompts", "select", log, "-o", "set.jsonl", "--format", form)
        assert "SECRET" not in result.out + result.err
        assert "real requests, word for word" in result.err
        assert "kvrelease prompts check set.jsonl" in result.err


def test_a_block_size_of_the_settings_file_is_for_tokens_and_no_error_without_a_tokenizer(
    kv: Kv, log: Path, workdir: Path
) -> None:
    assert kv("prompts", "select", log, "--block-tokens", 16).code == 2
    (workdir / "kvrelease.yaml").write_text("block-tokens: 16\n")
    assert kv("prompts", "select", log, "--requests", 3).code == 0


def test_the_old_releases_name_is_dropped_on_request_and_told_otherwise(kv: Kv, log: Path, workdir: Path) -> None:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    named = [{**line, "model": "sql" if number % 5 == 0 else "support-v1.2"} for number, line in enumerate(lines)]
    log.write_text("".join(json.dumps(line) + "\n" for line in named))
    kept = kv("prompts", "select", log, "-o", "kept.jsonl")
    assert "'support-v1.2'" in kept.out
    assert "--drop-model NAME" in " ".join(kept.out.split())
    assert "'support-v1.2'" not in kept.err, "it is told once"
    assert "'support-v1.2'" in kv("prompts", "select", log, "-o", "kept.jsonl", "--report", "r.txt").err
    dropped = kv("prompts", "select", log, "-o", "set.jsonl", "--drop-model", "support-v1.2", "--drop-model", "gpt-4o")
    assert dropped.code == 0
    assert "'support-v1.2'" not in dropped.out
    assert {prompt.body.get("model") for prompt in load_prompt_set("set.jsonl", directory=workdir)} == {None, "sql"}


def test_records_that_are_no_requests_are_told_by_reason(kv: Kv, log: Path) -> None:
    payloads = [
        {**json.loads(line), "call_type": "acompletion", "response_cost": 0} for line in log.read_text().splitlines()
    ]
    hits = [{**payload, "cache_hit": number % 3 > 0} for number, payload in enumerate(payloads)]
    log.write_text("".join(json.dumps(hit) + "\n" for hit in hits))
    for command in ("select", "check"):
        options = ("--log-format", "litellm") if command == "check" else ()
        found = kv("prompts", command, log, *options)
        assert found.code == 0
        assert "100 answers from the gateway's own cache" in found.out
        told = json.loads(kv("prompts", command, log, *options, "--format", "json").out)
        assert (told["requests"], told["passed_over"]) == (50, [["answers from the gateway's own cache", 100]])


def test_the_log_itself_is_never_replaced(kv: Kv, log: Path, workdir: Path) -> None:
    (workdir / "link.jsonl").symlink_to(log)
    before = log.read_bytes()
    for option, name in (("-o", "traffic.jsonl"), ("-o", "link.jsonl"), ("--report", "traffic.jsonl")):
        result = kv("prompts", "select", log, option, name, "--format", "json")
        assert result.code == 2
        assert "the log itself" in result.err
    assert log.read_bytes() == before


def test_equal_runs_write_equal_sets_and_gzip_changes_nothing(kv: Kv, log: Path, workdir: Path) -> None:
    packed = workdir / "traffic.jsonl.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    for source, name in ((log, "one.jsonl"), (log, "two.jsonl"), (packed, "three.jsonl")):
        assert kv("prompts", "select", source, "--blocks", 60, "-o", name).code == 0
    assert len({(workdir / name).read_bytes() for name in ("one.jsonl", "two.jsonl", "three.jsonl")}) == 1


def test_a_damaged_line_stops_unless_it_may_be_left_out(kv: Kv, log: Path) -> None:
    with log.open("a") as file:
        file.write('{"messages": SECRET\n')
    result = kv("prompts", "select", log)
    assert result.code == 4
    assert "line 151" in result.err
    assert "--skip-damaged" in result.err
    assert "SECRET" not in result.err
    left_out = kv("prompts", "select", log, "--skip-damaged", "--format", "json")
    assert (left_out.code, json.loads(left_out.out)["damaged"]) == (0, 1)


def test_a_trace_gives_figures_and_refuses_to_make_a_set(kv: Kv, workdir: Path) -> None:
    trace = workdir / "trace.jsonl"
    lines = [
        {"timestamp": n * 1000, "input_length": 1500, "output_length": 9, "hash_ids": [1, 2, 10 + n]} for n in range(40)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = json.loads(kv("prompts", "select", trace, "--tokens", 3000, "--format", "json").out)
    assert (figures["unit"], figures["block"], len(figures["prompts"])) == ("tokens", 512, 1)
    refused = kv("prompts", "select", trace, "-o", "set.jsonl")
    assert refused.code == 2
    assert "without text" in refused.err
    assert not (workdir / "set.jsonl").exists()


def test_tokens_of_a_text_log_are_not_guessed(kv: Kv, log: Path) -> None:
    result = kv("prompts", "select", log, "--tokens", 5000)
    assert result.code == 2
    assert "--characters" in result.err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("missing.jsonl",), 4, "no such file"),
        ((".",), 4, "directory"),
        (("/dev/null",), 2, "no regular file"),
        (("traffic.jsonl", "-o", "set.yaml"), 2, "is JSONL"),
        (("traffic.jsonl", "-o", "nowhere/set.jsonl"), 2, "no such directory"),
        (("traffic.jsonl", "--holdout", "nan"), 2, "--holdout"),
        (("traffic.jsonl", "--requests", "0"), 2, "--requests"),
        (("traffic.jsonl", "--block-tokens", "16"), 2, "--tokenizer"),
        (("traffic.jsonl", "--tokenizer", "nowhere"), 4, "nowhere"),
    ],
)
def test_what_cannot_be_done_is_told(kv: Kv, log: Path, arguments: tuple[str, ...], code: int, told: str) -> None:
    assert log.exists()
    result = kv("prompts", "select", *arguments)
    assert result.code == code
    assert told in result.err
    assert result.out == ""


def test_a_releases_tokenizer_counts_tokens(kv: Kv, log: Path, workdir: Path) -> None:
    """One token a byte, and the template writes contents alone."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    (workdir / "model").mkdir()
    tokenizer.save(str(workdir / "model" / "tokenizer.json"))
    (workdir / "model" / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    result = kv("prompts", "select", log, "--tokenizer", "model", "--tokens", 2000, "--format", "json")
    report = json.loads(result.out)
    assert (result.code, report["unit"], report["block"], report["warnings"]) == (0, "tokens", 16, [])
    assert [one["length"] for one in report["prompts"]] == [700 + len("SECRET-") + 90] * 2


def test_a_log_in_which_nothing_comes_back_is_inconclusive_and_writes_no_set(kv: Kv, workdir: Path) -> None:
    rng = random.Random(9)
    lines = [json.dumps({"prompt": words(rng, 300)}) + "\n" for _ in range(20)]
    (workdir / "odd.jsonl").write_text("".join(lines))
    result = kv("prompts", "select", "odd.jsonl", "-o", "set.jsonl")
    assert result.code == 3
    assert "nothing was chosen" in result.out
    assert not (workdir / "set.jsonl").exists()


def test_the_report_may_go_to_a_file(kv: Kv, log: Path, workdir: Path) -> None:
    result = kv("prompts", "select", log, "--report", "report.md", "-o", "set.jsonl")
    assert (result.code, result.out) == (0, "")
    assert (workdir / "report.md").read_text().startswith("#")


def test_a_prompt_set_in_place_of_a_log_is_told_what_takes_it(kv: Kv, workdir: Path) -> None:
    (workdir / "set.yaml").write_text("prompts:\n  - {id: a, user: Hello}\n")
    refused = kv("prompts", "select", "set.yaml")
    assert refused.code == 4
    assert "kvrelease prewarm --prompts set.yaml" in refused.err


def test_a_log_too_short_to_hold_anything_out_says_what_its_figure_is_of(kv: Kv, workdir: Path) -> None:
    line = json.dumps({"messages": [{"role": "user", "content": words(random.Random(1), 90)}]}) + "\n"
    (workdir / "short.jsonl").write_text(line * 3)
    told = kv("prompts", "select", "short.jsonl", "--holdout", 0.001)
    assert told.code == 0
    assert "none was drawn to be held out" in " ".join(told.out.split())
    assert "? of held-out" not in told.out
