"""The names of our digests, each of which pins every parameter of how the digest was made. Pure.

`kvfp1` is frozen (docs/fingerprint.md): whatever would give other bytes for the same release takes another name here,
so that digests of two makings are never equal, and never compared.
"""

from __future__ import annotations

FAMILY = "kvfp1"

# Every byte of every tensor, and samples of them.
FULL_ALGORITHM = f"{FAMILY}-full"
FAST_ALGORITHM = f"{FAMILY}-fast"
# In front of one tensor's dtype, shape and bytes.
PAYLOAD_PURPOSE = f"{FAMILY} payload"
CONFIG_ALGORITHM = f"{FAMILY}-config"
TOKENIZER_ALGORITHM = f"{FAMILY}-tokenizer"
TEMPLATE_ALGORITHM = f"{FAMILY}-template"
GENERATION_ALGORITHM = f"{FAMILY}-generation"
ADAPTER_ALGORITHM = f"{FAMILY}-adapter"
ADAPTER_CONFIG_ALGORITHM = f"{FAMILY}-adapter-config"
STORED_ALGORITHM = f"{FAMILY}-stored"
# Of tensors that were not read, in a diff alone: what a place's own hashes of their files prove, and what headers do.
STATED_ALGORITHM = f"{FAMILY}-stated"
HEADERS_ALGORITHM = f"{FAMILY}-headers"


def name_of(digest: str) -> str:
    """The algorithm's name of an `algorithm:hex`."""
    return digest.partition(":")[0]


def family_of(digest: str) -> str:
    """The family that an `algorithm:hex` belongs to, such as `kvfp1` of `kvfp1-full/llama.1:…`."""
    return name_of(digest).partition("-")[0]
