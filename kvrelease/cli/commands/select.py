"""`kvrelease prompts select`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvrelease.cli import console, options
from kvrelease.cli.output import Format, choose_format, deliver, require_writable
from kvrelease.errors import ExitCode, InputError, TrafficLogError, UsageError
from kvrelease.workload.logs.log_format import LogFormat

if TYPE_CHECKING:
    from kvrelease.progress import Progress, ProgressEvent
    from kvrelease.selection.select import Selected
    from kvrelease.workload.logged import LoggedRequest, PassedOver

DEFAULT_SELECTED_REQUESTS = 200
_COPY = "save it to a file first"


def select(
    context: typer.Context,
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="Traffic log, plain or gzip; it is read two or three times.")
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="SET.jsonl", help="Write the chosen prompts there, as a prompt set."),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option("--requests", metavar="N", min=1, help="At most so many prompts; 200 when no limit is given."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", metavar="N", min=1, help="At most so many prompt tokens (--tokenizer, or a trace)."),
    ] = None,
    characters: Annotated[
        int | None,
        typer.Option("--characters", metavar="N", min=1, help="At most so many characters (without --tokenizer)."),
    ] = None,
    blocks: Annotated[
        int | None, typer.Option("--blocks", metavar="N", min=1, help="At most so many different blocks.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="MODEL",
            help="Count tokens, with the tokenizer and chat template of a model directory, or with one tokenizer.json.",
        ),
    ] = None,
    block_tokens: Annotated[
        int | None,
        typer.Option(
            "--block-tokens",
            metavar="N",
            min=1,
            max=65_536,
            help="The engine's block size, with --tokenizer; default 16.",
        ),
    ] = None,
    block_characters: Annotated[
        int | None,
        typer.Option(
            "--block-characters",
            metavar="N",
            min=1,
            max=65_536,
            help="Characters of a block of text; default 64, about 16 tokens of English.",
        ),
    ] = None,
    holdout: Annotated[
        float,
        typer.Option(
            "--holdout",
            metavar="SHARE",
            min=0.0,
            max=0.9,
            callback=options.finite,
            help="Part of the log to judge the choice on: the last by time, else drawn with --seed.",
        ),
    ] = 0.2,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of what is held out where no times are told.")] = 0,
    log_format: Annotated[
        LogFormat | None,
        typer.Option("--log-format", help="Format of the log; default: what its first record looks like."),
    ] = None,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave damaged records out, and count them, instead of stopping.")
    ] = False,
    drop_model: Annotated[
        list[str] | None,
        typer.Option(
            "--drop-model",
            metavar="NAME",
            help="Requests that ask for this model go to whatever is served: the old release's own name; repeat for "
            "several. Other names (adapters) stay.",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write the report there instead of to stdout.")
    ] = None,
    form: options.FormatOption = None,
) -> ExitCode:
    """Choose a representative prompt set from a traffic log, under a budget, and say what it will hit.

    The prompts whose beginnings most traffic comes back to are chosen; the expected hit rate is measured on a part of
    the log that was not chosen from. The set holds real requests, word for word.

    Example: kvrelease prompts select traffic.jsonl --requests 200 -o prompts.jsonl
    """
    from kvrelease.artifacts import write_atomically
    from kvrelease.printable import number_of
    from kvrelease.report.selection import selection_document
    from kvrelease.selection.set_file import set_lines
    from kvrelease.workload.entry import YAML_SUFFIXES

    is_page = choose_format(form, report) is not Format.JSON and report is None
    for option, path in (("--output", output), ("--report", report)):
        if path is not None and path.exists() and log.exists() and path.samefile(log):
            raise UsageError(f"{option} {path}: it is the log itself, and would be replaced", hint="name another file")
    if log_format is None and log.suffix.lower() in YAML_SUFFIXES:
        raise InputError(
            f"selecting from the log {log}: it is YAML, as prompt sets are, and no log",
            hint=f"kvrelease prewarm --prompts {log} takes a set as it is; kvrelease prompts check {log} looks at it",
        )
    if output is not None:
        require_writable(output, option="--output")
        if output.suffix.lower() not in (".jsonl", ".ndjson"):
            raise UsageError(
                f"--output {output}: a prompt set that is chosen is JSONL",
                hint="name it .jsonl; the report goes to stdout (--format json), or to --report FILE",
            )
    if tokenizer is None and block_tokens is not None and options.is_typed(context, "block_tokens"):
        raise UsageError("--block-tokens counts tokens", hint="name the model with --tokenizer")
    if tokenizer is not None and block_characters is not None:
        raise UsageError("--block-characters counts characters, --tokenizer tokens", hint="give --block-tokens")
    found = _select(
        log,
        limits=(requests, tokens, characters, blocks),
        holdout=holdout,
        seed=seed,
        tokenizer=tokenizer,
        block=block_characters if tokenizer is None else block_tokens,
        log_format=log_format,
        skips_damaged=skip_damaged,
        dropped_models=frozenset(drop_model or ()),
        wants_set=output is not None,
    )
    code = ExitCode.OK if found.report.prompts else ExitCode.INCONCLUSIVE
    if output is not None and found.requests:
        write_atomically(output, set_lines(found.report.prompts, found.requests))
        console.say_warning(
            f"{output} holds {number_of(len(found.requests), 'real request')}, word for word, with whatever users "
            f"wrote: look for secrets and personal data with `kvrelease prompts check {output}` before you share it"
        )
    for warning in () if is_page else found.report.warnings:  # the page has them
        console.say_warning(warning)
    return deliver(found.report, lambda: selection_document(found.report), wanted=form, output=report, code=code)


def _select(
    log: Path,
    *,
    limits: tuple[int | None, int | None, int | None, int | None],
    holdout: float,
    seed: int,
    tokenizer: Path | None,
    block: int | None,
    log_format: LogFormat | None,
    skips_damaged: bool,
    dropped_models: frozenset[str],
    wants_set: bool,
) -> "Selected":
    from kvrelease.selection.cutting import Unit
    from kvrelease.selection.encoding import encode_with
    from kvrelease.selection.select import cutter_of, select
    from kvrelease.workload.budget import Budget
    from kvrelease.workload.release_tokenizer import ReleaseTokenizer

    requests, tokens, characters, blocks = limits
    if all(limit is None for limit in limits):
        requests = DEFAULT_SELECTED_REQUESTS
    if log.exists() and not log.is_file() and not log.is_dir():
        raise UsageError(f"selecting from the log {log}: it is no regular file, and is read several times", hint=_COPY)
    encode = None if tokenizer is None else encode_with(ReleaseTokenizer(tokenizer, name=str(tokenizer)))
    with console.progress() as progress:
        reading = _LogReading(
            log,
            log_format=log_format,
            skips_damaged=skips_damaged,
            dropped_models=dropped_models,
            progress=progress,
        )
        cutter = cutter_of(reading.open, source=str(log), block=block, encode=encode)
        if cutter.is_trace and (wants_set or characters is not None):
            option = "--output" if wants_set else "--characters"
            raise UsageError(
                f"{option}: the log {log} is a trace of block hashes without text: it gives figures, and no prompts",
                hint=f"leave {option} out, or choose from a log with prompts",
            )
        if cutter.unit is Unit.CHARACTERS and tokens is not None:
            raise UsageError(
                f"--tokens: the log {log} is text, and no tokenizer was used",
                hint="name the model with --tokenizer, or give --characters; English has about four a token",
            )
        if cutter.unit is Unit.TOKENS and characters is not None:
            raise UsageError("--characters: with --tokenizer lengths are tokens", hint="give --tokens")
        return select(
            reading.open,
            source=str(log),
            budget=Budget(
                requests=requests, length=tokens if cutter.unit is Unit.TOKENS else characters, blocks=blocks
            ),
            held_out_share=holdout,
            seed=seed,
            cutter=cutter,
            damaged=lambda: reading.damaged,
            passed_over=lambda: tuple(reading.passed_over.most_common()),
        )


class _LogReading:
    """A log that is read several times, each pass with its progress and its count of damaged records."""

    def __init__(
        self,
        path: Path,
        *,
        log_format: LogFormat | None,
        skips_damaged: bool,
        dropped_models: frozenset[str],
        progress: "Progress",
    ) -> None:
        self.damaged = 0
        self.passed_over: Counter[str] = Counter()
        self._path = path
        self._format = log_format
        self._skips_damaged = skips_damaged
        self._dropped_models = dropped_models
        self._progress = progress

    def open(self, stage: str) -> "Iterator[LoggedRequest]":
        from msgspec.structs import replace

        from kvrelease.selection.served_names import without_served_name
        from kvrelease.workload.logs.reading import read_log

        def tell(event: "ProgressEvent") -> None:
            self._progress(replace(event, stage=stage))

        def skip(_error: InputError) -> None:
            self.damaged += 1

        def refuse(error: InputError) -> None:
            raise TrafficLogError(
                error.message,
                hint=f"{error.hint or 'mend the record'}; or leave such records out, counted: --skip-damaged",
            ) from error

        def pass_over(reason: "PassedOver") -> None:
            self.passed_over[reason.value] += 1

        self.damaged = 0
        self.passed_over.clear()
        requests = read_log(
            self._path,
            source=str(self._path),
            format=self._format,
            on_bad_line=skip if self._skips_damaged else refuse,
            on_passed_over=pass_over,
            progress=tell,
        )
        if not self._dropped_models:
            return requests
        return (without_served_name(request, names=self._dropped_models) for request in requests)
