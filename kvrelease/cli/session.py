"""What a command's options stand for: access to engines, an open ledger, a release, a deployment, a prompt set."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from kvrelease.cli.console import say_warning
from kvrelease.config import Config, load_config, split_header, working_directory
from kvrelease.engines.base import EngineKind
from kvrelease.errors import UsageError
from kvrelease.progress import Progress, silent

if TYPE_CHECKING:
    from kvrelease.artifacts import ReleaseRef
    from kvrelease.binding.deployment import Deployment
    from kvrelease.fleet.access import Access
    from kvrelease.fleet.opening import Fleet
    from kvrelease.ledger.store import Ledger
    from kvrelease.release.fingerprint import Fingerprint
    from kvrelease.release.memo import Memo
    from kvrelease.release.source import Source
    from kvrelease.workload.prompt_set import PromptSet


def access_of(
    *,
    config: Config,
    urls: Sequence[str] | None,
    kind: EngineKind | None,
    model: str | None,
    timeout_s: float,
    key_variable: str | None,
    headers: Sequence[str] | None,
    replicas: Path | None = None,
    concurrency: int | None = None,
    data_parallel: str = "off",
    wait_s: float | None = None,
) -> Access:
    """How engines are reached, by options and configuration; checked before a release is hashed for minutes.

    Raises:
        UsageError: no replica is named, or not by a URL; a header is not K=V; no such key variable.
        InputError: the file of replicas cannot be read.
    """
    from kvrelease.fleet.access import access_of as reached  # noqa: PLC0415 - late: httpx
    from kvrelease.fleet.listed import read_replicas  # noqa: PLC0415
    from kvrelease.fleet.ranks import parse_ranks  # noqa: PLC0415

    return reached(
        production=config.production,
        urls=urls or (),
        listed=() if replicas is None else read_replicas(replicas),
        kind=kind,
        model=model,
        timeout_s=timeout_s,
        key_variable=key_variable,
        headers=parse_headers(headers or ()),
        concurrency=concurrency,
        ranks=parse_ranks(data_parallel),
        wait_s=wait_s,
        warn=say_warning,
    )


def parse_headers(texts: Sequence[str]) -> dict[str, str]:
    """`K=V` texts as headers.

    Raises:
        UsageError: no `=` in one; its text is not repeated, it may be a secret.
    """
    return dict(split_header(text, where=f"--header number {number}") for number, text in enumerate(texts, start=1))


def open_ledger(url: str | None, *, no_ledger: bool) -> Ledger:
    """The ledger that options name, else the user's own, else one that forgets."""
    from kvrelease.ledger.store import IN_MEMORY, Ledger, default_ledger_url  # noqa: PLC0415 - late

    return Ledger(IN_MEMORY if no_ledger else url or default_ledger_url())


def look_at_ledger(url: str | None, *, no_ledger: bool) -> Ledger:
    """As `open_ledger`, for a command that leaves nothing behind: where no ledger is yet, one that forgets."""
    from kvrelease.ledger.store import default_ledger_url  # noqa: PLC0415 - late

    place = (url or default_ledger_url()).removeprefix("sqlite:///")
    is_missing = "://" not in place and not Path(place).exists()
    return open_ledger(url, no_ledger=no_ledger or is_missing)


def open_memo(*, no_memo: bool) -> Memo | None:
    """The user's memo of what was hashed; None where it is not wanted, or the user has no home to keep it in."""
    from kvrelease.release.memo import Memo, default_directory  # noqa: PLC0415 - late

    directory = None if no_memo else default_directory()
    return None if directory is None else Memo(directory)


def read_release(
    what: str | None,
    *,
    option: str,
    jobs: int | None,
    no_memo: bool,
    progress: Progress,
) -> Fingerprint:
    """The fingerprint that an option names.

    Args:
        what: a release, or a saved fingerprint.
        option: that named it.
        jobs: threads to hash with; None for as many as are worthwhile here.
        no_memo: to hash everything.
        progress: called while hashing.

    Raises:
        UsageError: the option was not given.
        InputError: it cannot be read.
    """
    from kvrelease.release.fingerprint import require_current  # noqa: PLC0415 - late
    from kvrelease.release.loading import load_release  # noqa: PLC0415 - late
    from kvrelease.release.saved import require_files_beside  # noqa: PLC0415

    if what is None:
        raise UsageError(
            f"no release is named: {option} says which weights are to be there",
            hint=f"add {option} MODEL_DIRECTORY (or a saved fingerprint)",
        )
    found = load_release(what, jobs=jobs, memo=open_memo(no_memo=no_memo), progress=progress)
    require_current(found)
    require_files_beside(found, what=what)
    return found


