"""`kvrelease diff`: what it ends with, and what its options read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Kv
from tests.cli.shell import Releases
from tests.release.builders import tensors, write_json, write_release, write_text_side

PARTS = (
    "kv", "weights", "config", "tokenizer", "template", "generation", "code", "preprocessor", "adapters", "extra",
    "any",
)  # fmt: skip


@pytest.fixture
def pair(workdir: Path) -> tuple[Path, Path]:
    old, new = (write_text_side(write_release(workdir / name)) for name in ("old", "new"))
    return old, new


@pytest.mark.parametrize("part", PARTS)
def test_equal_releases_fail_on_nothing(kv: Kv, pair: tuple[Path, Path], part: str) -> None:
    assert kv("diff", "old", "new", "--fail-on", part).code == 0
    kv("fingerprint", "old", "-o", "old.json")
    assert kv("diff", "old.json", "new", "--fail-on", part).code == 0


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        (("tokenizer",), 0),
        (("tokenizer", "weights"), 1),
        (("weights", "tokenizer"), 1),
        (("tokenizer", "runtime"), 3),
        (("weights", "runtime"), 1),
        (("runtime", "weights", "tokenizer"), 1),
    ],
)
def test_every_part_that_is_asked_about_counts_and_the_worst_answer_wins(
    kv: Kv, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, parts: tuple[str, ...], code: int
) -> None:
    write_release(pair[1], tensors(1))
    assert kv("diff", "old", "new", *(word for part in parts for word in ("--fail-on", part))).code == code
    monkeypatch.setenv("KVRELEASE_FAIL_ON", " ".join(parts))
    assert kv("diff", "old", "new").code == code


@pytest.mark.parametrize("suffix", ["json", "md", "txt"])
def test_a_result_in_a_file_leaves_one_line_in_the_log(kv: Kv, pair: tuple[Path, Path], suffix: str) -> None:
    good = kv("diff", "old", "new", "--fail-on", "kv", "-o", f"d.{suffix}")
    assert (good.code, good.out, good.err.count("\n")) == (0, "", 1)
    assert good.err.startswith("VALID  ")
    assert good.err.endswith(f". Written to d.{suffix}\n")
    write_release(pair[1], tensors(1))
    bad = kv("diff", "old", "new", "--fail-on", "kv", "-o", f"d.{suffix}")
    assert (bad.code, bad.out) == (1, "")
    assert bad.err.startswith("INVALID  Old KV is invalid from layer 0 on: ")
    assert bad.err.endswith(f" tensors changed. Written to d.{suffix}\n")


def test_a_runtime_that_nobody_named_is_not_known(kv: Kv, pair: tuple[Path, Path]) -> None:
    assert kv("diff", "old", "new", "--fail-on", "runtime").code == 3
    assert kv("diff", "old", "new").code == 0


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("tokenizer.json", {"version": "1.0", "model": {"type": "BPE", "vocab": {"b": 0}}}, "tokenizer"),
        ("tokenizer_config.json", {"bos_token": "<s>", "chat_template": "{{ other }}"}, "template"),
        ("generation_config.json", {"temperature": 0.9}, "generation"),
    ],
)
def test_a_changed_part_fails_on_itself_and_on_any(
    kv: Kv, pair: tuple[Path, Path], name: str, content: dict[str, object], part: str
) -> None:
    write_json(pair[1] / name, content)
    ends = {one: kv("diff", "old", "new", "--fail-on", one).code for one in PARTS}
    assert {one for one, code in ends.items() if code == 1} == {part, "any"}
    assert {code for one, code in ends.items() if one not in (part, "any")} == {0}


@pytest.mark.parametrize(
    ("name", "also"), [("preprocessor_config.json", {"preprocessor"}), ("sparse_attention_config.json", set())]
)
def test_a_changed_file_beside_the_configuration_fails_on_kv_and_config_too(
    kv: Kv, pair: tuple[Path, Path], name: str, also: set[str]
) -> None:
    for side, size in zip(pair, (1, 2), strict=True):
        write_json(side / name, {"size": size})
    for old in ("old", "old.json"):
        kv("fingerprint", "old", "-o", "old.json")
        ends = {one: kv("diff", old, "new", "--fail-on", one).code for one in PARTS}
        assert {one for one, code in ends.items() if code == 1} == {"kv", "config", "any", *also}
        assert set(ends.values()) == {0, 1}


def test_weights_without_a_configuration_are_the_same_weights_and_nothing_else_is_known(
    kv: Kv, pair: tuple[Path, Path], workdir: Path
) -> None:
    (workdir / "alone").mkdir()
    (pair[0] / "model.safetensors").rename(workdir / "alone" / "x.safetensors")
    x = "alone/x.safetensors"
    ends = {one: kv("diff", x, x, "--fail-on", one).code for one in PARTS}
    assert {one for one, code in ends.items() if code == 3} == {"kv", "config", "code", "preprocessor", "any"}
    assert set(ends.values()) == {0, 3}
    assert "neither side has a config.json, on which KV depends too" in " ".join(kv("diff", x, x).out.split())
    assert "one side has no config.json" in " ".join(kv("diff", x, "new").out.split())


def test_any_asks_about_kv_too_where_no_digest_can_answer(kv: Kv, pair: tuple[Path, Path]) -> None:
    """An unchanged draft for another model: its KV depends on that model, which was not given."""
    for side in pair:
        config = json.loads((side / "config.json").read_text())
        write_json(side / "config.json", {**config, "architectures": ["EagleLlamaForCausalLM"]})
    ends = {one: kv("diff", "old", "new", "--fail-on", one).code for one in PARTS}
    assert {one for one, code in ends.items() if code == 3} == {"kv", "any"}
    assert set(ends.values()) == {0, 3}


def test_any_asks_about_weight_files_that_the_model_does_not_load(kv: Kv, pair: tuple[Path, Path]) -> None:
    for data, code in ((b"1", 3), (b"12", 1)):
        (pair[0] / "draft.bin").write_bytes(b"0")
        (pair[1] / "draft.bin").write_bytes(data)
        ends = {one: kv("diff", "old", "new", "--fail-on", one).code for one in PARTS}
        assert {one for one, end in ends.items() if end == code} == {"extra", "any"}
        assert set(ends.values()) == {0, code}


def test_weights_replaced_beside_a_published_fingerprint_are_refused_as_the_new_side(
    kv: Kv, pair: tuple[Path, Path]
) -> None:
    """They are what would be served; as the old side the fingerprint says what was there before."""
    kv("fingerprint", "new", "--publish")
    write_release(pair[1], {name: values for name, values in tensors(1).items() if "norm" not in name})
    for part in ("kv", "weights", "any"):
        refused = kv("diff", "old", "new/kvrelease.json", "--fail-on", part)
        assert (refused.code, refused.out) == (4, "")
        assert "'model.safetensors' beside it has" in refused.err
        assert "the release was replaced after it was published" in refused.err
    overwritten = kv("diff", "new/kvrelease.json", "new", "--fail-on", "kv")
    assert overwritten.code == 1
    assert "warning: new/kvrelease.json: 'model.safetensors' beside kvrelease.json has another size" in overwritten.err


def test_a_warning_about_both_sides_is_told_once(kv: Kv, pair: tuple[Path, Path]) -> None:
    for side in pair:
        config = json.loads((side / "config.json").read_text())
        write_json(side / "config.json", {**config, "model_type": "mamba"})
        for name in ("mm_projector.bin", "training_args.bin", "tokenizer.bin"):
            (side / name).write_bytes(b"1")
    err = kv("diff", "old", "new").err
    assert err.count("no dependency rule is known for model type 'mamba'") == 1
    assert "warning: old and new: no dependency rule" in err
    assert "warning: old and new: weight files that are not part of the release: 'mm_projector.bin'\n" in err


def test_changed_weights_fail_on_kv_weights_and_any(kv: Kv, pair: tuple[Path, Path]) -> None:
    write_release(pair[1], tensors(1))
    ends = {one: kv("diff", "old", "new", "--fail-on", one).code for one in PARTS}
    assert {one for one, code in ends.items() if code == 1} == {"kv", "weights", "any"}


def test_two_runtimes_that_differ_make_kv_of_equal_weights_invalid(kv: Kv, releases: Releases, workdir: Path) -> None:
    for version in ("0.31.0", "0.32.0"):
        (workdir / "kvrelease.yaml").write_text(f"runtime: {{engine: vllm, version: {version}}}\n")
        kv("namespace", releases.new, "--engine", "vllm", "-o", f"{version}.json")
    runtimes = ("--old-runtime", "0.31.0.json", "--new-runtime", "0.32.0.json")
    found = kv("diff", releases.new, releases.new, *runtimes, "--fail-on", "kv", "--format", "json")
    assert found.code == 1
    diff = json.loads(found.out)
    assert diff["runtime"]["fields"] == [{"field": "version", "old": "0.31.0", "new": "0.32.0"}]
    assert (diff["kv"]["status"], diff["changed"]) == ("invalid", [])
    page = kv("diff", releases.new, releases.new, *runtimes)
    assert page.code == 0
    assert "because the runtime changed (version 0.31.0 → 0.32.0)" in " ".join(page.out.split())
    same = ("--old-runtime", "0.32.0.json", "--new-runtime", "kvrelease.yaml")
    assert kv("diff", releases.new, releases.new, *same, "--fail-on", "runtime").code == 0
    assert kv("diff", releases.new, releases.new, *same, "--fail-on", "kv").code == 0


def test_a_namespace_of_no_declared_runtime_leaves_old_kv_unknown(kv: Kv, releases: Releases, workdir: Path) -> None:
    """Its entries lie under another namespace than those of any declared runtime."""
    kv("namespace", releases.new, "--engine", "vllm", "-o", "undeclared.json")
    (workdir / "declared.yaml").write_text("runtime: {engine: vllm, version: 0.32.0}\n")
    files = ("undeclared.json", "declared.yaml")
    for old, new in (files, reversed(files), ("undeclared.json", "undeclared.json")):
        found = kv("diff", releases.new, releases.new, "--old-runtime", old, "--new-runtime", new, "--fail-on", "kv")
        assert found.code == 3
        text = " ".join(found.out.split())
        assert "whether the runtime changed is not known: undeclared.json declares none" in text
        assert "What to do - state engine, version" in text


def test_a_namespace_in_place_of_a_fingerprint_says_how_to_get_one(kv: Kv, releases: Releases) -> None:
    kv("namespace", releases.new, "--engine", "vllm", "-o", "ns.json")
    result = kv("diff", "ns.json", releases.new)
    assert result.code == 4
    source = json.loads(releases.new.read_text())["release"]["source"]
    assert f"next: give the model, or its fingerprint: kvrelease fingerprint {source} -o FILE.json writes one" in (
        result.err
    )


def test_a_runtime_of_which_only_a_typo_is_stated_is_not_known(kv: Kv, releases: Releases, workdir: Path) -> None:
    (workdir / "a.yaml").write_text("runtime: {tensor_paralel_size: 2}\n")
    runtimes = ("--old-runtime", "a.yaml", "--new-runtime", "a.yaml")
    for part in ("kv", "runtime", "any"):
        found = kv("diff", releases.new, releases.new, *runtimes, "--fail-on", part)
        assert found.code == 3
    assert found.err.count("runtime.tensor_paralel_size is no field that kvrelease knows") == 1
    assert "did you mean tensor_parallel_size?" in found.err
    assert "neither side states engine, version" in " ".join(found.out.split())


def test_a_namespace_of_a_field_that_nobody_knows_says_so(kv: Kv, releases: Releases, workdir: Path) -> None:
    (workdir / "kvrelease.yaml").write_text("runtime: {engine: vllm, versoin: 0.32.0}\n")
    found = kv("namespace", releases.new, "--engine", "vllm", "--format", "json")
    assert "kvrelease.yaml: runtime.versoin is no field that kvrelease knows (did you mean version?)" in found.err
    assert any("runtime.versoin" in warning for warning in json.loads(found.out)["warnings"])


@pytest.mark.parametrize(
    ("file", "code"), [("none.json", 4), ("prompts.yaml", 2), ("old.json", 4)], ids=["absent", "yaml", "fingerprint"]
)
def test_a_file_that_states_no_runtime_is_told_before_anything_is_hashed(
    kv: Kv, releases: Releases, workdir: Path, file: str, code: int
) -> None:
    (workdir / "old.json").write_bytes(releases.old.read_bytes())
    (workdir / "good.yaml").write_text("runtime: {engine: vllm, version: 0.32.0}\n")
    result = kv("diff", "nowhere", "nowhere", "--old-runtime", file, "--new-runtime", "good.yaml")
    assert (result.code, len(result.errors)) == (code, 1)
    assert file in result.errors[0]


def test_a_directory_in_place_of_a_runtime_says_what_to_give(kv: Kv, workdir: Path) -> None:
    result = kv("diff", "nowhere", "nowhere", "--old-runtime", ".", "--new-runtime", ".")
    assert result.code == 4
    assert "it is a directory" in result.errors[0]
    assert "next: give the file in it that states a runtime" in result.err


def test_two_equal_paths_are_told(kv: Kv, releases: Releases) -> None:
    assert f"note: OLD and NEW are the same: {releases.new}\n" in kv("diff", releases.new, releases.new).err
    assert "are the same" not in kv("diff", releases.old, releases.new).err


@pytest.mark.parametrize(("given", "wanted"), [("--old-runtime", "--new-runtime"), ("--new-runtime", "--old-runtime")])
def test_one_runtime_alone_compares_nothing_and_is_refused(kv: Kv, given: str, wanted: str) -> None:
    result = kv("diff", "nowhere", "nowhere", given, "nothing.yaml")
    assert (result.code, len(result.errors)) == (2, 1)
    assert f"{given} alone" in result.errors[0]
    assert f"next: add {wanted} FILE" in result.err


def test_markup_in_a_template_stays_text_in_every_format(kv: Kv, pair: tuple[Path, Path]) -> None:
    hostile = "[red]x[/b] ``` <img src=x>\x1b[31m {{ a }}"
    write_json(pair[1] / "tokenizer_config.json", {"bos_token": "<s>", "chat_template": hostile})
    for form in ("text", "markdown"):
        found = kv("diff", "old", "new", "--format", form)
        assert found.code == 0
        assert "\x1b" not in found.out
        assert "[red]x[/b] ``` <img src=x>\\x1b[31m {{ a }}" in found.out
