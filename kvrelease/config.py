"""`kvrelease.yaml`, `KVRELEASE_*` variables and defaults.

Precedence: flags, then variables, then the file in the working directory, then defaults. The file's keys are the long
options without their dashes, plus `production` (what users really send) and `runtime` (declared engine settings).
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import InputError, UsageError

CONFIG_NAME = "kvrelease.yaml"
MAX_CONFIG_BYTES = 1024 * 1024

DEFAULT_TIMEOUT_S = 120.0
DEFAULT_CONCURRENCY = 4
# Of `demo`: about a minute. Fewer leave some prompts unasked, and no median of warm requests.
DEFAULT_DEMO_REQUESTS = 300
MIN_DEMO_REQUESTS = 60
# A dozen clean probes support 25 %, 59 support 5 %, 299 support 1 % at 95 % confidence (rule of three, exactly
# 1 - 0.05 ** (1 / n)).
DEFAULT_STALE_BELOW = 0.05

# Of the cacheable tokens, asked again: a block of a short prompt may be lost to traffic, a prompt in ten may not.
DEFAULT_MIN_HIT_RATE = 0.9

# Settings of an engine that change KV's bytes or layout, by the names that its adapters tell them (docs/engines.md).
RUNTIME_FIELDS = (
    "engine",
    "version",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "block_size",
    "max_model_len",
    "overrides",
)
RUNTIME_EXAMPLE = "`runtime: {engine: vllm, version: 0.32.0, dtype: bfloat16}`"

HOW_TO_DECLARE_A_SALT = (
    f"write production.salt (none, release, or the gateway's text) in {CONFIG_NAME}, or pass --namespace"
)

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


# The deepest key, `production.body.X.Y…`, is a request's field; the bound keeps the parser's recursion off its limit.
MAX_NESTING = 50


class Production(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What users really send; every probe starts from it.

    Attributes:
        url: the base URL that users reach; None for the replicas' own.
        model: model name in the users' body; None for the served one.
        headers: sent with every probe (never logged).
        body: fields added to every prompt's body (`temperature` and `max_tokens` of probes are set by us).
        salt: `none`, `release` (the release's namespace) or a literal text, never empty; None where nobody declared
            it, which is sent as `none` and told.
    """

    url: str | None = None
    model: str | None = None
    headers: dict[str, str] = {}
    body: JsonObject = {}
    salt: str | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The content of `kvrelease.yaml`; None where the file is silent.

    `--allow-flush`, `--expect-cold`, `--mode` and what is written where are statements about one run, and no keys.
    """

    engine_url: str | list[str] | None = None
    replicas: str | None = None
    data_parallel: str | int | bool | None = None
    engine: str | None = None
    model: str | None = None
    prompts: str | None = None
    release: str | None = None
    old_release: str | None = None
    namespace: str | None = None
    golden: str | None = None
    baseline: str | None = None
    reference: str | None = None
    concurrency: int | None = None
    timeout: float | None = None
    wait: float | None = None
    api_key_env: str | None = None
    header: str | list[str] | None = None
    ledger: str | None = None
    no_ledger: bool | None = None
    stale_below: float | None = None
    require_power: bool | None = None
    probes: int | None = None
    seed: int | None = None
    min_hit_rate: float | None = None
    budget: float | None = None
    budget_tokens: int | None = None
    block_tokens: int | None = None
    max_ttft_ms: float | None = None
    max_error_rate: float | None = None
    passes: int | None = None
    rate: float | None = None
    journal: str | None = None
    no_journal: bool | None = None
    max_tokens: int | None = None
    fail_on: str | None = None
    drift: bool | None = None
    jobs: int | None = None
    no_memo: bool | None = None
    production: Production = Production()
    runtime: dict[str, str | int | float | bool] = {}


def option_defaults(config: Config) -> dict[str, object]:
    """The values for options by parameter name (`engine_url`), where neither flag nor variable gives one.

    `KVRELEASE_HEADER` is read here and not with the other variables, which are split at spaces: a header has spaces,
    and several stand one on a line.

    Raises:
        UsageError: a line of `KVRELEASE_HEADER` is no header.
    """
    values = {name: getattr(config, name) for name in config.__struct_fields__ if name not in ("production", "runtime")}
    for name in ("engine_url", "header"):
        values[name] = [values[name]] if isinstance(values[name], str) else values[name]
    lines = os.environ.get("KVRELEASE_HEADER", "").splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            split_header(line.strip(), where=f"KVRELEASE_HEADER, line {number},")
    values["header"] = [line.strip() for line in lines if line.strip()] or values["header"]
    return {name: value for name, value in values.items() if value is not None}


def split_header(text: str, *, where: str) -> tuple[str, str]:
    """Name and value of a header that was given as `NAME=VALUE`.

    Args:
        text: what was given; it is not repeated, it may be a secret.
        where: begins the message.

    Raises:
        UsageError: it has no name, or no `=`.
    """
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise UsageError(f"{where} is not of the form NAME=VALUE (not shown here)", hint="write it as in X-Team=search")
    return name, value


def working_directory() -> Path:
    """Where relative names begin.

    Raises:
        InputError: it was deleted under us.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise InputError(f"reading the working directory: {error.strerror}", hint="cd to an existing one") from error


