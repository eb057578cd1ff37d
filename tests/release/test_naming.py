from __future__ import annotations

import re

import pytest

from kvrelease.release.naming import kv_name


def test_name_is_the_digest_in_base32() -> None:
    assert kv_name("kvfp1-full/llama.1:" + "00" * 32) == "kv1-" + "a" * 32
    assert re.fullmatch(r"kv1-[a-z2-7]{32}", kv_name("kvfp1-full/all.1:" + "9f" * 32))


def test_other_digests_have_other_names() -> None:
    assert kv_name("kvfp1-full/llama.1:" + "00" * 32) != kv_name("kvfp1-full/llama.1:" + "01" + "00" * 31)


def test_a_fast_digest_has_no_name() -> None:
    with pytest.raises(AssertionError):
        kv_name("kvfp1-fast/llama.1:" + "00" * 32)
