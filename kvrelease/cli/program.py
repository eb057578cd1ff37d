"""The command tree: global options and every command, each in a file of its own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_group

from kvrelease import __version__
from kvrelease.cli.commands import demo, diff, fingerprint, namespace, prewarm, prompts, record, reload, stores, verify
from kvrelease.cli.console import configure_logging
from kvrelease.cli.streams import put

_HELP = """A model upgrade must never answer from the old model's KV cache.

Put kvrelease between "weights are ready" and "traffic moves": fingerprint a release, see whether the old KV survives
(diff), bind every cache key to the release (namespace) and every store (stores stamp), fill the new prefix cache
(prewarm), and prove that nothing old is served (verify).

Data goes to stdout, everything else to stderr. Options come from flags, then KVRELEASE_* variables, then
kvrelease.yaml in the working directory.

Exit codes: 0 yes, 1 no (gate failed), 2 usage, 3 inconclusive, 4 bad input, 5 engine or store, 70 our bug, 130 Ctrl-C
or SIGTERM.
"""

application = typer.Typer(
    name="kvrelease",
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
application.command()(fingerprint.fingerprint)
application.command()(diff.diff)
application.command()(namespace.namespace)
application.add_typer(prompts.application)
application.command()(prewarm.prewarm)
application.command()(record.record)
application.command()(verify.verify)
application.command()(reload.reload)
application.add_typer(stores.application)
application.command()(demo.demo)


# Configured values that say which release and key space a run asks for.
_OF_RUNS = ("release", "namespace")


@functools.cache
def command_tree() -> TyperGroup:
    """What parses and runs a command line. Made once: it reads the options of every command, which takes a while."""
    return get_group(application)


def command_names() -> tuple[str, ...]:
    """Names of the commands, groups not among them."""
    return tuple(command.callback.__name__ for command in application.registered_commands if command.callback)


def group_names(group: str) -> tuple[str, ...]:
    """Names of the commands of a group."""
    groups = (one.typer_instance for one in application.registered_groups if one.typer_instance is not None)
    found = next(one for one in groups if one.info.name == group)
    return tuple(command.callback.__name__ for command in found.registered_commands if command.callback)


def default_map(defaults: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """The configuration's values for each command's options.

    `model` is the served model's name everywhere but in `fingerprint MODEL`, whose directory nobody means by it.
    """
    chosen: dict[str, Mapping[str, object]] = dict.fromkeys(command_names(), defaults)
    chosen["fingerprint"] = {name: value for name, value in defaults.items() if name != "model"}
    chosen["prompts"] = {"check": defaults}
    # Whose a store is, its stamp is told on the command line alone.
    chosen["stores"] = {"stamp": {name: value for name, value in defaults.items() if name not in _OF_RUNS}}
    return chosen


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        put(sys.stdout, f"kvrelease {__version__}\n")
        raise typer.Exit


@application.callback()
def _options(
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Tell on stderr what is being done.")] = False,
    version: Annotated[  # noqa: ARG001 - answered by its callback
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    configure_logging(is_verbose=verbose)
