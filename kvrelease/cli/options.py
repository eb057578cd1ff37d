"""The options that mean the same in every command, each defined once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from kvrelease.cli.output import Format
from kvrelease.engines.base import EngineKind
from kvrelease.release.mode import Mode

_OUTPUT = "Output"
_ENGINE = "Engine"
_RELEASE = "Release"
_LEDGER = "Ledger"
_HASHING = "Fingerprinting"


def finite(value: float | None) -> float | None:
    """The value, checked: NaN passes every range, and would pass every gate.

    Raises:
        BadParameter: NaN or infinity.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether a parameter stands on the command line itself: variables and `kvrelease.yaml` speak of every run."""
    # By its name: the class of this Enum is in Click, which Typer does not hand out.
    return (given := context.get_parameter_source(name)) is not None and given.name == "COMMANDLINE"


FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        envvar="KVRELEASE_FORMAT",
        help="text for people, json for machines (the artifact), markdown for pull requests. "
        "Default: by the suffix of --output (.json, .md, .txt), else text.",
        rich_help_panel=_OUTPUT,
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write there, atomically, instead of stdout.", rich_help_panel=_OUTPUT
    ),
]
EngineUrlOption = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-url",
        envvar="KVRELEASE_ENGINE_URL",
        metavar="URL",
        help="A replica; repeat for each (the variable: separated by spaces). Address replicas directly, not through a "
        "load balancer; dns+http://NAME:PORT stands for every address of a name, as of a headless Service. With "
        "--engine local: a directory of persisted blocks, which is only read.",
        rich_help_panel=_ENGINE,
    ),
]
ReplicasOption = Annotated[
    Path | None,
    typer.Option(
        "--replicas",
        envvar="KVRELEASE_REPLICAS",
        metavar="FILE",
        help="More replicas: a text file with one URL a line (# begins a comment), or a YAML or JSON list of URLs and "
        "of objects with url, rank and headers.",
        rich_help_panel=_ENGINE,
    ),
]
DataParallelOption = Annotated[
    str,
    typer.Option(
        "--data-parallel",
        envvar="KVRELEASE_DATA_PARALLEL",
        metavar="auto|N|off",
        help="Data-parallel ranks behind one URL, each with a cache of its own: auto asks those that the engine's "
        "counters tell apart, one by one; off asks the engine as a whole.",
        rich_help_panel=_ENGINE,
    ),
]
EngineOption = Annotated[
    EngineKind | None,
    typer.Option(
        "--engine",
        envvar="KVRELEASE_ENGINE",
        help="Kind of the engine. Default: detected from the server. `local` serves --release in this process.",
        rich_help_panel=_ENGINE,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        envvar="KVRELEASE_MODEL",
        metavar="NAME",
        help="Served model name. Default: the only one.",
        rich_help_panel=_ENGINE,
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        envvar="KVRELEASE_TIMEOUT",
        metavar="SECONDS",
        min=0.1,
        callback=finite,
        help="Deadline of one call to an engine.",
        rich_help_panel=_ENGINE,
    ),
]
WaitOption = Annotated[
    float | None,
    typer.Option(
        "--wait",
        envvar="KVRELEASE_WAIT",
        metavar="SECONDS",
        min=0.1,
        callback=finite,
        help="Wait so long for each replica to list the model and to generate one token, as in a pod's start-up.",
        rich_help_panel=_ENGINE,
    ),
]
ConcurrencyOption = Annotated[
    int,
    typer.Option(
        "--concurrency",
        envvar="KVRELEASE_CONCURRENCY",
        metavar="N",
        min=1,
        max=1024,
        help="Requests in flight on one replica.",
        rich_help_panel=_ENGINE,
    ),
]
ApiKeyEnvOption = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        envvar="KVRELEASE_API_KEY_ENV",
        metavar="NAME",
        help="Environment variable that holds the API key.",
        rich_help_panel=_ENGINE,
    ),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="K=V",
        help="Header sent with every request; repeatable.  [env var: KVRELEASE_HEADER, one on each line]",
        rich_help_panel=_ENGINE,
    ),
]
AllowFlushOption = Annotated[
    bool,
    typer.Option("--allow-flush", help="Permit calls that empty this engine's own cache.", rich_help_panel=_ENGINE),
]
ReleaseOption = Annotated[
    str | None,
    typer.Option(
        "--release",
        envvar="KVRELEASE_RELEASE",
        metavar="WHAT",
        help="The release that is said to be served: model directory, kvrelease.json or saved fingerprint.",
        rich_help_panel=_RELEASE,
    ),
]
OldReleaseOption = Annotated[
    str | None,
    typer.Option(
        "--old-release",
        envvar="KVRELEASE_OLD_RELEASE",
        metavar="WHAT",
        help="The release before it; as a directory it lets verify compute what staleness would look like.",
        rich_help_panel=_RELEASE,
    ),
]
PromptsOption = Annotated[
    str | None,
    typer.Option(
        "--prompts",
        envvar="KVRELEASE_PROMPTS",
        metavar="FILE",
        help="Prompt set, YAML or JSONL. prompts/support.yaml and its siblings are shipped.",
        rich_help_panel=_RELEASE,
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        envvar="KVRELEASE_NAMESPACE",
        metavar="TEXT",
        help="Key space of this run instead of production's: none, release, or a salt.",
        rich_help_panel=_RELEASE,
    ),
]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Short name of the release.", rich_help_panel=_RELEASE)
]
VersionLabelOption = Annotated[
    str | None,
    typer.Option("--release-version", metavar="LABEL", help="Your own version label.", rich_help_panel=_RELEASE),
]
LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="KVRELEASE_LEDGER",
        metavar="URL",
        help="Where releases and what served where are remembered: sqlite:////path/ledger.db. Default: per user.",
        rich_help_panel=_LEDGER,
    ),
]
NoLedgerOption = Annotated[
    bool,
    typer.Option(
        "--no-ledger",
        envvar="KVRELEASE_NO_LEDGER",
        help="Remember nothing: epochs start at 0, and hits of earlier runs count as foreign.",
        rich_help_panel=_LEDGER,
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        envvar="KVRELEASE_JOBS",
        metavar="N",
        min=1,
        max=256,
        help="Threads that hash. Default: one per core.",
        rich_help_panel=_HASHING,
    ),
]
NoMemoOption = Annotated[
    bool,
    typer.Option(
        "--no-memo",
        envvar="KVRELEASE_NO_MEMO",
        help="Hash files again that were hashed before and not written to since, and remember nothing.",
        rich_help_panel=_HASHING,
    ),
]
ModeOption = Annotated[
    Mode,
    typer.Option(
        "--mode",
        help="full reads every byte. fast reads headers and samples of every tensor, in milliseconds: it sees most "
        "changes, says what it can miss, and names no cache.",
        rich_help_panel=_HASHING,
    ),
]
AdapterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="[NAME=]DIR",
        help="A LoRA adapter that the model is served with; repeat for each. Its KV gets a name of its own. NAME: as it"
        " is served, default the directory's.",
        rich_help_panel=_RELEASE,
    ),
]
