"""`kvrelease namespace`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from kvrelease.binding.target import DEFAULT_STORE_ROOT, BindingTarget, asked_as
from kvrelease.cli import console, options, session
from kvrelease.cli.earlier import put_aside
from kvrelease.cli.interrupt import run_async
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import choose_format, deliver, deliver_text, require_writable
from kvrelease.config import CONFIG_NAME, DEFAULT_TIMEOUT_S, Config
from kvrelease.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from kvrelease.binding.bound import BoundCheck
    from kvrelease.binding.runtime import Runtime
    from kvrelease.binding.settings.binding import Wanted
    from kvrelease.engines.base import EngineIdentity
    from kvrelease.fleet.access import Access
    from kvrelease.ledger.store import Ledger

_BINDING = "Binding"
_CHECK = "Check"


def namespace(
    context: typer.Context,
    release: Annotated[str, typer.Argument(metavar="RELEASE", help="Model directory, or a saved fingerprint.")],
    *,
    engine: Annotated[
        BindingTarget,
        typer.Option(
            "--engine",
            envvar="KVRELEASE_ENGINE",
            help="Engine, or layer below one, whose caches are to be bound.",
        ),
    ],
    new_epoch: Annotated[
        bool, typer.Option("--new-epoch", help="Leave the current name, which was poisoned, and make the next.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            envvar="KVRELEASE_MODEL",
            metavar="NAME",
            help="Name that users ask for. vLLM: writes out --served-model-name, with the namespace as a second name.",
            rich_help_panel=_BINDING,
        ),
    ] = None,
    tenant_salt: Annotated[
        str | None,
        typer.Option(
            "--tenant-salt",
            envvar="KVRELEASE_TENANT_SALT",
            metavar="TEXT",
            help="A tenant's own salt, to be combined with the namespace; it is never shown. Default: production.salt, "
            "where that is a text.",
            rich_help_panel=_BINDING,
        ),
    ] = None,
    store_root: Annotated[
        str,
        typer.Option(
            "--store-root",
            envvar="KVRELEASE_STORE_ROOT",
            metavar="DIR",
            help="Below it each namespace has a directory of its own.",
            rich_help_panel=_BINDING,
        ),
    ] = DEFAULT_STORE_ROOT,
    shell: Annotated[
        bool,
        typer.Option(
            "--shell",
            help='Print lines for eval: they set the environment and append the flags to "$@".',
            rich_help_panel=_BINDING,
        ),
    ] = False,
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes",
            help="Print a strategic merge patch for kubectl patch --patch-file.",
            rich_help_panel=_BINDING,
        ),
    ] = False,
    container: Annotated[
        str | None,
        typer.Option(
            "--container",
            metavar="NAME",
            help="With --kubernetes: the engine's container. Default: the kind's name.",
            rich_help_panel=_BINDING,
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            "--check",
            metavar="URL",
            help="Ask a running engine whether it is bound so: three short requests, nothing is set or emptied.",
            rich_help_panel=_CHECK,
        ),
    ] = None,
    timeout: options.TimeoutOption = DEFAULT_TIMEOUT_S,
    api_key_env: options.ApiKeyEnvOption = None,
    header: options.HeaderOption = None,
    jobs: options.JobsOption = None,
    no_memo: options.NoMemoOption = False,
    ledger: options.LedgerOption = None,
    no_ledger: options.NoLedgerOption = False,
    form: options.FormatOption = None,
    output: options.OutputOption = None,
) -> ExitCode:
    """Print the release's namespace, and how to bind an engine's caches to it.

    The namespace is `<kv name>-<runtime>-e<epoch>`: the weights, the declared engine settings, and a number that is
    bumped when a name was poisoned. The same release and runtime always get the same namespace, from the ledger.

    With --check it also asks a running engine: 0 bound, 1 not, 3 not known, 5 no proper answer.

    Example: kvrelease namespace ./models/v1.3 --engine vllm --model support

    Example: eval "$(kvrelease namespace ./models/v1.3 --engine vllm --shell)"; exec vllm serve ./models/v1.3 "$@"

    Example: kvrelease namespace ./models/v1.3 --engine vllm --check http://127.0.0.1:8000
    """
    from kvrelease.artifacts import kind_of
    from kvrelease.binding.bound import judged
    from kvrelease.binding.namespace import NamespaceReport, RuntimeReport, resolve_namespace
    from kvrelease.binding.runtime import declared_runtime
    from kvrelease.binding.settings import binding_settings
    from kvrelease.binding.settings.binding import Wanted
    from kvrelease.release.fingerprint import require_kv_name
    from kvrelease.report.namespace import namespace_document
    from kvrelease.report.namespace_text import kubernetes_text, shell_text

    is_typed = form is not None and options.is_typed(context, "form")
    _require_one_form(shell=shell, kubernetes=kubernetes, form=is_typed, check=check is not None)
    if not (shell or kubernetes):
        choose_format(form, output)
    elif output is not None:
        require_writable(output, option="--output")
    if not store_root.startswith("/"):
        raise UsageError(
            f"--store-root {store_root}: engines start in directories of their own, so it has to be a whole path",
            hint="begin it with /",
        )
    if new_epoch and no_ledger:
        raise UsageError(
            "--new-epoch leaves the current name, which only the ledger knows, and --no-ledger was given",
            hint="leave out --no-ledger",
        )
    if check is not None:
        put_aside(output, kinds=(kind_of(NamespaceReport),))
    config = session.configuration()
    access = (
        None
        if check is None
        else _access(
            check,
            engine=engine,
            config=config,
            model=model,
            timeout_s=timeout,
            key_variable=api_key_env,
            headers=header,
        )
    )
    runtime = declared_runtime(config.runtime)
    with console.progress() as progress:
        found = session.read_release(release, option="RELEASE", jobs=jobs, no_memo=no_memo, progress=progress)
    require_kv_name(found)
    own = tenant_salt or _salt_text(config)
    checked = None
    with session.open_ledger(ledger, no_ledger=no_ledger) as store:
        record, is_new = resolve_namespace(
            found.release, runtime=runtime, ledger=store, command="namespace", is_new_epoch=new_epoch
        )
        wanted = Wanted(namespace=record.namespace, tenant_salt=own, model=model, store_root=store_root)
        if access is not None:
            checked = run_async(_ask(access, target=engine, wanted=wanted, config=config, store=store))
    warnings = _warnings(runtime, target=engine, forgets=no_ledger, combines=own is not None and tenant_salt is None)
    for warning in warnings:
        console.say_warning(warning)
    report = NamespaceReport(
        release=found.release,
        namespace=record.namespace,
        kv_name=record.kv_name,
        runtime=RuntimeReport(digest=runtime.digest, name=runtime.name, fields=runtime.fields, unread=runtime.unread),
        epoch=record.epoch,
        is_new=is_new,
        engine=str(engine),
        settings=binding_settings(engine, wanted),
        warnings=warnings,
    )
    if shell:
        return deliver_text(shell_text(report), output=output)
    if kubernetes:
        return deliver_text(kubernetes_text(report, container=container or str(engine)), output=output)
    code = ExitCode.OK
    if checked is not None:
        verdict, reason = judged(checked.findings)
        report = msgspec.structs.replace(report, verdict=verdict, reason=reason, checked=checked)
        code = exit_code(verdict=verdict)
    return deliver(report, lambda: namespace_document(report), wanted=form, output=output, code=code)


def _warnings(runtime: "Runtime", *, target: BindingTarget, forgets: bool, combines: bool) -> tuple[str, ...]:
    """What the reader has to know of a namespace.

    Args:
        runtime: that it stands for.
        target: that is bound.
        forgets: no ledger remembers the epoch.
        combines: the salt of `production.salt` is combined with it.
    """
    from kvrelease.binding.runtime import UNDECLARED_WARNING, other_engine, unknown_field_warnings

    warnings = [] if runtime.digest is not None else [UNDECLARED_WARNING]
    warnings += unknown_field_warnings(runtime.fields, source=CONFIG_NAME)
    if other := other_engine(runtime, target=target):
        warnings.append(
            f"the namespace stands for {other}, the engine under runtime: in kvrelease.yaml, and the settings are for "
            f"{target}: name the other with --engine, or correct runtime.engine, which makes another namespace"
        )
    if forgets:
        warnings.append("without a ledger the epoch is not remembered: a poisoned name would come back")
    if combines:
        warnings.append(
            "production.salt is a text of its own: it is combined with the namespace, and requests have to carry what "
            "stands here in its place"
        )
    return tuple(warnings)


def _require_one_form(*, shell: bool, kubernetes: bool, form: bool, check: bool) -> None:
    """Checks that the options ask for one form of result.

    Raises:
        UsageError: they ask for several.
    """
    asked = {"--shell": shell, "--kubernetes": kubernetes, "--format": form, "--check": check}
    named = [name for name, is_asked in asked.items() if is_asked]
    if (shell or kubernetes) and len(named) > 1:
        raise UsageError(
            f"{' and '.join(named)} are given, and the result has one form",
            hint="leave out all but one; --check tells its verdict as text, Markdown or JSON",
        )


def _access(
    url: str,
    *,
    engine: BindingTarget,
    config: Config,
    model: str | None,
    timeout_s: float,
    key_variable: str | None,
    headers: list[str] | None,
) -> "Access":
    """How the engine to be asked is reached.

    Raises:
        UsageError: it runs in process, or the options are wrong.
    """
    if engine is BindingTarget.LOCAL:
        raise UsageError("--check asks a server, and --engine local has none", hint="leave out --check")
    return session.access_of(
        config=config,
        urls=[url],
        kind=asked_as(engine),
        model=model,
        timeout_s=timeout_s,
        key_variable=key_variable,
        headers=headers,
    )


def _salt_text(config: Config) -> str | None:
    """The salt of users' own that `production.salt` names; None where it is a word of ours."""
    salt = config.production.salt
    return None if salt in ("none", "release") else salt


async def _ask(
    access: "Access", *, target: BindingTarget, wanted: "Wanted", config: Config, store: "Ledger"
) -> "BoundCheck":
    from kvrelease.binding.bound_asking import ask_bound

    async def identify_as(name: str) -> "EngineIdentity":
        async with session.fleet_of(msgspec.structs.replace(access, model=name), release=None) as fleet:
            return await fleet.require_one(option="--check").identify()

    async with session.fleet_of(access, release=None) as fleet:
        engine = fleet.require_one(option="--check")
        return await ask_bound(
            engine, target=target, wanted=wanted, production=config.production, memory=store, identify_as=identify_as
        )
