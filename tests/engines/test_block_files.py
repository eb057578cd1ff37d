"""Persisted blocks: whole, or not there."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from kvrelease.engines.block_files import BlockFiles, open_stored_blocks
from kvrelease.engines.blocks import Block, BlockShape
from kvrelease.errors import DamagedFile, InputError, UsageError

KEY = bytes(range(32))
OTHER_KEY = bytes(32)
SHAPE = BlockShape(layers=2, kv_heads=1, tokens=3, head_dim=4, dtype="float32")
SMALL = BlockShape(layers=1, kv_heads=1, tokens=1, head_dim=2, dtype="float32")
NUMBERS = np.arange(24, dtype=np.float32)


def block(shape: BlockShape = SHAPE) -> Block:
    half = np.random.default_rng(0).bytes(2 * shape.half_bytes)
    return Block(shape=shape, keys=half[: shape.half_bytes], values=half[shape.half_bytes :])


@pytest.fixture
def files(tmp_path: Path) -> BlockFiles:
    return BlockFiles(tmp_path / "store" / "deep")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn"])
def test_a_block_comes_back_as_it_was(files: BlockFiles, dtype: str) -> None:
    shape = BlockShape(layers=2, kv_heads=3, tokens=4, head_dim=5, dtype=dtype)
    files.write(KEY, block(shape))
    assert files.read(KEY, shape) == block(shape)
    assert [path.name for path in files.directory.iterdir()] == [f"{KEY.hex()}.safetensors"]


def test_the_file_is_safetensors_that_others_can_read(files: BlockFiles) -> None:
    files.write(KEY, Block(shape=SHAPE, keys=NUMBERS.tobytes(), values=(NUMBERS + 1).tobytes()))
    tensors = load_file(files.path(KEY))
    np.testing.assert_array_equal(tensors["keys"], NUMBERS.reshape(2, 1, 3, 4))
    np.testing.assert_array_equal(tensors["values"], NUMBERS.reshape(2, 1, 3, 4) + 1)


def test_an_absent_block_is_none_and_not_damage(files: BlockFiles) -> None:
    assert files.is_empty()
    assert files.read(KEY, SHAPE) is None
    files.write(KEY, block())
    assert not files.is_empty()
    assert files.read(OTHER_KEY, SHAPE) is None


def test_no_cut_and_no_flipped_byte_gives_other_content(files: BlockFiles) -> None:
    files.write(KEY, block(SMALL))
    path = files.path(KEY)
    whole = path.read_bytes()
    broken = [whole[:length] for length in range(0, len(whole), 3)]
    broken += [
        whole[:position] + bytes([whole[position] ^ mask]) + whole[position + 1 :]
        for position, mask in itertools.product(range(len(whole)), (0x01, 0x80))
    ]
    broken.append(whole + b"\0")
    for data in broken:
        path.write_bytes(data)
        try:
            found = files.read(KEY, SMALL)
        except DamagedFile:
            continue
        assert found == block(SMALL)  # a flip that JSON does not mind


def test_a_block_under_another_name_is_damage(files: BlockFiles) -> None:
    files.write(KEY, block())
    files.path(KEY).rename(files.path(OTHER_KEY))
    with pytest.raises(DamagedFile, match="checksum"):
        files.read(OTHER_KEY, SHAPE)


def test_another_shape_is_read_for_what_it_is_unless_it_is_too_large(files: BlockFiles) -> None:
    small = BlockShape(layers=1, kv_heads=1, tokens=3, head_dim=4, dtype="float32")
    files.write(KEY, block(small))
    assert files.read(KEY, SHAPE) == block(small)
    large = BlockShape(layers=64, kv_heads=8, tokens=3, head_dim=4, dtype="float32")
    files.write(KEY, block(large))
    with pytest.raises(DamagedFile, match="bytes"):
        files.read(KEY, SHAPE)


def test_links_pipes_and_directories_are_not_followed(files: BlockFiles, tmp_path: Path) -> None:
    files.write(OTHER_KEY, block())
    secret = tmp_path / "secret"
    files.path(OTHER_KEY).rename(secret)
    path = files.path(KEY)
    path.symlink_to(secret)
    with pytest.raises(DamagedFile):
        files.read(KEY, SHAPE)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DamagedFile, match="regular"):
        files.read(KEY, SHAPE)
    path.unlink()
    path.mkdir()
    with pytest.raises(DamagedFile):
        files.read(KEY, SHAPE)


def test_a_directory_that_cannot_be_made_or_written_is_an_input_error(files: BlockFiles, tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    with pytest.raises(InputError, match="file"):
        BlockFiles(occupied)
    files.directory.rmdir()
    with pytest.raises(InputError, match="deep"):
        files.write(KEY, block())


def test_another_process_reads_the_same_block(files: BlockFiles) -> None:
    files.write(KEY, block())
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from kvrelease.engines.block_files import BlockFiles, open_stored_blocks\n"
        "from kvrelease.engines.blocks import BlockShape\n"
        "shape = BlockShape(layers=2, kv_heads=1, tokens=3, head_dim=4, dtype='float32')\n"
        "block = BlockFiles(Path(sys.argv[1])).read(bytes(range(32)), shape)\n"
        "print((block.keys + block.values).hex())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(files.directory)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == (block().keys + block().values).hex()


def test_only_a_directory_of_blocks_and_nothing_else_is_opened(tmp_path: Path) -> None:
    name = f"{'0a' * 32}.safetensors"
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / name).write_bytes(b"")
    (tmp_path / "blocks" / ".block-x1.tmp").write_bytes(b"")
    assert open_stored_blocks(tmp_path / "blocks").directory == tmp_path / "blocks"
    for strange in ("model.safetensors", "config.json", "0a.safetensors"):
        (tmp_path / strange).mkdir()
        (tmp_path / strange / name).write_bytes(b"")
        (tmp_path / strange / strange).write_bytes(b"")
        with pytest.raises(UsageError, match="which is no block"):
            open_stored_blocks(tmp_path / strange)
    (tmp_path / "empty").mkdir()
    for place in ("empty", "missing"):
        with pytest.raises(UsageError, match=place):
            open_stored_blocks(tmp_path / place)
