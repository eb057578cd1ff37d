"""The kv name: what a release's KV is called, from the files alone."""

from __future__ import annotations

import base64

KV_NAME_PREFIX = "kv1-"
# 32 base32 characters are 160 bits: names of two releases meet by chance after 2**80 releases.
_NAME_BYTES = 20


def kv_name(kv_digest: str) -> str:
    """`kv1-` and the first 160 bits of a full kv digest in lower-case base32.

    Args:
        kv_digest: `algorithm:hex`, such as `kvfp1-full/llama.1:…`. A fast digest has no name: it may miss a change.
    """
    algorithm, _, value = kv_digest.partition(":")
    assert "-full/" in algorithm, f"{algorithm} is not the algorithm of a full kv digest"
    return KV_NAME_PREFIX + base64.b32encode(bytes.fromhex(value)[:_NAME_BYTES]).decode().lower()
