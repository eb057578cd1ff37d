"""A directory of persisted blocks, one safetensors file each, as a connector below an engine keeps them.

The file of a key is its 64 hex digits and `.safetensors`: no name comes from outside. It holds three tensors: `keys`
and `values`, [layers, kv_heads, tokens, head_dim], and `checksum`, 32 bytes of BLAKE3 over key, shape and both.
Nothing in it says which model made the block, as in the stores of real engines.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import tempfile
from pathlib import Path

import msgspec
import safetensors
from blake3 import blake3

from kvrelease.engines.blocks import Block, BlockShape
from kvrelease.errors import DamagedFile, InputError, UsageError

SUFFIX = ".safetensors"
_BLOCK_NAME = re.compile(r"[0-9a-f]{64}\.safetensors|\.block-.*\.tmp|\.kvrelease-stamp\.json.*")
_HOW_TO_MAKE_ONE = "name a directory of blocks, as kvrelease demo --keep leaves one behind"
_CHECKSUM_BYTES = 32
# Our header takes about 250 bytes; a larger file than block + this is refused before it is read.
_MAX_HEADER_BYTES = 4096
_CODES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float8_e4m3fn": "F8_E4M3"}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


class _StoredTensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def open_stored_blocks(directory: Path) -> BlockFiles:
    """A directory that holds blocks already, and nothing else.

    Raises:
        UsageError: it is no such directory: a typing error must neither be judged as an empty cache nor be written to.
    """
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise UsageError(
            f"opening {directory} for cached blocks: {error.strerror or error}", hint=_HOW_TO_MAKE_ONE
        ) from error
    strange = [name for name in names if not _BLOCK_NAME.fullmatch(name)]
    if strange or not names:
        found = f"it holds {strange[0]!r}, which is no block" if strange else "it holds no block"
        raise UsageError(f"opening {directory} for cached blocks: {found}", hint=_HOW_TO_MAKE_ONE)
    return BlockFiles(directory)


class BlockFiles:
    """Blocks in one directory, which survive the process; written atomically, never wiped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"opening {directory} for cached blocks: {error.strerror or error}") from error

    def path(self, key: bytes) -> Path:
        """Where the block of a key is."""
        return self.directory / f"{key.hex()}{SUFFIX}"

    def is_empty(self) -> bool:
        """Whether no block is there."""
        return next(self.directory.glob(f"*{SUFFIX}"), None) is None

    def read(self, key: bytes, shape: BlockShape) -> Block | None:
        """The block of a key, None when there is none.

        Args:
            key: its key.
            shape: what is expected; it bounds what is read, and the block found may still differ.

        Raises:
            DamagedFile: something else than a whole block is there.
        """
        path = self.path(key)
        limit_bytes = 2 * shape.half_bytes + _CHECKSUM_BYTES + _MAX_HEADER_BYTES
        try:
            data = _read_regular(path, limit_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedFile(f"reading {path}: {error.strerror or error}") from error
        try:
            content = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
            tensors = msgspec.convert(content, dict[str, _StoredTensor])
        except (safetensors.SafetensorError, msgspec.ValidationError) as error:
            raise DamagedFile(f"reading {path}: not a block of KV ({error})") from error
        return _block(key, tensors, path)

    def write(self, key: bytes, block: Block) -> None:
        """Puts a block in place in one step; a reader sees the old file, the new one, or none.

        Raises:
            InputError: it could not be written.
        """
        path = self.path(key)
        try:
            handle, temporary = tempfile.mkstemp(dir=self.directory, prefix=".block-", suffix=".tmp")
            try:
                # No fsync: a file cut short by a power failure fails its checksum, and is a miss.
                with os.fdopen(handle, "wb") as file:
                    file.write(_encode(key, block))
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise InputError(
                f"writing a cached block to {self.directory}: {error.strerror or error}",
                hint="make room, or choose another directory",
            ) from error


def _read_regular(path: Path, limit_bytes: int) -> bytes:
    """The bytes of a file that is neither a link nor a pipe, nor too large to be a block."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if status.st_size > limit_bytes:
            raise OSError(f"{status.st_size} bytes, a block of the expected shape has at most {limit_bytes}")
        return file.read(limit_bytes)


def _block(key: bytes, tensors: dict[str, _StoredTensor], path: Path) -> Block:
    """The block in a file whose container is sound."""
    if set(tensors) != {"keys", "values", "checksum"}:
        raise DamagedFile(f"reading {path}: its tensors are {sorted(tensors)}")
    keys, values = tensors["keys"], tensors["values"]
    if (keys.dtype, keys.shape) != (values.dtype, values.shape) or len(keys.shape) != 4 or keys.dtype not in _DTYPES:
        raise DamagedFile(f"reading {path}: {keys.dtype} {keys.shape} and {values.dtype} {values.shape} are no block")
    layers, kv_heads, tokens, head_dim = keys.shape
    shape = BlockShape(layers=layers, kv_heads=kv_heads, tokens=tokens, head_dim=head_dim, dtype=_DTYPES[keys.dtype])
    block = Block(shape=shape, keys=keys.data, values=values.data)
    if tensors["checksum"].data != _checksum(key, block):
        raise DamagedFile(f"reading {path}: its checksum does not fit its content or its name")
    return block


def _checksum(key: bytes, block: Block) -> bytes:
    """Of all that a reader relies on; every part has a fixed length, or one that those before it fix.

    Of a dtype's code the first four letters, by which all that we write differ.
    """
    frame = struct.pack("<4s4Q", _CODES[block.shape.dtype].encode(), *block.shape.dimensions)
    return blake3(key + frame).update(block.keys).update(block.values).digest()


def _encode(key: bytes, block: Block) -> bytes:
    """A safetensors file, written by hand because the library's raw writer changed its arguments between versions.

    Source: https://github.com/huggingface/safetensors#format - 8 bytes little-endian header length, JSON header padded
    with spaces to 8 bytes, then the tensors without gaps.
    """
    parts = {
        "keys": (_CODES[block.shape.dtype], block.shape.dimensions, block.keys),
        "values": (_CODES[block.shape.dtype], block.shape.dimensions, block.values),
        "checksum": ("U8", (_CHECKSUM_BYTES,), _checksum(key, block)),
    }
    header: dict[str, object] = {}
    offset = 0
    for name, (code, shape, data) in parts.items():
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *(data for _, _, data in parts.values())])