def load_config(directory: Path) -> Config:
    """The configuration of a working directory; all defaults where there is no `kvrelease.yaml`.

    Raises:
        UsageError: not YAML, an unknown key, a value of the wrong type, or a header that is none; the message names
            the key.
        InputError: the file cannot be read, or is larger than `MAX_CONFIG_BYTES`.
    """
    path = directory / CONFIG_NAME
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"reading {path}: larger than {MAX_CONFIG_BYTES} bytes, which no configuration is")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"reading {path}: {error}") from error
    return parse_config(text, source=str(path))


def parse_config(text: str, *, source: str) -> Config:
    """The configuration in YAML text.

    Raises:
        UsageError: as `load_config`.
    """
    document = parse_yaml(text, source=source)
    if document is None:
        return Config()
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise UsageError(f"reading {source}: {error}", hint=_suggestion(str(error))) from error
    version = config.runtime.get("version")
    if version is not None and not isinstance(version, str):
        raise UsageError(
            f"reading {source}: runtime.version is {version!r}, and no text: YAML reads 0.10 and 0.1 as one number",
            hint='put the version in quotes, as in version: "0.32"',
        )
    headers = [config.header] if isinstance(config.header, str) else config.header or []
    for number, header in enumerate(headers, start=1):
        split_header(header, where=f"reading {source}: entry {number} of header")
    return config


def parse_yaml(text: str, *, source: str) -> object:
    """The plain values in YAML text: no tags, no aliases (so what it expands to is no larger than the file).

    Messages name the line and never repeat what stands there, which may be a secret header.

    Raises:
        UsageError: not YAML, or not plain.
    """
    import yaml  # noqa: PLC0415 - only needed where there is a file

    def refused(why: str, mark: object) -> UsageError:
        line = f" (line {mark.line + 1})" if isinstance(mark, yaml.Mark) else ""
        return UsageError(f"reading {source}{line}: {why}")

    def refuse_repeated_keys(node: yaml.Node) -> None:
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                refuse_repeated_keys(item)
        elif isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise refused(f"the key {key.value[:64]!r} stands twice", key.start_mark)
                seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
                refuse_repeated_keys(value)

    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise refused("aliases (*name) are not read here; write the value out", event.start_mark)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_NESTING:
                raise refused(f"nested deeper than {MAX_NESTING} levels", event.start_mark)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            refuse_repeated_keys(root)
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        raise refused(f"not YAML: {error.problem or 'malformed'}", error.problem_mark) from error
    except yaml.YAMLError as error:
        raise refused("not YAML: a character in it is not allowed", None) from error
    except ValueError as error:  # `2024-13-45` looks like a date and is none
        raise refused("a value in it cannot be read; put dates and odd numbers in quotes", None) from error


def _suggestion(message: str) -> str:
    where: type[Config | Production] = Production if "`$.production`" in message else Config
    names = [field.encode_name for field in msgspec.structs.fields(where)]
    found = re.search(r"unknown field `([^`]*)`", message)
    if where is Config and found and found[1] in RUNTIME_FIELDS:
        return f"put it under runtime:, as in {RUNTIME_EXAMPLE}"
    close = difflib.get_close_matches(found[1], names, n=1) if found else []
    return f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(names)}"


def api_key(variable: str | None) -> str | None:
    """The API key in an environment variable; None when no variable is named.

    Raises:
        UsageError: the name is no variable's name, or the variable is not set. The message never repeats what was
            given: many keys (`hf_…`) would pass for a name.
    """
    if variable is None:
        return None
    hint = "export the key, as in OPENAI_API_KEY=…, and pass --api-key-env OPENAI_API_KEY"
    return _secret(variable, option="--api-key-env", hint=hint)


def control_token(variable: str) -> str:
    """The control token of the middleware in an environment variable.

    Raises:
        UsageError: as `api_key`.
    """
    hint = "export the engine's KVRELEASE_CONTROL_TOKEN here too, or name the variable that holds it"
    return _secret(variable, option="--control-token-env", hint=hint)


def _secret(variable: str, *, option: str, hint: str) -> str:
    if not _ENVIRONMENT_NAME.match(variable):
        raise UsageError(
            f"{option} takes the name of an environment variable, and was given something else (not shown here)",
            hint=hint,
        )
    value = os.environ.get(variable, "").strip()
    if not value:
        raise UsageError(
            f"the environment variable that {option} names (not shown here) is not set, or is empty", hint=hint
        )
    return value
