"""The command line of `scripts/engines.py`: install, status, path."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from provision.cache import State, judge, read_manifest, sole_installer
from provision.errors import ProvisionError
from provision.llamacpp import LlamaCpp
from provision.places import Places
from provision.progress import Progress
from provision.smollm2 import SmolLM2
from provision.target import Target, bring_up_to_date
from provision.transformers4 import Transformers4
from provision.vllm import Vllm

OK, FAILED, INTERRUPTED = 0, 1, 130


def targets() -> tuple[Target, ...]:
    """Everything that can be installed, in the order of their needs: the models are made with both engines."""
    return (Vllm(), Transformers4(), LlamaCpp(), SmolLM2())


def install(names: Sequence[str], places: Places, *, progress: Progress) -> None:
    """Bring the named targets up to date, one installer at a time; `models` brings the engines that make them.

    Raises:
        ProvisionError: one could not be made; those before it stay installed.
    """
    everything = "all" in names or "models" in names
    with sole_installer(places.lock, progress=progress):
        for target in targets():
            if everything or target.name in names:
                bring_up_to_date(target, places, progress=progress)


def standing(places: Places, *, read_contents: bool) -> dict[str, dict[str, object]]:
    """How each target stands: state, reasons, folder, seconds it took, facts."""
    found: dict[str, dict[str, object]] = {}
    for target in targets():
        recipe = target.recipe()
        manifest = read_manifest(places.manifests, target.name)
        state, reasons = judge(places.root, manifest, recipe=recipe, read_contents=read_contents)
        found[target.name] = {
            "state": state.value,
            "reasons": list(reasons),
            "folder": str(target.folder(places)),
            "recipe": recipe,
            "install_seconds": None if manifest is None else manifest.seconds,
            "facts": {} if manifest is None else dict(manifest.facts),
        }
    return found


def status(places: Places, *, as_json: bool, read_contents: bool) -> int:
    """Print how each target stands to stdout; the exit code says whether all are ready."""
    found = standing(places, read_contents=read_contents)
    if as_json:
        sys.stdout.write(json.dumps({"cache": str(places.root), "targets": found}, indent=1) + "\n")
    else:
        for name, entry in found.items():
            sys.stdout.write(f"{name:13} {entry['state']!s:9} {entry['folder']}\n")
            for reason in entry["reasons"] if isinstance(entry["reasons"], list) else ():
                sys.stdout.write(f"{'':13} {reason}\n")
    return OK if all(entry["state"] == State.READY.value for entry in found.values()) else FAILED


def path_of(name: str, places: Places) -> int:
    """Print the path of one installed thing to stdout.

    Raises:
        ProvisionError: its target is not ready.
    """
    owner, path = places.named()[name]
    (target,) = (target for target in targets() if target.name == owner)
    manifest = read_manifest(places.manifests, owner)
    state, _ = judge(places.root, manifest, recipe=target.recipe(), read_contents=False)
    if state is not State.READY:
        raise ProvisionError(
            f"{name} belongs to the target {owner}, which is {state.value} in {places.root}",
            hint=f"Run `python scripts/engines.py install {owner}`",
        )
    sys.stdout.write(f"{path}\n")
    return OK


def parser() -> argparse.ArgumentParser:
    """The argument parser."""
    root = argparse.ArgumentParser(
        prog="engines.py",
        description="Install vLLM, transformers 4, llama.cpp and two releases of a small model into $KVRELEASE_CACHE "
        "(default ~/.cache/kvrelease).",
    )
    commands = root.add_subparsers(dest="command", required=True)
    install_parser = commands.add_parser("install", help="make what is missing, outdated or damaged")
    install_parser.add_argument(
        "names", nargs="*", default="all", choices=["all", *(target.name for target in targets())], metavar="NAME"
    )
    status_parser = commands.add_parser("status", help="say how each target stands; exit code 1 unless all are ready")
    status_parser.add_argument("--format", choices=["text", "json"], default="text")
    status_parser.add_argument("--verify", action="store_true", help="read every recorded file again")
    path_parser = commands.add_parser("path", help="print the path of one installed thing")
    path_parser.add_argument("name", choices=sorted(Places.from_environment().named()), metavar="NAME")
    return root


def _stop(_signum: int, _frame: FrameType | None) -> None:
    """Turn SIGTERM into the way Ctrl-C takes, so that running programs are ended too."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 0 done, 1 failed with a paragraph on stderr, 130 interrupted."""
    options = parser().parse_args(arguments)
    places = Places.from_environment()
    progress = Progress()
    signal.signal(signal.SIGTERM, _stop)
    try:
        match options.command:
            case "install":
                install([options.names] if options.names == "all" else options.names, places, progress=progress)
                return OK
            case "status":
                return status(places, as_json=options.format == "json", read_contents=options.verify)
            case _:
                return path_of(options.name, places)
    except ProvisionError as error:
        print(f"error: {error.paragraph()}", file=sys.stderr)
        return FAILED
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(
            f"error: {options.command} stopped on the file system: {error.strerror}{where}. Free disk space or mend "
            "the rights of the cache folder, or set KVRELEASE_CACHE to another one, and run it again.",
            file=sys.stderr,
        )
        return FAILED
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last finished stage", file=sys.stderr)
        return INTERRUPTED
