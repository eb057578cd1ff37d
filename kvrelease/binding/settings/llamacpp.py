"""llama.cpp: no salt, so a process and a slot directory for each release; its name as a label.

Source: llama.cpp b11434, tools/server/server-context.cpp (3442-3444: keys are tokens only; 5127-5155: slot files below
`--slot-save-path`), src/llama-context.cpp, 3326-3398 (a slot file holds no architecture, name or digest).
"""

from __future__ import annotations

from kvrelease.binding.settings.binding import BindingSettings, Wanted


def llamacpp(wanted: Wanted) -> BindingSettings:
    """What binds llama.cpp's server."""
    directory = wanted.directory("llamacpp")
    return BindingSettings(
        flags=("--alias", wanted.namespace, "--slot-save-path", f"{directory}/"),
        directories={"--slot-save-path": f"{directory}/"},
        limits=(
            "llama.cpp has no salt: within one process keys are tokens only, so start a process for each "
            "release, and never restore a slot file from another namespace's directory",
            "a slot file says nothing of its weights: stamp the directory, or each file that leaves it "
            "(kvrelease stores stamp)",
            "tenants cannot be kept apart within one process",
        ),
    )
