"""Saved JSON artifacts: kinds, schemas, atomic writing and validated reading.

Each artifact is one `msgspec.Struct` derived from `Artifact`; the class is the JSON, key for key. The concrete classes
live beside the concept they describe (`release.fingerprint.Fingerprint`, `verify.run.VerifyReport`, …).
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import errno
import os
import shlex
import stat
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from kvrelease import __version__
from kvrelease.absent import next_step
from kvrelease.errors import DamagedFile, InputError, KvreleaseError, NotFound

# A JSON object whose keys are not ours: bodies of requests stay whole in this form, because they must be sent exactly
# as users send them. Values are JSON; `object` makes every reader check before use.
JsonObject = dict[str, object]

_MAX_NAME_CHARS = 64  # of a temporary file's name: 255 bytes is the limit of most file systems

# An artifact is a report, never bulk data; refusing larger files bounds memory on a hostile one.
MAX_ARTIFACT_BYTES = 256 * 1024 * 1024


class Verdict(enum.StrEnum):
    """The outcome of a judgement. Not enough evidence is INCONCLUSIVE, never PASS."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class ReleaseRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which release an artifact speaks of.

    Attributes:
        name: short name, from the directory or the configuration.
        version: the operator's label, None when nobody gave one.
        source: where it was read, as the user wrote it.
        kv_name: `kv1-` and 32 base32 characters; None when only a fast digest is known.
    """

    name: str
    version: str | None
    source: str
    kv_name: str | None


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of the outside world that ended one part of a run, where the rest is still worth reporting.

    Attributes:
        where: the replica or file.
        exit_code: what it would have ended the program with.
        message: one paragraph.
        hint: what to do next.
    """

    where: str
    exit_code: int
    message: str
    hint: str | None = None

    @property
    def shown(self) -> str:
        """The message, with the place before it where it does not name that itself."""
        return self.message if self.where in self.message else f"{self.where}: {self.message}"


def fault_of(error: KvreleaseError, *, where: str) -> Fault:
    """The fault that an error of ours tells."""
    return Fault(where=where, exit_code=int(error.exit_code), message=error.message, hint=error.hint)


