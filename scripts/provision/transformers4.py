"""transformers 4.55.4 in a folder of its own, which goes before vLLM's packages by `PYTHONPATH`: the same torch."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from provision import vllm
from provision.cache import recipe_digest, record_files
from provision.errors import ProvisionError
from provision.places import Places
from provision.programs import run
from provision.progress import Progress
from provision.result import Result
from provision.tools import ensure_tools
from provision.wheels import discard, fetch, install_offline, lock_text, parse_lock

LOCK = "transformers4-requirements.txt"

# What re-saves a model, imported from this folder beside vLLM's torch. About 5 s.
CHECK = (
    "import transformers; from transformers import LlamaForCausalLM, PreTrainedTokenizerFast; "
    "assert transformers.__version__ == '4.55.4', transformers.__version__; print(transformers.__file__)"
)


@dataclass(frozen=True)
class Transformers4:
    """The install target `transformers4`; it needs the target `vllm`."""

    name: str = "transformers4"

    def recipe(self) -> str:
        """Digest of the lock, of the packages beside it, and of the check that the result passed."""
        return recipe_digest({"lock": lock_text(LOCK), "beside": lock_text(vllm.LOCK), "check": CHECK})

    def folder(self, places: Places) -> Path:
        """The folder of packages."""
        return places.transformers4

    def make(self, places: Places, *, progress: Progress) -> Result:
        """Download three wheels, unpack them, and import them beside vLLM's packages; half a minute.

        Raises:
            ProvisionError: vLLM is missing, or disk, network, index or the check failed.
        """
        python = places.vllm / "bin" / "python"
        if not python.exists():
            raise ProvisionError(
                f"transformers 4 runs in vLLM's environment, and {places.vllm} is not there",
                hint="Run `python scripts/engines.py install vllm transformers4`",
            )
        pins = parse_lock(lock_text(LOCK))
        pip = ensure_tools(places, progress=progress)
        fetch(pins, python=pip, places=places, progress=progress, label="transformers4")
        folder = places.transformers4
        if folder.exists():  # pip adds to a folder, and half of another install would stay in it
            shutil.rmtree(folder)
        install_offline(
            Path(__file__).parent / LOCK,
            python=pip,
            places=places,
            progress=progress,
            label="transformers4: install",
            log=places.logs / "transformers4-install.log",
            folder=folder,
        )
        progress.stage("transformers4: checking that it imports beside vLLM's packages")
        run(
            [python, "-c", CHECK],
            label="transformers4: import",
            log=places.logs / "transformers4-import.log",
            progress=progress,
            environment={"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"},
        )
        discard(pins, places=places)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return Result(
            files=record_files(places.root, files, hashed=True), facts={pin.name: pin.version for pin in pins}
        )
