"""What is said of an option's value that is none: where it came from, and what the option takes."""

from __future__ import annotations

import re

import typer

from kvrelease.config import CONFIG_NAME
from kvrelease.errors import UsageError

# By how `--help` shows what an option takes.
_FORMS = {
    "SECONDS": "seconds, as 300",
    "MS": "milliseconds, as 250",
    "SHARE": "a share, as 0.9",
    "TOKENS/S": "tokens a second, as 5000",
    "N": "a whole number",
}
_NO_NUMBER = re.compile(r" is not a valid (float|int|integer)(?: range)?\.$")
_OUTSIDE = re.compile(r" is not in the range \S*\.$")


def of_bad_value(error: typer.BadParameter, *, help_command: str) -> UsageError:
    """The error of ours for a value that an option does not take.

    Args:
        error: of the parser.
        help_command: that shows the option.
    """
    text = error.message
    if found := _NO_NUMBER.search(text):
        text = f"{text[: found.start()]} is no {'number' if found[1] == 'float' else 'whole number'}"
    elif found := _OUTSIDE.search(text):
        text = f"{text[: found.start()]} is out of range"
    form = _FORMS.get(str(getattr(error.param, "metavar", None)))
    takes = "" if form is None else f"it takes {form}{_bounds(getattr(error.param, 'type', None))}; "
    return UsageError(f"{_where(error)}: {text.rstrip('.')}", hint=f"{takes}{help_command}")


def _where(error: typer.BadParameter) -> str:
    """The option, and the variable or the file that had the value."""
    param, context = error.param, error.ctx
    if param is None or context is None or param.name is None:
        return "the command line"
    name = param.opts[0] if param.param_type_name == "option" else str(getattr(param, "metavar", param.name))
    source = context.get_parameter_source(param.name)
    match source.name if source is not None else "":
        case "ENVIRONMENT":
            return f"{name} ({param.envvar})"
        case "DEFAULT_MAP":
            return f"{name} ({CONFIG_NAME})"
        case _:
            return name


def _bounds(kind: object) -> str:
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None and high is not None:
        return f", from {low:g} to {high:g}"
    return "" if low is None else f", at least {low:g}"
