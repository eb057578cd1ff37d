"""A release in an object store, `s3://bucket/prefix` or `gs://bucket/prefix`, read by ranges and never stored.

fsspec speaks the protocols and finds credentials where the stores' own tools do. What it says of an object's version
(entity tag, generation, time) is the object's identity, asked before and after reading. Sources: s3fs 2026.9.0,
s3fs/core.py (`_info`, `_lsdir`, `_cat_file`) and s3fs/errors.py; gcsfs 2026.10.1, gcsfs/core.py (`_info`) and
gcsfs/retry.py (`validate_response`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import msgspec

from kvrelease.errors import (
    InputError,
    KvreleaseError,
    MissingExtra,
    NotFound,
    Refused,
    ServiceError,
    ServiceTimeout,
    Unreachable,
    UsageError,
)
from kvrelease.release.range_reader import RangeReader
from kvrelease.release.source import MAX_FILES_BELOW, TEMPLATE_FOLDER, FileIdentity, Origin

# Scheme → the module that speaks it, with the extra `cloud`.
MODULES: Mapping[str, str] = {"s3": "s3fs", "gs": "gcsfs"}
# Whichever of these a store gives make the version of an object.
_VERSION_KEYS = ("ETag", "etag", "VersionId", "generation", "LastModified", "updated", "mtime")

# Never more rights than reading needs.
_OPTIONS: Mapping[str, Mapping[str, str]] = {"gs": {"access": "read_only"}}

_CREDENTIALS_HINT = {
    "s3": "check AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; AWS_ENDPOINT_URL if it is not AWS",
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
}


class _Store(msgspec.Struct, frozen=True, kw_only=True):
    """A file system of fsspec's, its exceptions translated."""

    scheme: str
    filesystem: Any

    def info(self, path: str) -> Mapping[str, Any]:
        """What the store says of one object or prefix, asked anew."""
        with self.translated(path):
            found: Mapping[str, Any] = self.filesystem.info(path)
            return found

    def listing(self, path: str) -> list[Mapping[str, Any]]:
        """Objects and prefixes right below a prefix."""
        with self.translated(path):
            found: list[Mapping[str, Any]] = self.filesystem.ls(path, detail=True)
            return found

    def fetch(self, path: str, offset: int, end: int) -> bytes:
        """A range of an object."""
        with self.translated(path):
            return bytes(self.filesystem.cat_file(path, start=offset, end=end))

    @contextlib.contextmanager
    def translated(self, path: str) -> Iterator[None]:
        """Makes whatever the client libraries raise an error of ours."""
        try:
            yield
        except KvreleaseError:
            raise
        except Exception as error:
            raise _translate(error, scheme=self.scheme, where=f"{self.scheme}://{path}") from error


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """A `SourceFile` of an object store.

    Attributes:
        store: that it lies in.
        path: bucket and key.
        name: relative to the release.
    """

    store: _Store
    path: str
    name: str

    @property
    def where(self) -> str:
        """The address."""
        return f"{self.store.scheme}://{self.path}"

    def identity(self) -> FileIdentity:
        """Of the object that lies there now."""
        info = self.store.info(self.path)
        if info.get("type") != "file":
            raise InputError(f"reading {self.where}: it is a prefix, not an object")
        versions = [f"{key}={info[key]}" for key in _VERSION_KEYS if info.get(key)]
        if not versions:
            raise InputError(
                f"reading {self.where}: the store tells no version of the object, so a change while it is read would "
                "go unseen",
                hint="copy the release to a disk and give that directory",
            )
        return FileIdentity(size_bytes=int(info["size"]), version=" ".join(versions))

    @contextlib.contextmanager
    def open(self) -> Iterator[RangeReader]:
        """The object, to be read by ranges."""
        yield RangeReader(
            where=self.where,
            identity=self.identity(),
            fetch=lambda offset, end: self.store.fetch(self.path, offset, end),
        )


class ObjectSource:
    """A `Source`: everything right below a prefix, or one object and what lies beside it."""

    def __init__(self, store: _Store, *, prefix: str, origin: Origin, single_file: str | None = None) -> None:
        self._store = store
        self._prefix = prefix
        self.origin = origin
        self.single_file = single_file

    @property
    def where(self) -> str:
        """The address of the prefix."""
        return f"{self._store.scheme}://{self._prefix}"

    def names(self) -> tuple[str, ...]:
        """Of the objects right below the prefix, and of the templates."""
        return self._names

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return self.names_now()

    def names_now(self) -> tuple[str, ...]:
        """Of the objects that are there at this moment."""
        names = [PurePosixPath(name).name for name in self._objects(self._prefix, kind="file")]
        folders = {PurePosixPath(name).name for name in self._objects(self._prefix, kind="directory")}
        if TEMPLATE_FOLDER in folders:
            templates = self._objects(f"{self._prefix}/{TEMPLATE_FOLDER}", kind="file")
            names += [f"{TEMPLATE_FOLDER}/{PurePosixPath(name).name}" for name in templates]
        return tuple(sorted(names))

    def names_below(self) -> tuple[str, ...]:
        """Of the objects further below the prefix."""
        found: list[str] = []
        folders = self._objects(self._prefix, kind="directory")
        while folders and len(found) <= MAX_FILES_BELOW:
            folder = folders.pop()
            found += self._objects(folder, kind="file")
            folders += self._objects(folder, kind="directory")
        return tuple(sorted(name.removeprefix(f"{self._prefix}/") for name in found))

    def _objects(self, prefix: str, *, kind: str) -> list[str]:
        found = (
            (str(entry["name"]), entry.get("type")) for entry in self._store.listing(prefix)
        )  # consoles keep an empty object named like the folder, "prefix/"
        return [name.rstrip("/") for name, entry in found if entry == kind and name.rstrip("/") != prefix]

    def has(self, name: str) -> bool:
        """Whether such an object exists, in whatever sub-folder."""
        if name in self._names:
            return True
        try:
            self.file(name).identity()
        except NotFound:
            return False
        return True

    def file(self, name: str) -> StoredObject:
        """The object of that name."""
        return StoredObject(store=self._store, path=f"{self._prefix}/{name}", name=name)


