"""The house plan, enforced: imports go one way, and each library stays where it belongs. See docs/architecture.md."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "kvrelease"

BOTTOM = {"errors", "artifacts", "config", "progress", "chain", "printable", "absent"}
FOUNDATIONS = {"release", "workload", "engines", "ledger", "simulator"}
JOBS = {"prewarm", "verify", "stores"}

# What each part of the package may import, itself aside.
ALLOWED: dict[str, set[str]] = {
    "errors": {"printable"},
    "printable": set(),
    "absent": set(),
    "progress": set(),
    "chain": set(),
    "artifacts": {"errors", "absent"},
    "config": {"errors", "artifacts"},
    **dict.fromkeys(FOUNDATIONS, BOTTOM),
    "keys": {"errors", "chain", "release"},
    "binding": BOTTOM | FOUNDATIONS,
    "fleet": BOTTOM | {"engines", "binding"},
    **dict.fromkeys(JOBS, BOTTOM | FOUNDATIONS | {"binding", "fleet"}),
    "selection": BOTTOM | {"workload"},
    "demo": BOTTOM | FOUNDATIONS | {"binding", "fleet"} | JOBS,
    "report": BOTTOM | FOUNDATIONS | {"binding", "fleet", "demo", "selection"} | JOBS,
    "cli": BOTTOM | FOUNDATIONS | {"binding", "fleet", "demo", "selection"} | JOBS | {"report"},
    "__main__": {"cli"},
}

# Libraries that only some modules may import, by path prefix below the package.
CONFINED: dict[str, tuple[str, ...]] = {
    "rich": ("cli/", "report/terminal.py"),
    "typer": ("cli/",),
    "torch": (
        "release/drift.py",
        "release/drift_torch.py",
        "release/drift_rows.py",
        "engines/kernel_noise.py",
        "engines/local.py",
        "engines/local_kv.py",
        "engines/local_release.py",
    ),
    "transformers": ("engines/local.py", "engines/local_release.py"),
    "httpx": ("engines/",),
    "sqlalchemy": ("ledger/",),
    "scipy": ("verify/",),
    "huggingface_hub": ("release/hub_client.py",),
    "fsspec": ("release/object_store.py",),
    "tokenizers": ("release/tokenizer_process.py", "workload/release_tokenizer.py"),
    "jinja2": ("engines/local_tokens.py", "workload/chat_template.py"),
}

# Modules that do no input or output: they take values and return values.
PURE = (
    "prewarm/capacity.py",
    "prewarm/judge.py",
    "prewarm/order.py",
    "prewarm/pace.py",
    "prewarm/plan.py",
    "prewarm/planning.py",
    "prewarm/proof.py",
    "prewarm/result.py",
    "prewarm/slots.py",
    "verify/asking.py",
    "verify/calibration.py",
    "verify/checks.py",
    "verify/claim.py",
    "verify/clearing.py",
    "verify/closeness.py",
    "verify/consistency.py",
    "verify/suspicion.py",
    "verify/weighing.py",
    "verify/diagnosis.py",
    "verify/coverage.py",
    "verify/distance.py",
    "verify/exposure.py",
    "verify/first_stale.py",
    "verify/floor.py",
    "verify/identity.py",
    "verify/isolation.py",
    "verify/kept_answers.py",
    "verify/ladder.py",
    "verify/judge.py",
    "verify/next_step.py",
    "verify/keys.py",
    "verify/noise.py",
    "verify/peers.py",
    "verify/power.py",
    "verify/probes.py",
    "verify/rank.py",
    "verify/recheck.py",
    "verify/response_cache.py",
    "verify/swapped.py",
    "verify/tier.py",
    "verify/reuse.py",
    "verify/old_release.py",
    "verify/open_checks.py",
    "verify/unchanged.py",
    "demo/figures.py",
    "demo/traffic.py",
    "binding/bound.py",
    "binding/hits.py",
    "binding/left_out.py",
    "binding/middleware/body.py",
    "binding/middleware/declared.py",
    "binding/middleware/namespaces.py",
    "binding/middleware/routes.py",
    "binding/middleware/settings.py",
    "binding/reloading/plan.py",
    "binding/reloading/result.py",
    "binding/runtime.py",
    "binding/salts.py",
    "binding/settings/__init__.py",
    "binding/settings/aibrix.py",
    "binding/settings/binding.py",
    "binding/settings/compatible.py",
    "binding/settings/dynamo.py",
    "binding/settings/llamacpp.py",
    "binding/settings/lmcache.py",
    "binding/settings/local.py",
    "binding/settings/sglang.py",
    "binding/target.py",
    "binding/settings/tensorrt_llm.py",
    "binding/settings/vllm.py",
    "binding/tenant_salt.py",
    "engines/cacheability.py",
    "engines/front_cache.py",
    "fleet/ranks.py",
    "workload/budget.py",
    "workload/coverage.py",
    "selection/cutting.py",
    "selection/evaluate.py",
    "selection/chosen_set.py",
    "selection/select.py",
    "selection/set_file.py",
    "selection/sketch.py",
    "selection/split.py",
    "simulator/cache.py",
    "simulator/routing.py",
    "simulator/simulate.py",
    "simulator/slots.py",
    "simulator/traffic.py",
    "workload/checksums.py",
    "workload/complaints.py",
    "workload/key_space.py",
    "workload/log_check.py",
    "workload/logs/formats.py",
    "workload/logs/json_format.py",
    "workload/logs/litellm.py",
    "workload/logs/log_format.py",
    "workload/logs/mooncake.py",
    "workload/logs/openai.py",
    "workload/logs/otel.py",
    "workload/logs/otel_messages.py",
    "workload/logs/otlp.py",
    "workload/logs/request.py",
    "workload/logs/sharegpt.py",
    "workload/prefix_tree.py",
    "workload/sensitive.py",
    "workload/tokens.py",
    "workload/volatile.py",
    "chain.py",
    "release/adapter_diff.py",
    "release/adapter_fit.py",
    "release/algorithm.py",
    "release/auto_map.py",
    "release/check.py",
    "release/comparison.py",
    "release/diff.py",
    "release/diff_advice.py",
    "release/diff_record.py",
    "release/diff_summary.py",
    "release/details.py",
    "release/digests.py",
    "release/drift_figures.py",
    "release/drift_plan.py",
    "release/families/family.py",
    "release/families/heads.py",
    "release/families/rope.py",
    "release/draft_heads.py",
    "release/extra_files.py",
    "release/file_changes.py",
    "release/impact.py",
    "release/kinds.py",
    "release/kv_reasons.py",
    "release/kv_verdict.py",
    "release/known_tensors.py",
    "release/notation.py",
    "release/quantization.py",
    "release/quantized_expectation.py",
    "release/runtime_change.py",
    "release/relayout.py",
    "release/sampling.py",
    "release/text_changes.py",
    "release/text_diff.py",
    "release/tokenizer_change.py",
    "release/tokenizer_parts.py",
    "report/document.py",
    "stores/stamp.py",
    "report/markdown.py",
)
EDGES = {"asyncio", "httpx", "os", "pathlib", "socket", "subprocess", "sqlalchemy", "tempfile", "threading", "time"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def imports_of(path: Path, *, at_import: bool = False) -> tuple[tuple[str, int], ...]:
    """(dotted module, line) of every import; with `at_import` only those that run when the module is imported."""
    return tuple((module, line) for module, line, is_late in _imports(path) if not (at_import and is_late))


@functools.cache  # dozens of tests ask for all modules
def _imports(path: Path) -> tuple[tuple[str, int, bool], ...]:
    return tuple(_imports_below(ast.parse(path.read_text(encoding="utf-8")), is_late=False, where=path))


def _imports_below(parent: ast.AST, *, is_late: bool, where: Path) -> Iterator[tuple[str, int, bool]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, is_late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where}:{node.lineno} imports relatively"
            assert node.module is not None
            if node.module == "kvrelease":
                yield from ((f"kvrelease.{alias.name}", node.lineno, is_late) for alias in node.names)
            else:
                yield node.module, node.lineno, is_late
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):  # no expression has an import
            is_typing = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports_below(node, is_late=is_late or is_typing or is_function, where=where)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        assert not imports_of(path)
        return
    for module, line in imports_of(path):
        names = module.split(".")
        if names[0] == "kvrelease" and len(names) > 1 and names[1] != "__version__":
            assert names[1] in ALLOWED[part] | {part}, f"{path}:{line}: {part} may not import {module}"


@pytest.mark.parametrize("library", sorted(CONFINED))
def test_a_confined_library_stays_in_its_place(library: str) -> None:
    for path in MODULES:
        where = path.relative_to(PACKAGE).as_posix()
        for module, line in imports_of(path):
            if module.split(".")[0] == library:
                assert where.startswith(CONFINED[library]), f"{where}:{line} imports {library}"


@pytest.mark.parametrize("where", PURE)
def test_computation_touches_no_file_socket_or_clock(where: str) -> None:
    for module, line in imports_of(PACKAGE / where):
        assert module.split(".")[0] not in EDGES, f"{where}:{line} imports {module}"


@pytest.mark.parametrize(
    "library",
    ["torch", "transformers", "scipy", "sqlalchemy", "matplotlib", "huggingface_hub", "fsspec", "tokenizers", "jinja2"],
)
def test_a_heavy_library_is_imported_late(library: str) -> None:
    for path in MODULES:
        where = path.relative_to(PACKAGE).as_posix()
        if where == "ledger/tables.py":
            continue  # imported late itself
        for module, line in imports_of(path, at_import=True):
            assert module.split(".")[0] != library, f"{where}:{line} imports {library} when imported"


def test_no_command_and_no_setting_leads_to_kernel_noise() -> None:
    """An instrument for tests and benchmarks: only they pass it to the engine."""
    found = [path.relative_to(PACKAGE).as_posix() for path in MODULES if "noise=" in path.read_text(encoding="utf-8")]
    users = [
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if any(module == "kvrelease.engines.kernel_noise" for module, _ in imports_of(path))
    ]
    assert users == ["engines/local.py"]
    for where in set(found) - set(users):
        assert "open_local" not in (PACKAGE / where).read_text(encoding="utf-8"), where


def test_help_loads_nothing_heavy() -> None:
    heavy = "torch transformers scipy sqlalchemy httpx matplotlib pydantic yaml asyncio"
    code = (
        "import sys\n"
        "from kvrelease.cli.app import run\n"
        "assert run(['verify', '--help']) == 0\n"
        f"sys.exit(', '.join(sorted(set('{heavy}'.split()) & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0, done.stderr


def test_what_runs_inside_an_engine_imports_the_standard_library_only() -> None:
    for module, line in imports_of(PACKAGE / "binding" / "tenant_salt.py"):
        assert module.split(".")[0] in sys.stdlib_module_names, f"binding/tenant_salt.py:{line} imports {module}"


def test_the_middleware_needs_nothing_but_the_standard_library() -> None:
    """It is loaded inside the engine's process, where none of our dependencies may be installed."""
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        "import kvrelease.binding.middleware\n"
        "ours = {'__main__', 'kvrelease'}\n"
        "foreign = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - ours\n"
        "sys.exit(', '.join(sorted(foreign)) or 0)\n"
    )
    # -S: without site-packages.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


