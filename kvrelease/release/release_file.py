"""The files of a release as rows of its fingerprint: which there are, how large, and what for."""

from __future__ import annotations

import enum

import msgspec

from kvrelease.errors import InputError
from kvrelease.printable import is_utf8
from kvrelease.release.source import SourceFile


class FileRole(enum.StrEnum):
    """What a file of a release is for."""

    WEIGHTS = "weights"
    INDEX = "index"
    CONFIG = "config"
    TOKENIZER = "tokenizer"
    TEMPLATE = "template"
    GENERATION = "generation"
    CODE = "code"
    EXTRA = "extra"


class ReleaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a release.

    Attributes:
        path: relative to the release.
        bytes: size.
        role: what it is for; `extra` is weights that are not loaded.
    """

    path: str
    bytes: int
    role: FileRole


def release_file(file: SourceFile, role: FileRole) -> ReleaseFile:
    """The row of a file.

    Raises:
        InputError: it is absent, no regular file, or of a name that neither digests nor artifacts can hold.
        ServiceError: the store did not answer properly.
    """
    return row_of(file, role, size_bytes=file.identity().size_bytes)


def row_of(file: SourceFile, role: FileRole, *, size_bytes: int) -> ReleaseFile:
    """The row of a file whose size is known.

    Raises:
        InputError: neither digests nor artifacts can hold its name.
    """
    if not is_utf8(file.name):
        raise InputError(f"reading {file.where}: its name is not valid UTF-8", hint="rename that file")
    return ReleaseFile(path=file.name, bytes=size_bytes, role=role)
