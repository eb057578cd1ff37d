"""`kvrelease prompts`."""

import typer

from kvrelease.cli.commands.check import check
from kvrelease.cli.commands.select import select

application = typer.Typer(name="prompts", help="Work with prompt sets.", no_args_is_help=True, rich_markup_mode=None)

application.command()(check)
application.command()(select)


@application.callback()
def _group() -> None:
    """Work with prompt sets."""