def open_object_store(address: str, *, single_file_suffixes: tuple[str, ...]) -> ObjectSource:
    """The release at `s3://bucket/prefix` or `gs://bucket/prefix`, or of one object.

    Args:
        address: as the user wrote it.
        single_file_suffixes: of names that are one object, not a prefix.

    Raises:
        UsageError: no such scheme, no bucket, or credentials in the address.
        MissingExtra: the extra `cloud` is not installed.
    """
    scheme, _, rest = address.partition("://")
    path = rest.strip("/")
    bucket = path.partition("/")[0]
    if "@" in bucket:
        raise UsageError(
            f"reading {scheme}://…: credentials do not belong in an address, where logs and reports would keep them",
            hint=_CREDENTIALS_HINT.get(scheme),
        )
    if scheme not in MODULES:
        raise UsageError(
            f"reading {scheme}://…: no store is known for {scheme}://",
            hint=f"one of {', '.join(f'{known}://' for known in MODULES)}, hf:ORG/NAME, or a directory",
        )
    if not bucket:
        raise UsageError(f"reading {address}: it names no bucket", hint=f"{scheme}://BUCKET/PREFIX")
    store = _Store(scheme=scheme, filesystem=_filesystem(scheme))
    name = PurePosixPath(path).name
    if PurePosixPath(path).suffix in single_file_suffixes and "/" in path:
        origin = Origin(name=PurePosixPath(path).stem, version=None, address=address, is_remote=True)
        return ObjectSource(store, prefix=path.rpartition("/")[0], origin=origin, single_file=name)
    return ObjectSource(store, prefix=path, origin=Origin(name=name, version=None, address=address, is_remote=True))


def _filesystem(scheme: str) -> Any:  # of fsspec, untyped
    # gcsfs logs a traceback for every refusal; the error itself is told by us.
    logging.getLogger(MODULES[scheme]).addHandler(logging.NullHandler())
    try:
        import fsspec  # noqa: PLC0415 - late, and only with the extra

        # Without the listings cache each question is answered by the store, not by what it said earlier.
        return fsspec.filesystem(scheme, use_listings_cache=False, **_OPTIONS.get(scheme, {}))
    except ImportError as error:
        raise MissingExtra(extra="cloud", needed_for=f"reading {scheme}://", module=MODULES[scheme]) from error
    except Exception as error:
        raise _translate(error, scheme=scheme, where=f"{scheme}://") from error


def _translate(error: Exception, *, scheme: str, where: str) -> KvreleaseError:
    """An error of ours for whatever a client library raised; of its text, only the kind: it may quote a request."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    code = getattr(error, "code", None)  # gcsfs' HttpError
    forbidden = str(error).startswith("Forbidden")  # gcsfs' 403 is a bare OSError
    what = f"{type(error).__name__}{f' {code}' if code else ''}"
    if isinstance(error, FileNotFoundError):
        return NotFound(
            f"reading {where}: no such bucket or object",
            hint="check the address; stores also say this of what these credentials may not see",
        )
    if kinds & {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "TokenRetrievalError"}:
        return Refused(
            f"reading {where}: no usable credentials were found ({what})",
            status=None,
            hint=_CREDENTIALS_HINT.get(scheme),
        )
    if isinstance(error, PermissionError) or forbidden or str(code) in ("401", "403"):
        return Refused(
            f"reading {where}: the store refused ({what})",
            status=401 if str(code) == "401" else 403,
            hint=f"these credentials may not list or read it, or are wrong: {_CREDENTIALS_HINT.get(scheme)}",
        )
    if isinstance(error, TimeoutError) or kinds & {"ReadTimeoutError", "ConnectTimeoutError", "ServerTimeoutError"}:
        return ServiceTimeout(f"reading {where}: no answer in time ({what})", hint="run again, or with fewer --jobs")
    if isinstance(error, ConnectionError) or kinds & {"ConnectionError", "ClientConnectionError"}:
        return Unreachable(f"reading {where}: the store could not be reached ({what})", hint=_endpoint_hint(scheme))
    return ServiceError(f"reading {where}: the store's client failed ({what}: {getattr(error, 'strerror', None)})")


def _endpoint_hint(scheme: str) -> str | None:
    return "check the network, AWS_REGION and AWS_ENDPOINT_URL" if scheme == "s3" else "check the network"
