"""Cache keys that carry the release: for people who own the keys of their KV cache.

    namespace = compute_model_fingerprint("models/v1.3")
    keys = make_versioned_block_keys(token_ids, namespace, block_tokens=16)

KV of another model, or of another version of this one, is then not found, instead of being found and wrong. How to use
it, the algorithm to the byte, and why hashes of file heads fail: docs/keys.md. Importing this module is light; what
reads model files is imported by the call that reads them.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence

from kvrelease.chain import MAX_TOKEN, block_keys
from kvrelease.errors import UsageError

# What is safe as a directory, an object's prefix, a Redis key and a part of a salt.
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


def compute_model_fingerprint(path: str | os.PathLike[str], *, jobs: int | None = None) -> str:
    """The kv name of a model: `kv1-` and 32 base32 characters that change whenever its KV may.

    Every byte of every tensor that KV depends on is hashed, and the configuration that it depends on; call it once per
    start, not once per request.

    Args:
        path: whatever the commands take as a release (docs/sources.md): a model directory, one weight file, `s3://…`,
            `gs://…`, `hf:org/name@revision`; or its saved fingerprint (`kvrelease.json`), which takes no time.
        jobs: threads to hash with; None for as many as are worthwhile here.

    Raises:
        NotFound: no such path, no weights, or shards that are absent.
        DamagedFile: a file is not what it claims.
        UnsupportedRelease: nothing that can be fingerprinted, or a fingerprint that an earlier algorithm made.
        InputError: a file cannot be read, changed meanwhile, or what was read cannot name KV: weights without their
            config.json, an adapter without its base, a fingerprint that is not a full one, code of another repository.
        UsageError: an address of no known form, or an empty one.
        MissingExtra: a library for such addresses is not installed.
        ServiceError: a store or the Hub did not answer properly, or refused.
    """
    from kvrelease.release.fingerprint import require_current, require_kv_name  # noqa: PLC0415 - keys alone need none
    from kvrelease.release.loading import load_release  # noqa: PLC0415
    from kvrelease.release.saved import require_files_beside  # noqa: PLC0415

    found = load_release(os.fspath(path), jobs=jobs)
    require_current(found)
    require_files_beside(found, what=os.fspath(path))
    return require_kv_name(found)


def make_versioned_key(tokens: Sequence[int], namespace: str, *, salt: str | None = None) -> str:
    """The key of the KV of one whole token sequence, where no part of it is ever reused alone.

    Args:
        tokens: [tokens] ids, at least one, each 0 … 2**32 - 1.
        namespace: whose KV it is: the kv name, or a namespace of `kvrelease namespace`.
        salt: a further key space, such as a tenant's; None for the common one.

    Returns:
        `<namespace>/<64 hex digits>`: entries of a release can be listed, and pruned, by their prefix.

    Raises:
        UsageError: no token, an id out of range, or a namespace that is not safe in keys.
    """
    if len(tokens) == 0:
        raise UsageError("making a key: there are no tokens, so there is no KV to name")
    return make_versioned_block_keys(tokens, namespace, block_tokens=len(tokens), salt=salt)[0]


def make_versioned_block_keys(
    tokens: Sequence[int], namespace: str, *, block_tokens: int, salt: str | None = None
) -> tuple[str, ...]:
    """The key of each full block of a prompt; each covers the namespace and all tokens up to the block's end.

    So the longest run of keys that a cache holds, from the first on, is the longest prefix whose KV may be read.

    Args:
        tokens: [tokens] ids, each 0 … 2**32 - 1.
        namespace: whose KV it is: the kv name, or a namespace of `kvrelease namespace`.
        block_tokens: tokens of a block, >= 1; part of every key.
        salt: a further key space, such as a tenant's; None for the common one.

    Returns:
        [len(tokens) // block_tokens] keys, `<namespace>/<64 hex digits>` each.

    Raises:
        UsageError: an id out of range, a block of no tokens, or a namespace that is not safe in keys.
    """
    if not _NAMESPACE.match(namespace):
        raise UsageError(
            f"making keys in the namespace {namespace!r}: it is not 1 to 64 of letters, digits, '.', '_' and '-' that "
            "begin with a letter or digit",
            hint="use the kv name that compute_model_fingerprint returns, or the text that kvrelease namespace prints",
        )
    if block_tokens < 1:
        raise UsageError(f"making keys of blocks of {block_tokens} tokens: a block holds at least one")
    try:
        keys = block_keys(tokens, block_tokens=block_tokens, namespace=namespace, salt=salt)
    except struct.error as error:
        raise UsageError(f"making keys: {_first_bad(tokens)}") from error
    return tuple(f"{namespace}/{key.hex()}" for key in keys)


def _first_bad(tokens: Sequence[int]) -> str:
    """Which token made packing fail."""
    for index, token in enumerate(tokens):
        if not isinstance(token, int) or not 0 <= token <= MAX_TOKEN:
            return f"token {index} is {token!r}, and an id is an integer of 0 … 2**32 - 1"
    return "the tokens are no flat sequence of integers of 0 … 2**32 - 1"
