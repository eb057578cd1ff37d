"""Where second opinions on a release come from, and opening those that are engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from kvrelease.engines.base import EngineClient
from kvrelease.engines.local import LocalEngine, open_local
from kvrelease.errors import KvreleaseError, UsageError
from kvrelease.fleet.access import Access
from kvrelease.fleet.listed import ListedReplica, listed_replica
from kvrelease.fleet.opening import model_directory, open_fleet
from kvrelease.verify.record import Record

# A release up to here is also run in process, on a handful of prompts, for `identity` and `power`; larger ones only
# when --reference local asks for it.
IN_PROCESS_LIMIT_BYTES = 4 * 1024**3


class Twins(msgspec.Struct, frozen=True, kw_only=True):
    """Where a second opinion on the release comes from; every one may be missing.

    Attributes:
        golden: record of the new release from a clean, trusted process.
        baseline: record of the old release.
        reference: a clean second engine for reference legs.
        release: the new release, in process.
        old_release: the old release, in process.
    """

    golden: Record | None = None
    baseline: Record | None = None
    reference: EngineClient | None = None
    release: LocalEngine | None = None
    old_release: LocalEngine | None = None

    @property
    def are_recorded_alike(self) -> bool:
        """Whether golden record and baseline are of one kind and version of engine: kernels move both alike."""
        if self.golden is None or self.baseline is None:
            return False
        new, old = self.golden.engine, self.baseline.engine
        return new.version is not None and (new.kind, new.version) == (old.kind, old.version)


@asynccontextmanager
async def open_twins(
    access: Access,
    *,
    release: str | None,
    old_release: str | None,
    reference: str | None,
    golden: Record | None,
    baseline: Record | None,
    warn: Callable[[str], None],
) -> AsyncIterator[Twins]:
    """The second opinions, open; closed on the way out.

    Args:
        access: how the engines under test are reached.
        release: what `--release` names; run in process where it is a directory that is not too large.
        old_release: likewise, the release before it.
        reference: URL of a second engine, `local`, or None.
        golden: passed on.
        baseline: passed on.
        warn: told what the reader has to know and does not stop the run.

    Raises:
        MissingExtra: `--reference local` without the `local` extra.
        UsageError: `--reference local` without a release directory, or the engine under test as its own reference.
    """
    is_forced = reference == "local"
    if reference is not None and not is_forced:
        _require_other(reference, access.replicas)
    if is_forced and model_directory(release) is None:
        raise UsageError("--reference local runs --release in process, which must be a model directory")
    async with AsyncExitStack() as stack:

        async def in_process(what: str | None) -> LocalEngine | None:
            directory = model_directory(what)
            if directory is None or (not is_forced and _weight_bytes(directory) > IN_PROCESS_LIMIT_BYTES):
                return None
            try:
                engine = await open_local(directory)
            except KvreleaseError as error:
                if is_forced:
                    raise
                warn(f"{error.message}; identity and power stay unproven ({error.hint or 'nothing else is lost'})")
                return None
            stack.push_async_callback(engine.aclose)
            return engine

        new = await in_process(release)
        old = await in_process(old_release) if new is not None else None
        second: EngineClient | None = new if is_forced else None
        if reference is not None and not is_forced:
            elsewhere = msgspec.structs.replace(access, replicas=(listed_replica(reference),), kind=None)
            fleet = await stack.enter_async_context(open_fleet(elsewhere, release=None, warn=warn))
            second = fleet.require_one(option="--reference")
        yield Twins(golden=golden, baseline=baseline, reference=second, release=new, old_release=old)


def _weight_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def _require_other(reference: str, replicas: Sequence[ListedReplica]) -> None:
    base = listed_replica(reference).address.url
    if base in {replica.address.url for replica in replicas}:
        raise UsageError(
            f"--reference {base} is the replica under test: its cache would vouch for itself",
            hint="name a second, clean server of the same release, or --reference local",
        )