def read_old_release(
    what: str | None, *, new: Fingerprint, jobs: int | None, no_memo: bool, progress: Progress
) -> ReleaseRef | None:
    """The release before that `--old-release` names; None where it is not named, or lies beyond this machine.

    Raises:
        UsageError: it is the release itself.
        InputError: it cannot be read.
    """
    from kvrelease.release.address import is_elsewhere  # noqa: PLC0415 - late
    from kvrelease.release.loading import load_release  # noqa: PLC0415
    from kvrelease.verify.old_release import require_another  # noqa: PLC0415

    if what is None or is_elsewhere(what):  # a download, and nothing of it would run in process
        return None
    old = load_release(what, jobs=jobs, memo=open_memo(no_memo=no_memo), progress=progress)
    require_another(old, new)
    return old.release


def adapter_sources(texts: Sequence[str]) -> dict[str, Source]:
    """`[NAME=]DIR` texts as name → open source of an adapter, in their order.

    Raises:
        UsageError: an empty name or directory, or a name twice.
        NotFound: nothing is there.
    """
    from kvrelease.release.address import open_source  # noqa: PLC0415 - late

    found: dict[str, Source] = {}
    for text in texts:
        name, separator, what = text.partition("=")
        # A path or an address may hold an "=" of its own; a name holds no "/", and does not lie on disk.
        is_named = bool(separator) and "/" not in name and not Path(text).exists()
        if is_named and (not name or not what):
            raise UsageError(
                f"--adapter {text}: not of the form NAME=DIR", hint="for example: --adapter support=./lora"
            )
        source = open_source(what if is_named else text)
        name = name if is_named else source.origin.name
        if name in found:
            raise UsageError(
                f"--adapter names {name!r} twice: one name is served by one adapter", hint="give each its own NAME=DIR"
            )
        found[name] = source
    return found


def fleet_of(access: Access, *, release: str | None, progress: Progress = silent) -> AbstractAsyncContextManager[Fleet]:
    """The replicas, open; closed on the way out."""
    from kvrelease.fleet.opening import open_fleet  # noqa: PLC0415 - late: httpx

    return open_fleet(access, release=release, warn=say_warning, progress=progress)


def absolute_directory(release: str | None) -> str | None:
    """The whole path of a release that is a directory here; None for anything else."""
    from kvrelease.fleet.opening import model_directory  # noqa: PLC0415 - late: httpx

    directory = model_directory(release)
    return None if directory is None else str(directory.absolute())


def read_prompts(prompts: str | None) -> PromptSet:
    """The prompt set that `--prompts` names.

    Raises:
        UsageError: none is named.
        InputError: it cannot be read.
    """
    from kvrelease.workload.loading import load_prompt_set  # noqa: PLC0415 - late

    if prompts is None:
        raise UsageError("no prompt set is named", hint="add --prompts prompts/support.yaml, or your own file")
    return load_prompt_set(prompts, directory=working_directory())


def deployment_of(
    fingerprint: Fingerprint,
    *,
    config: Config,
    ledger: Ledger,
    prompt_set: PromptSet,
    namespace: str | None,
    command: str,
) -> Deployment:
    """What is asked of every replica.

    Raises:
        UsageError: the key space is none.
        InputError: the release has no kv name.
    """
    from kvrelease.binding import deployment  # noqa: PLC0415 - late

    return deployment.deployment_of(
        fingerprint,
        config=config,
        ledger=ledger,
        prompt_set=prompt_set,
        namespace=namespace,
        command=command,
        warn=say_warning,
    )


def configuration() -> Config:
    """The configuration of the working directory."""
    return load_config(working_directory())
