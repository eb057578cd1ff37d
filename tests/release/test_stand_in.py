"""What lies in the place of a file that was never fetched."""

from __future__ import annotations

import pytest

from kvrelease.errors import DamagedFile
from kvrelease.release.stand_in import LEAST_BYTES, refuse_pointer, refuse_stand_in_for_weights

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
PAGES = (b"<!DOCTYPE html><html>", b"\n <html lang=en>", b"<?xml version='1.0'?><Error>")


@pytest.mark.parametrize("length", [LEAST_BYTES, 12, len(POINTER)])
def test_a_pointer_is_told_by_its_first_bytes_and_by_what_it_stands_for(length: int) -> None:
    with pytest.raises(DamagedFile, match="reading f: it is a Git LFS pointer, not the file itself") as caught:
        refuse_pointer(POINTER[:length], where="f")
    assert caught.value.hint == "git lfs pull, then run again"
    with pytest.raises(DamagedFile, match="not the weights"):
        refuse_stand_in_for_weights(bytearray(POINTER[:length]), where="f")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_no_weights(page: bytes) -> None:
    for head in (page, page[:LEAST_BYTES]):
        with pytest.raises(DamagedFile, match="an HTML or XML page, not weights"):
            refuse_stand_in_for_weights(head, where="f")


@pytest.mark.parametrize(
    "head", [b"", b"v", b"version", b'version "1"', b'{"a": 1}', b"GGUF\x03\0\0\0", b"\x80\x03\0\0\0\0\0\0{"]
)
def test_everything_else_is_for_its_reader(head: bytes) -> None:
    refuse_stand_in_for_weights(head, where="f")


def test_a_small_file_may_be_a_page() -> None:
    for page in PAGES:
        refuse_pointer(page, where="f")
