"""The index of a checkpoint in several files: which tensor lies in which shard."""

from __future__ import annotations

from pathlib import PurePosixPath

from kvrelease.errors import DamagedFile
from kvrelease.release.small_files import read_json_object
from kvrelease.release.source import SourceFile

INDEX_NAME = "model.safetensors.index.json"
# Of Mistral's own layout.
CONSOLIDATED_INDEX_NAME = "consolidated.safetensors.index.json"


def read_weight_map(index: SourceFile) -> dict[str, str]:
    """The index's `tensor -> shard`, no shard outside the release; one spelling of each.

    Raises:
        DamagedFile: it is no index, or names a file outside the release.
        InputError: it cannot be read.
    """
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DamagedFile(f"reading {index.where}: it has no weight_map")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard:
            raise DamagedFile(f"reading {index.where}: tensor {name!r} is in no file")
    spelt: dict[str, str] = {}  # tens of thousands of tensors lie in a few hundred shards
    for shard in dict.fromkeys(weight_map.values()):
        path = PurePosixPath(shard)
        if path.is_absolute() or ".." in path.parts or "\\" in shard or "\0" in shard:
            name = next(name for name, where in weight_map.items() if where == shard)
            raise DamagedFile(f"reading {index.where}: tensor {name!r} points outside the directory: {shard!r}")
        spelt[shard] = path.as_posix()
    return {name: spelt[shard] for name, shard in weight_map.items()}
