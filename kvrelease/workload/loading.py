"""Finding a prompt set file, reading it within bounds, and telling YAML, JSONL and traffic logs apart."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import kvrelease
from kvrelease.errors import InputError, NotFound, PromptSetError, TrafficLogError
from kvrelease.workload.entry import YAML_SUFFIXES, assemble
from kvrelease.workload.jsonl_file import read_jsonl
from kvrelease.workload.log_set import read_log_set
from kvrelease.workload.logs.detection import shape_of
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.place import did_you_mean, quoted
from kvrelease.workload.prompt_set import PromptSet
from kvrelease.workload.yaml_file import read_yaml

# Bounds what a wrong path (a log of many GB) can cost. A representative set is thousands of prompts at most.
MAX_JSONL_BYTES = 256 * 1024 * 1024
MAX_YAML_BYTES = 16 * 1024 * 1024  # parsed far more slowly, and written by people

_JSONL_SUFFIXES = (".jsonl", ".ndjson")
_LOG_SUFFIXES = (".json", ".csv", ".txt", ".text", ".log", ".gz")

_PACKAGE = Path(kvrelease.__file__).parent
# The wheel's copy, then the checkout's (an editable install).
SHIPPED_DIRECTORIES = (_PACKAGE / "data" / "prompts", _PACKAGE.parent / "prompts")


def load_prompt_set(what: str, *, directory: Path) -> PromptSet:
    """The prompt set that `what` names.

    Args:
        what: a path, relative to `directory` or absolute; `prompts/NAME.yaml`, and `NAME` for short, lead to the
            shipped set when the working directory has no such file.
        directory: the working directory.

    Raises:
        NotFound: no such file, and no such shipped set.
        PromptSetError: the file is empty, malformed or too large, or a trace without text.
        InputError: it cannot be read, or a log in it is damaged.
    """
    path = find_prompt_set(what, directory=directory)
    if path.suffix.lower() in YAML_SUFFIXES:
        content = read_yaml(_decode(_read(path, what, limit_bytes=MAX_YAML_BYTES), source=what), source=what)
        return assemble(content.entries, name=content.name or path.stem, source=what)
    if path.suffix.lower() in _JSONL_SUFFIXES and not _is_other_log(path, what):
        text = _decode(_read(path, what, limit_bytes=MAX_JSONL_BYTES), source=what)
        return assemble(read_jsonl(text, source=what), name=path.stem, source=what)
    entries = read_log_set(path, source=what, limit_bytes=MAX_JSONL_BYTES)
    return assemble(entries, name=path.name.split(".")[0] or path.stem, source=what)


def is_checked_as_log(path: Path, what: str) -> bool:
    """Whether `prompts check` streams a file as a log: all but YAML, OpenAI bodies and batch files of a set's size.

    Raises:
        InputError: it cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in YAML_SUFFIXES:
        return False
    if suffix not in _JSONL_SUFFIXES or path.stat().st_size > MAX_JSONL_BYTES:
        return True
    try:
        form = shape_of(path, source=what, form=None).form
    except TrafficLogError:
        return False
    return form not in (LogFormat.OPENAI, LogFormat.BATCH)


def _is_other_log(path: Path, what: str) -> bool:
    """Whether a file of JSON lines is a log of a format of its own, by its first record.

    OpenAI bodies stay a prompt set: its rules are stricter, and its errors closer.
    """
    try:
        return shape_of(path, source=what, form=None).form is not LogFormat.OPENAI
    except TrafficLogError:
        return False


def find_prompt_set(what: str, *, directory: Path) -> Path:
    """The file that `what` names, see `load_prompt_set`.

    Raises:
        NotFound: no such file, and no such shipped set.
        PromptSetError: it is a directory, or its suffix is of no format.
    """
    if not what or "\0" in what:
        raise NotFound(f"looking for the prompt set {quoted(what)}: this is no file name", hint=_shipped_hint())
    given = directory / what
    name = _shipped_name(what)
    candidates = [given]
    if name is not None:
        candidates += [root / f"{name}.yaml" for root in (directory / "prompts", *SHIPPED_DIRECTORIES)]
    path = next((candidate for candidate in candidates if _exists(candidate) and not candidate.is_dir()), None)
    if path is None:
        if _exists(given):
            raise PromptSetError(f"reading the prompt set {what}: it is a directory", hint="name one file in it")
        raise NotFound(
            f"looking for the prompt set {what}: no such file in {directory}", hint=_shipped_hint(closest_to=name)
        )
    if path.suffix.lower() not in (*YAML_SUFFIXES, *_JSONL_SUFFIXES, *_LOG_SUFFIXES):
        raise PromptSetError(
            f"reading the prompt set {what}: the suffix {quoted(path.suffix)} does not tell its format",
            hint="name it .yaml (a `prompts:` list), .jsonl (one request body a line), or as a log: .json, .csv, .txt, "
            "with .gz behind when it is compressed",
        )
    return path


def shipped_prompt_sets() -> tuple[str, ...]:
    """Names of the sets that come with the program, sorted; `prompts/NAME.yaml` leads to each."""
    return tuple(sorted({path.stem for root in SHIPPED_DIRECTORIES for path in root.glob("*.yaml")}))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for the file system, a directory that may not be searched
        return False


def _shipped_name(what: str) -> str | None:
    """`support` from `prompts/support.yaml` or `support`; None for any other path, which never leads elsewhere."""
    path = PurePosixPath(what)
    is_short = path.parts == (path.name,) and not path.suffix
    is_full = path.parts == ("prompts", path.name) and path.suffix == ".yaml"
    return path.stem if is_short or is_full else None


def _shipped_hint(*, closest_to: str | None = None) -> str:
    shipped = shipped_prompt_sets()
    close = did_you_mean(closest_to, shipped) if closest_to else None
    if close is not None and close.startswith("did"):
        return close
    return "shipped sets: " + (", ".join(f"prompts/{name}.yaml" for name in shipped) or "none")


def _read(path: Path, what: str, *, limit_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise InputError(f"reading the prompt set {what}: {error.strerror or error}") from error
    if len(data) > limit_bytes:
        raise PromptSetError(
            f"reading the prompt set {what}: it is larger than {limit_bytes // 1024**2} MiB",
            hint="choose a representative part with `kvrelease prompts select`, and store large sets as JSONL",
        )
    return data


def _decode(data: bytes, *, source: str) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise PromptSetError(f"reading the prompt set {source}: it is UTF-16", hint="save it as UTF-8")
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise PromptSetError(
            f"reading the prompt set {source}, line {line}: invalid UTF-8 ({error.reason}) at byte {error.start}",
            hint="save it as UTF-8",
        ) from error
