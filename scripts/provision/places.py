"""Where installed engines and models lie: `$KVRELEASE_CACHE`, or `~/.cache/kvrelease`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Places:
    """Every path of one cache, derived from its root.

    Attributes:
        root: the cache's folder; it may not exist yet.
    """

    root: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Places:
        """The cache that `KVRELEASE_CACHE` names, or the one in the user's home."""
        named = environment.get("KVRELEASE_CACHE")
        return cls(root=Path(named).expanduser().absolute() if named else Path.home() / ".cache" / "kvrelease")

    @property
    def downloads(self) -> Path:
        """Verified archives that an unfinished install still needs."""
        return self.root / "downloads"

    @property
    def work(self) -> Path:
        """Unfinished builds; safe to delete when no install runs."""
        return self.root / "work"

    @property
    def logs(self) -> Path:
        """Full output of every step, one file per step."""
        return self.root / "logs"

    @property
    def manifests(self) -> Path:
        """One manifest per finished install."""
        return self.root / "manifests"

    @property
    def lock(self) -> Path:
        """The file that an installing process holds locked."""
        return self.root / "install.lock"

    @property
    def tools(self) -> Path:
        """Virtual environment with the pinned pip helpers, cmake and ninja."""
        return self.root / "tools"

    @property
    def vllm(self) -> Path:
        """The virtual environment of vLLM alone."""
        return self.root / "engines" / "vllm-0.32.0"

    @property
    def llamacpp(self) -> Path:
        """llama.cpp: `bin/llama-server`, and the converter under `convert/`."""
        return self.root / "engines" / "llamacpp-b11434"

    @property
    def llama_server(self) -> Path:
        """llama.cpp's server."""
        return self.llamacpp / "bin" / "llama-server"

    @property
    def transformers4(self) -> Path:
        """The packages of transformers 4.55.4, to go before vLLM's on the path."""
        return self.root / "engines" / "transformers-4.55.4"

    @property
    def models(self) -> Path:
        """The two releases of the model, each as a directory of safetensors and as one GGUF file."""
        return self.root / "models"

    def named(self) -> dict[str, tuple[str, Path]]:
        """What `path NAME` can print: name to (install target, path)."""
        return {
            "vllm": ("vllm", self.vllm),
            "vllm-python": ("vllm", self.vllm / "bin" / "python"),
            "llamacpp": ("llamacpp", self.llamacpp),
            "llama-server": ("llamacpp", self.llama_server),
            "transformers4": ("transformers4", self.transformers4),
            "smollm2-v1.2": ("models", self.models / "smollm2-v1.2"),
            "smollm2-v1.3": ("models", self.models / "smollm2-v1.3"),
            "smollm2-v1.2.gguf": ("models", self.models / "smollm2-v1.2.gguf"),
            "smollm2-v1.3.gguf": ("models", self.models / "smollm2-v1.3.gguf"),
        }
