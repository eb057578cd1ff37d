"""`kvrelease prompts check`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvrelease.cli import console, options
from kvrelease.cli.interrupt import run_async
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import choose_format, deliver
from kvrelease.config import api_key, load_config, working_directory
from kvrelease.errors import ExitCode, UsageError
from kvrelease.workload.complaints import Complaint
from kvrelease.workload.logs.log_format import LogFormat

if TYPE_CHECKING:
    from kvrelease.progress import Progress
    from kvrelease.workload.check import PromptsReport
    from kvrelease.workload.log_report import LogReport
    from kvrelease.workload.prompt_set import PromptSet
    from kvrelease.workload.release_tokenizer import ReleaseTokenizer
    from kvrelease.workload.tokens import Tokens

_COUNTING = "Counting tokens"


def check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Prompt set (YAML, JSONL; prompts/support.yaml is shipped) or traffic log (docs/logs.md).",
        ),
    ],
    *,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="MODEL",
            help="Count with the tokenizer and chat template of a model directory, or with one tokenizer.json.",
            rich_help_panel=_COUNTING,
        ),
    ] = None,
    engine_url: Annotated[
        str | None,
        typer.Option(
            "--engine-url",
            metavar="URL",
            help="Count with a server's own tokenizer; nothing is generated. For prompt sets.",
            rich_help_panel=_COUNTING,
        ),
    ] = None,
    api_key_env: options.ApiKeyEnvOption = None,
    block_tokens: Annotated[
        int,
        typer.Option(
            "--block-tokens",
            metavar="N",
            min=1,
            help="Granularity of a hit: the engine's block size.",
            rich_help_panel=_COUNTING,
        ),
    ] = 16,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            "--log-format", help="Read it as a log of this format. Default: what the first record looks like."
        ),
    ] = None,
    fail_on: Annotated[
        list[Complaint] | None,
        typer.Option(
            "--fail-on",
            help="Exit 1 when it has such, 3 when that cannot be known; repeat for several. secrets: credentials; "
            "personal: addresses, phone, account and card numbers; volatile: changing text near the front; "
            "uncacheable: prompts shorter than a block.",
        ),
    ] = None,
    form: options.FormatOption = None,
    output: options.OutputOption = None,
) -> ExitCode:
    """Validate a prompt set or a traffic log, and say what it holds.

    Shared prefixes, traffic weights, tokens, key spaces, what can never be cached, likely secrets and personal data
    (counted, never shown), doubtful prompts. Tokens are counted or not known, never estimated.

    Example: kvrelease prompts check prompts/support.yaml --tokenizer ./models/v1.3 --fail-on secrets
    """
    from kvrelease.report.log import log_document
    from kvrelease.report.prompts import prompts_document
    from kvrelease.workload.loading import find_prompt_set, is_checked_as_log
    from kvrelease.workload.release_tokenizer import ReleaseTokenizer

    choose_format(form, output)
    if tokenizer is not None and engine_url is not None:
        raise UsageError("--tokenizer and --engine-url both count tokens", hint="name one of them")
    directory = working_directory()
    by = None if tokenizer is None else ReleaseTokenizer(directory / tokenizer, name=str(tokenizer))
    with console.progress() as progress:
        if log_format is None and not is_checked_as_log(find_prompt_set(file, directory=directory), file):
            report = _check_set(
                file,
                by=by,
                engine_url=engine_url,
                key_variable=api_key_env,
                block_tokens=block_tokens,
                progress=progress,
            )
            return deliver(
                report, lambda: prompts_document(report), wanted=form, output=output, code=_code(report, fail_on)
            )
        if engine_url is not None:
            raise UsageError(
                "--engine-url counts prompt sets, and this is a log", hint="count it with --tokenizer MODEL"
            )
        log = _check_log(file, log_format=log_format, by=by, block_tokens=block_tokens, progress=progress)
    return deliver(log, lambda: log_document(log), wanted=form, output=output, code=_code(log, fail_on))


def _check_set(
    file: str,
    *,
    by: "ReleaseTokenizer | None",
    engine_url: str | None,
    key_variable: str | None,
    block_tokens: int,
    progress: "Progress",
) -> "PromptsReport":
    from kvrelease.workload.check import check_prompt_set
    from kvrelease.workload.loading import load_prompt_set
    from kvrelease.workload.tokens import release_tokens

    prompt_set = load_prompt_set(file, directory=working_directory())
    tokens = None if by is None else release_tokens(prompt_set, by)
    if engine_url is not None:
        tokens = run_async(_ask(engine_url, prompt_set=prompt_set, key_variable=key_variable, progress=progress))
    return check_prompt_set(prompt_set, tokens=tokens, block_tokens=block_tokens)


async def _ask(url: str, *, prompt_set: "PromptSet", key_variable: str | None, progress: "Progress") -> "Tokens":
    from contextlib import aclosing

    from kvrelease.binding.counting import engine_tokens
    from kvrelease.engines.detect import open_engine

    production = load_config(working_directory()).production
    engine = await open_engine(url, model=production.model, headers=production.headers, api_key=api_key(key_variable))
    async with aclosing(engine):
        return await engine_tokens(engine, prompt_set=prompt_set, production=production, progress=progress)


def _check_log(
    file: str,
    *,
    log_format: LogFormat | None,
    by: "ReleaseTokenizer | None",
    block_tokens: int,
    progress: "Progress",
) -> "LogReport":
    from kvrelease.workload.log_check import LogCheck
    from kvrelease.workload.logs.detection import shape_of
    from kvrelease.workload.logs.reading import read_log

    path = working_directory() / file
    form = shape_of(path, source=file, form=log_format).form
    adding = LogCheck(tokenizer=by, block_tokens=block_tokens)
    reading = read_log(
        path,
        source=file,
        format=form,
        on_bad_line=adding.bad_line,
        on_passed_over=adding.passed_over,
        progress=progress,
    )
    for request in reading:
        adding.add(request)
    return adding.report(source=file, form=form)


def _code(report: "PromptsReport | LogReport", fail_on: list[Complaint] | None) -> ExitCode:
    from kvrelease.artifacts import Verdict
    from kvrelease.errors import worst
    from kvrelease.workload.complaints import complaint_verdict

    codes = []
    for complaint in fail_on or []:
        verdict, reason = complaint_verdict(report, complaint)
        codes.append(exit_code(verdict=verdict))
        if verdict is not Verdict.PASS:
            console.say_warning(f"--fail-on {complaint}: {reason}")
    return worst(codes)