def now() -> datetime.datetime:
    """The time of creation of an artifact: UTC, whole milliseconds."""
    moment = datetime.datetime.now(datetime.UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


class Artifact(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What every JSON output begins with.

    Attributes:
        schema: version of this kind's keys; readers accept every older one.
        tool: version of kvrelease that wrote it.
        created: RFC 3339.
    """

    schema: int = 1
    tool: str = __version__
    created: datetime.datetime = msgspec.field(default_factory=now)


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    schema: int


A = TypeVar("A", bound=Artifact)


def kind_of(artifact: type[Artifact]) -> str:
    """The `kind` of an artifact class, such as `kvrelease/fingerprint`."""
    tag = artifact.__struct_config__.tag
    assert isinstance(tag, str), f"{artifact.__name__} declares no tag"
    return tag


def schema_of(artifact: type[Artifact]) -> int:
    """The schema that this kvrelease writes for a kind: the default of its `schema` field."""
    field = next(field for field in msgspec.structs.fields(artifact) if field.name == "schema")
    assert isinstance(field.default, int), f"{artifact.__name__} has no schema"
    return field.default


def to_json(artifact: Artifact) -> str:
    """The artifact as indented strict JSON with a final newline; known to read back as its class.

    A NaN becomes null: "not known" where the class allows that, and our bug where it does not.

    Raises:
        InputError: a name in it is not valid UTF-8.
    """
    try:
        data = msgspec.json.encode(artifact)
    except UnicodeEncodeError as error:
        raise InputError(
            f"writing the {kind_of(type(artifact))} artifact: a name in it is not valid UTF-8",
            hint="rename that file or directory",
        ) from error
    try:
        msgspec.json.decode(data, type=type(artifact))
    except msgspec.MsgspecError as error:
        raise AssertionError(f"our own {kind_of(type(artifact))} artifact is not valid: {error}") from error
    return msgspec.json.format(data, indent=2).decode() + "\n"


def from_json(data: bytes, artifact: type[A], *, source: str, hint: str | None = None) -> A:
    """The artifact in `data`.

    Args:
        data: JSON, a UTF-8 byte order mark is accepted.
        artifact: the expected class.
        source: the name of the data in error messages.
        hint: the next step where it is no artifact at all; None for what to do about one that is damaged.

    Raises:
        DamagedFile: not JSON, another kind, or keys of the wrong shape.
        InputError: written by a newer kvrelease.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    expected = kind_of(artifact)
    again = f"if kvrelease wrote it, it was cut off or edited: write the {expected} artifact again (--output)"
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFile(
            f"reading {source} as {expected}: not an artifact of kvrelease ({error})", hint=hint or again
        ) from error
    if envelope.kind != expected:
        raise DamagedFile(
            f"reading {source} as {expected}: it is a {envelope.kind} artifact",
            hint=_how_to_get(expected, data),
        )
    newest = schema_of(artifact)
    if envelope.schema > newest:
        raise InputError(
            f"reading {source}: its schema {envelope.schema} is newer than {newest}, the newest that "
            f"kvrelease {__version__} knows",
            hint="upgrade kvrelease on this machine",
        )
    try:
        return msgspec.json.decode(data, type=artifact)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFile(f"reading {source} as {expected}: {error}", hint=again) from error


class _OfRelease(msgspec.Struct, frozen=True, kw_only=True):
    release: ReleaseRef


def _how_to_get(kind: str, data: bytes) -> str:
    """How to get an artifact of that kind, where `data` is one of another kind."""
    if kind != "kvrelease/fingerprint":
        return f"give a {kind} artifact, as --output writes it"
    try:
        source = shlex.quote(msgspec.json.decode(data, type=_OfRelease).release.source)
    except msgspec.MsgspecError:
        source = "MODEL"
    return f"give the model, or its fingerprint: kvrelease fingerprint {source} -o FILE.json writes one"


def read(path: Path, artifact: type[A]) -> A:
    """The artifact saved at `path`.

    Raises:
        NotFound: no such file.
        DamagedFile: not such an artifact, or larger than `MAX_ARTIFACT_BYTES`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_ARTIFACT_BYTES + 1)
    except OSError as error:
        hint = next_step(path) if isinstance(error, FileNotFoundError) else None
        raise NotFound(f"reading {path}: {error.strerror or error}", hint=hint) from error
    if len(data) > MAX_ARTIFACT_BYTES:
        raise DamagedFile(f"reading {path}: more than {MAX_ARTIFACT_BYTES} bytes, which no artifact has")
    return from_json(data, artifact, source=str(path))


def write_atomically(path: Path, text: str, *, follows_links: bool = True) -> None:
    """Puts `text` at `path` so that a reader sees the old file or the new one, never a part.

    A device or a pipe (`/dev/null`, a shell's `>(…)`) is written to, never replaced.

    Args:
        path: of the file.
        text: its new content.
        follows_links: a link at `path` leads to the file that is meant; else the link itself is replaced.

    Raises:
        InputError: the directory is missing, read-only or full; an existing file is untouched.
    """
    data = text.encode("utf-8", errors="backslashreplace")
    try:
        if not follows_links:
            _replace(path.parent.resolve() / path.name, data)
        elif path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        raise InputError(
            f"writing {path}: {error.strerror or error}; nothing was written",
            hint="choose another --output, or make room",
        ) from error


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:_MAX_NAME_CHARS]}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _require_content(temporary, data)
        temporary.chmod(_mode_of(target))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _require_content(path: Path, data: bytes) -> None:
    if path.read_bytes() != data:
        raise OSError(errno.EIO, "what was read back is not what was written")


def _mode_of(target: Path) -> int:
    """The mode of the file that is replaced, else (a link, which has none) what the umask leaves of a new file."""
    with contextlib.suppress(FileNotFoundError):
        mode = target.lstat().st_mode
        if not stat.S_ISLNK(mode):
            return stat.S_IMODE(mode)
    mask = os.umask(0o077)  # can only be read by setting it
    os.umask(mask)
    return 0o666 & ~mask


def write(path: Path, artifact: Artifact, *, follows_links: bool = True) -> None:
    """Saves an artifact atomically; what is on disk is known to be valid.

    Args:
        path: of the file.
        artifact: its new content.
        follows_links: as in `write_atomically`.

    Raises:
        InputError: it could not be written.
    """
    write_atomically(path, to_json(artifact), follows_links=follows_links)
