"""The names of our digests, each of which pins every parameter of how the digest was made. Pure.

`kvfp1` is frozen (docs/fingerprint.md): whatever would give other bytes for the same release takes another name here,
so that digests of two makings are never equal, and never compared.
"""

from __future__ import annotations

# Of the encoding; all names begin with it.
EDITION = "kvfp1"

# Every byte of every tensor, and samples of them.
FULL_ALGORITHM = f"{EDITION}-full"
FAST_ALGORITHM = f"{EDITION}-fast"
# In front of one tensor's dtype, shape and bytes.
PAYLOAD_PURPOSE = f"{EDITION} payload"
CONFIG_ALGORITHM = f"{EDITION}-config"
TOKENIZER_ALGORITHM = f"{EDITION}-tokenizer"
TEMPLATE_ALGORITHM = f"{EDITION}-template"
GENERATION_ALGORITHM = f"{EDITION}-generation"
ADAPTER_ALGORITHM = f"{EDITION}-adapter"
ADAPTER_CONFIG_ALGORITHM = f"{EDITION}-adapter-config"
STORED_ALGORITHM = f"{EDITION}-stored"
# Of tensors that were not read, in a diff alone: what a place's own hashes of their files prove, and what headers do.
STATED_ALGORITHM = f"{EDITION}-stated"
HEADERS_ALGORITHM = f"{EDITION}-headers"


def name_of(digest: str) -> str:
    """The algorithm's name of an `algorithm:hex`."""
    return digest.partition(":")[0]


def edition_of(digest: str) -> str:
    """The edition that made an `algorithm:hex`, such as `kvfp1` of `kvfp1-full/llama.1:…`."""
    return name_of(digest).partition("-")[0]
