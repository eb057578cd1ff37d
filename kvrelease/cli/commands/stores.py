"""`kvrelease stores`."""

import typer

from kvrelease.cli.commands.stamp import stamp

application = typer.Typer(name="stores", help="Work with persisted KV.", no_args_is_help=True, rich_markup_mode=None)

application.command()(stamp)


@application.callback()
def _group() -> None:
    """Work with persisted KV."""
