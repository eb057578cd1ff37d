"""Where the results of each run of the gate go: observations, metrics, a line of history, the report."""

from __future__ import annotations

import datetime
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvrelease import artifacts
from kvrelease.cli import console
from kvrelease.cli.earlier import put_aside
from kvrelease.cli.output import Format, deliver, require_writable, save
from kvrelease.cli.watch import Lap, Watched
from kvrelease.errors import ExitCode, InputError, UsageError, worst

if TYPE_CHECKING:
    from kvrelease.binding.deployment import Deployment
    from kvrelease.verify.evidence import Evidence
    from kvrelease.verify.judge import VerifyReport


def _of_this_run() -> str:
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


class RunResults(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say of results.

    Attributes:
        form: `--format`.
        output: `--output`.
        observations: `--observations`.
        metrics: `--metrics-file`.
        is_watching: there may be several runs.
        name: of files that nobody named: each run has its own, one that was killed too.
    """

    form: Format | None
    output: Path | None
    observations: Path | None
    metrics: Path | None
    is_watching: bool
    name: str = msgspec.field(default_factory=_of_this_run)

    def require_places(self) -> None:
        """Checks before the work what would lose its result after it.

        Raises:
            UsageError: a file cannot be written, or the collector would pass the metrics over.
        """
        if self.observations is not None:
            require_writable(self.observations, option="--observations")
        if self.metrics is None:
            return
        if self.metrics.suffix != ".prom":
            raise UsageError(
                f"--metrics-file {self.metrics}: the textfile collector reads files that end in .prom, and no others",
                hint=f"for example: --metrics-file {self.metrics.name}.prom",
            )
        require_writable(self.metrics, option="--metrics-file")

    def put_earlier_aside(self) -> None:
        """Takes the report of an earlier run away from where this run's will be.

        Raises:
            InputError: it cannot be renamed.
        """
        from kvrelease.verify.judge import VerifyReport  # noqa: PLC0415 - late, as in every command

        put_aside(self.output, kinds=(artifacts.kind_of(VerifyReport),))

    def keep_before_flush(self, evidence: Evidence) -> None:
        """Saves what was observed before a cache is emptied: no run can observe it again.

        Raises:
            InputError: it cannot be saved.
        """
        path = self.observations or self._before_flush(evidence)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"saving what was observed, before a cache is emptied, in {path}: {error.strerror or error}; nothing "
                "was emptied",
                hint="name a file with --observations",
            ) from error
        artifacts.write(path, evidence)
        console.say_note(
            f"--allow-flush: a cache is about to be emptied; what was observed so far is in {path} (kvrelease verify "
            f"--from {path})"
        )

    def save_observations(self, evidence: Evidence, *, run: int) -> ExitCode:
        """Saves what one run observed, where that is wanted; while watching, in a file of its own.

        Where a cache was emptied it is kept though nobody asked: the report does not hold it, and no run can observe
        again what was cached before.
        """
        path = self.observations
        if path is None:
            kept = self._before_flush(evidence)
            if not kept.exists():
                return ExitCode.OK
            code = save(evidence, kept)
            if code is ExitCode.OK:
                console.say_note(f"what this run observed, before the flush and after it, is in {kept} (--from {kept})")
            return code
        return save(evidence, path.with_name(f"{path.stem}-{run:04d}{path.suffix}") if self.is_watching else path)

    def after_run(self, found: Lap, *, deployment: Deployment, run: int) -> Lap:
        """The run, with everything written that is written after each; what could not be is told, and makes its code.

        Args:
            found: the run. Of one that was cut short nothing is written here.
            deployment: that was verified.
            run: counted from 1.
        """
        if found.was_interrupted:
            return found
        if self.metrics is not None:
            found = _measured(found, self.metrics, deployment=deployment, run=run)
        if self.is_watching:
            _tell(found, run=run)
            if self.output is not None and found.report is not None:
                found = msgspec.structs.replace(found, code=self.deliver(found.report, code=found.code))
            elif self.output is not None:
                self.put_earlier_aside()  # of the run before: nobody could be asked in this one
        return found

    def at_the_end(self, ended: Watched) -> ExitCode:
        """Writes the last report, where it is not written already."""
        is_written = self.is_watching and self.output is not None and not ended.is_cut_short
        return ended.code if ended.report is None or is_written else self.deliver(ended.report, code=ended.code)

    def deliver(self, report: VerifyReport, *, code: ExitCode) -> ExitCode:
        """Writes a report, and gives back the exit code, or the worse one of a report that could not be written."""
        from kvrelease.report.verify import verify_document  # noqa: PLC0415 - late, as in every command

        return deliver(report, lambda: verify_document(report), wanted=self.form, output=self.output, code=code)

    def _before_flush(self, evidence: Evidence) -> Path:
        """Where observations are kept that nobody asked to be saved: a file of this run's own."""
        from kvrelease.ledger.store import state_directory  # noqa: PLC0415 - late, as in every command

        return state_directory() / f"{evidence.namespace}-flushed-{self.name}.json"


def _measured(found: Lap, path: Path, *, deployment: Deployment, run: int) -> Lap:
    from kvrelease.report.prometheus import write_metrics  # noqa: PLC0415 - late, as above

    try:
        write_metrics(
            path,
            found.report,
            release=deployment.release,
            namespace=deployment.namespace,
            code=found.code,
            ended_at=time.time(),
            run=run,
        )
    except InputError as error:
        console.say_error(error)
        return msgspec.structs.replace(found, code=worst((found.code, error.exit_code)))
    return found


def _tell(found: Lap, *, run: int) -> None:
    """A line of history on the terminal."""
    from kvrelease.report.verify import history_line  # noqa: PLC0415 - late, as above

    if found.report is None:
        console.say(f"run {run}: no engine could be asked (exit code {found.code.value})")
    else:
        console.say(history_line(found.report, run=run))
