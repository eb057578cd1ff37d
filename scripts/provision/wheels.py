"""Pinned downloads: every archive is named in a lock with its SHA-256, fetched by pip, and checked again here."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.cache import file_sha256
from provision.errors import ProvisionError
from provision.places import Places
from provision.programs import NO_NETWORK, NO_SUCH_VERSION, run
from provision.progress import Progress

HERE = Path(__file__).parent
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # the public index of CPU builds; the hash is the same
BATCH = 25  # pip hands files over at its end, so a killed run loses one batch; a call costs 2 s
LOCK_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ]+) --hash=sha256:(?P<sha256>[0-9a-f]{64})  # (?P<filename>[^ /]+)"
)


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One archive of one package.

    Attributes:
        name: the package, as the index calls it.
        version: exact, with its local part (`2.13.0+cpu`).
        filename: of the wheel or the source archive.
        sha256: of the file, 64 hexadecimal digits.
    """

    name: str
    version: str
    filename: str
    sha256: str

    def requirement(self) -> str:
        """The pin as a line of a hashed requirements file."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def parse_lock(text: str) -> tuple[Pin, ...]:
    """The pins of a requirements lock, one a line, comments ignored.

    Raises:
        ProvisionError: a line is not a pin with hash and file name.
    """
    pins = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LOCK_LINE.fullmatch(line)
        if match is None:
            raise ProvisionError(f"Line {number} of the lock is not a pin: {line!r}", hint="Restore the lock file")
        pins.append(Pin(**match.groupdict()))
    return tuple(pins)


def lock_text(name: str) -> str:
    """The text of a lock file that lies beside this module."""
    return (HERE / name).read_text()


def single_pin(name: str) -> Pin:
    """The pin of one archive that is no requirement of anything, from `pins.json`."""
    entry = json.loads(lock_text("pins.json"))[name]
    return Pin(name=name, version=str(entry["version"]), filename=str(entry["filename"]), sha256=str(entry["sha256"]))


def mismatch(path: Path, pin: Pin, *, found: str) -> ProvisionError:
    """The error for a file that is not the one that was pinned."""
    return ProvisionError(
        f"Tried to use {path.name} for {pin.name} {pin.version}: its SHA-256 is {found}, and {pin.sha256} was pinned",
        hint="The package index served another file: do not use it; check the index that pip is configured with",
    )


def missing_pins(pins: Sequence[Pin], folder: Path) -> tuple[Pin, ...]:
    """The pins whose file is not in `folder` yet; a file with the wrong contents is deleted and counts as missing."""
    missing = []
    for pin in pins:
        path = folder / pin.filename
        if path.is_file() and file_sha256(path) == pin.sha256:
            continue
        path.unlink(missing_ok=True)
        missing.append(pin)
    return tuple(missing)


def fetch(
    pins: Sequence[Pin],
    *,
    python: Path,
    places: Places,
    progress: Progress,
    label: str,
    options: Sequence[str] = (),
) -> None:
    """Bring every pinned file into the downloads folder and check it.

    Args:
        pins: what to fetch; files that are there already are kept.
        python: an interpreter with pip.
        places: the cache.
        progress: receives the heartbeats.
        label: what progress lines call this.
        options: further options of `pip download`.

    Raises:
        ProvisionError: no network, no such version, or another file than the pinned one.
    """
    places.downloads.mkdir(parents=True, exist_ok=True)
    wanted = missing_pins(pins, places.downloads)
    if not wanted:
        return
    progress.stage(f"{label}: downloading {len(wanted)} of {len(pins)} files")
    slug = re.sub(r"[^a-z0-9]+", "-", label.lower())
    log = places.logs / f"{slug}-download.log"
    request = places.downloads / "wanted.txt"
    for start in range(0, len(wanted), BATCH):
        request.write_text("".join(pin.requirement() + "\n" for pin in wanted[start : start + BATCH]))
        run(
            [
                *(python, "-m", "pip", "download", "--no-input", "--disable-pip-version-check"),
                *("--progress-bar", "off", "--no-deps", "--require-hashes", "-d", places.downloads, "-r", request),
                *options,
            ],
            label=f"{label}: download {start + 1} to {min(start + BATCH, len(wanted))} of {len(wanted)}",
            log=log,
            progress=progress,
        )
    request.unlink()
    for pin in wanted:
        path = places.downloads / pin.filename
        if not path.is_file():
            raise ProvisionError(
                f"pip downloaded {pin.name} {pin.version}, but not as {pin.filename}",
                hint="The lock holds files for CPython 3.11 on x86-64 Linux; run it with that Python",
                log=log,
            )
        found = file_sha256(path)
        if found != pin.sha256:
            path.unlink()
            raise mismatch(path, pin, found=found)


def fetch_torch(pin: Pin, *, python: Path, places: Places, progress: Progress) -> None:
    """Bring the CPU build of torch, from the configured index or else from the public index of CPU builds.

    Raises:
        ProvisionError: neither index could deliver the pinned file.
    """
    try:
        fetch((pin,), python=python, places=places, progress=progress, label="torch")
    except ProvisionError as error:
        output = "" if error.log is None else error.log.read_text(errors="replace")
        if NO_NETWORK in output or NO_SUCH_VERSION not in output:
            raise
        progress.stage(f"torch: the configured index has no {pin.version}; trying the public index of CPU builds")
        fetch(
            (pin,),
            python=python,
            places=places,
            progress=progress,
            label="torch, public index",
            options=("--extra-index-url", CPU_TORCH_INDEX),
        )


def install_offline(
    requirements: Path,
    *,
    python: Path,
    places: Places,
    progress: Progress,
    label: str,
    log: Path,
    folder: Path | None = None,
) -> None:
    """Install fetched files, without a network and without resolving anything.

    Args:
        requirements: the lock.
        python: an interpreter with pip.
        places: the cache.
        progress: receives the heartbeats.
        label: what progress lines call this.
        log: for pip's output.
        folder: of packages, to go on a path; None for the environment of `python`. It gets no byte code, which
            would differ from run to run.

    Raises:
        ProvisionError: pip failed.
    """
    run(
        [
            *(python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
            *("--no-index", "--find-links", places.downloads, "--no-deps", "--require-hashes", "-r", requirements),
            *(("--target", folder, "--no-compile") if folder is not None else ()),
        ],
        label=label,
        log=log,
        progress=progress,
    )


def discard(pins: Sequence[Pin], *, places: Places) -> None:
    """Delete fetched files that a finished install no longer needs."""
    for pin in pins:
        (places.downloads / pin.filename).unlink(missing_ok=True)
