"""Which files of a release a fingerprint may read, by their names: one list for every place.

Whoever adds a file to a digest adds it here, through the reader's own list: a cached copy that lacks it must not be
taken for whole, and a file that appears while the release is read must be noticed.
"""

from __future__ import annotations

from kvrelease.release.adapter_config import ADAPTER_CONFIG_NAME
from kvrelease.release.model_config import CONFIG_NAME
from kvrelease.release.shard_index import CONSOLIDATED_INDEX_NAME, INDEX_NAME
from kvrelease.release.side_files import counts_for_kv
from kvrelease.release.tokenizer import is_beside_tokenizer, is_text_file
from kvrelease.release.weights import WEIGHT_SUFFIXES

CODE_SUFFIX = ".py"

_NAMES = frozenset({ADAPTER_CONFIG_NAME, CONFIG_NAME, INDEX_NAME, CONSOLIDATED_INDEX_NAME})


def is_read(name: str) -> bool:
    """Whether a file of this name (relative to the release) is read: it may count, or make a tokenizer."""
    return may_count(name) or is_beside_tokenizer(name)


def may_count(name: str) -> bool:
    """Whether a file of this name (relative to the release) may be in a digest.

    Weights do in sub-folders too, where an index names them; code where the configuration does.
    """
    if name.endswith(WEIGHT_SUFFIXES) or is_text_file(name):
        return True
    return name in _NAMES or is_code(name) or counts_for_kv(name)


def is_code(name: str) -> bool:
    """Whether it is code that a configuration may bring."""
    return "/" not in name and name.endswith(CODE_SUFFIX)