def test_no_catch_all_becomes_an_answer_but_in_the_seam() -> None:
    """Elsewhere a catch-all may only translate what a library raises, with `raise ... from` as its last word."""
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id == "Exception"))
        and not (isinstance(node.body[-1], ast.Raise) and node.body[-1].cause is not None)
    ]
    assert found == ["cli/app.py"]


def test_nothing_is_unpickled() -> None:
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
    for path in MODULES:
        for module, line in imports_of(path):
            assert module.split(".")[0] not in forbidden, f"{path}:{line} imports {module}"


def test_nothing_is_mapped() -> None:
    """A page fault on a network file system is a SIGBUS, or very slow.

    https://github.com/NVIDIA/TensorRT-LLM/pull/17368, https://github.com/sgl-project/sglang/pull/7469
    """
    for path in MODULES:
        for module, line in imports_of(path):
            assert module.split(".")[0] != "mmap", f"{path}:{line} imports {module}"


def test_every_module_of_release_and_no_other_has_its_place_in_the_document() -> None:
    """`release/` has too many to be found by name alone: docs/architecture.md sorts them, each family's own aside."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## What lies in `release/`")[2].partition("\n## ")[0]
    named = [word for word in table.split("|---|---|")[1].split("`")[1::2] if not word.endswith("/")]
    modules = {path.stem for path in (PACKAGE / "release").glob("*.py")} - {"__init__"}
    shared = {"family", "parts", "experts", "pretrained", "rope", "notation", "heads", "layer_types"}
    assert sorted(set(named)) == sorted(modules | shared)
    assert shared <= {path.stem for path in (PACKAGE / "release" / "families").glob("*.py")}
