"""The API for people who own their cache keys: what `docs/keys.md` promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import blake3
import numpy as np
import pytest
from safetensors.numpy import save_file

from kvrelease import artifacts
from kvrelease.engines.block_cache import KeyScheme
from kvrelease.engines.block_files import BlockFiles
from kvrelease.engines.blocks import Block, BlockShape
from kvrelease.errors import InputError, NotFound, UsageError
from kvrelease.keys import compute_model_fingerprint, make_versioned_block_keys, make_versioned_key
from kvrelease.release.loading import load_release
from tests.release.builders import config_json, tensors, write_release

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
NAMESPACE = "kv1-" + "a" * 32
HEAD_BYTES = 8 * 1024


def test_vectors_of_the_page() -> None:
    """A change here makes every stored entry unreachable, and needs another algorithm name."""
    found = {
        "blocks of 2, `1 2 3 4 5`": make_versioned_block_keys([1, 2, 3, 4, 5], NAMESPACE, block_tokens=2),
        "the same, salt `tenant-7`": make_versioned_block_keys(
            [1, 2, 3, 4, 5], NAMESPACE, block_tokens=2, salt="tenant-7"
        ),
        "blocks of 4, `0 4294967295 7 7`": make_versioned_block_keys([0, 2**32 - 1, 7, 7], NAMESPACE, block_tokens=4),
        "whole, `1 2 3`": (make_versioned_key([1, 2, 3], NAMESPACE),),
    }
    rows = re.findall(r"^\| (.+?) \| ([^|]+?) \|$", PAGE.read_text(), re.MULTILINE)
    published = {name: tuple(re.findall(r"[0-9a-f]{64}", cell)) for name, cell in rows if name in found}
    assert {name: tuple(key.partition("/")[2] for key in keys) for name, keys in found.items()} == published
    assert all(key.startswith(f"{NAMESPACE}/") for keys in found.values() for key in keys)


def test_two_releases_share_no_key_and_one_release_shares_its_prefix() -> None:
    prompt = list(range(40))
    keys = make_versioned_block_keys(prompt, NAMESPACE, block_tokens=16)
    assert len(keys) == 2
    assert make_versioned_block_keys([*prompt[:35], 99], NAMESPACE, block_tokens=16) == keys
    other = make_versioned_block_keys(prompt, "kv1-" + "b" * 32, block_tokens=16)
    assert not {key.partition("/")[2] for key in keys} & {key.partition("/")[2] for key in other}


def test_a_whole_key_is_that_of_one_block_and_never_of_a_longer_sequence() -> None:
    keys = {make_versioned_key([7] * count, NAMESPACE) for count in range(1, 9)}
    assert len(keys) == 8
    assert (
        make_versioned_key([1, 2, 3], NAMESPACE) == make_versioned_block_keys([1, 2, 3], NAMESPACE, block_tokens=3)[0]
    )


def test_the_in_process_engine_keys_its_blocks_by_the_same_algorithm() -> None:
    keys = KeyScheme(namespace=NAMESPACE).block_keys([1, 2, 3, 4], block_tokens=2, salt="s")
    assert tuple(f"{NAMESPACE}/{key.hex()}" for key in keys) == make_versioned_block_keys(
        [1, 2, 3, 4], NAMESPACE, block_tokens=2, salt="s"
    )


@pytest.mark.parametrize("namespace", ["", "../v1", "a/b", "-a", ".a", "a b", "kv1-é", "a" * 65, "kv1-a\n", "\x1b[31m"])
def test_a_namespace_that_is_unsafe_in_a_path_or_a_store_is_refused(namespace: str) -> None:
    with pytest.raises(UsageError, match="making keys in the namespace") as caught:
        make_versioned_key([1], namespace)
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([1, -1], "token 1 is -1"),
        ([2**32], "token 0 is 4294967296"),
        ([1.0], "token 0 is 1.0"),
        (["1"], "token 0 is '1'"),
        ([], "there are no tokens"),
    ],
)
def test_what_is_no_token_id_is_refused_by_its_place(tokens: list[int], reason: str) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        make_versioned_key(tokens, NAMESPACE)
    with pytest.raises(UsageError, match="blocks of 0 tokens"):
        make_versioned_block_keys([1], NAMESPACE, block_tokens=0)


def test_arrays_of_token_ids_are_taken_as_they_are() -> None:
    ids = np.array([1, 2, 3, 4], dtype=np.int64)
    assert make_versioned_block_keys(ids, NAMESPACE, block_tokens=2) == make_versioned_block_keys(  # type: ignore[arg-type]
        [1, 2, 3, 4], NAMESPACE, block_tokens=2
    )


def test_a_models_fingerprint_is_its_kv_name_from_directory_and_saved_artifact(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model")
    expected = load_release(model).release.kv_name
    saved = tmp_path / "kvrelease.json"
    artifacts.write(saved, load_release(model))
    assert compute_model_fingerprint(model) == compute_model_fingerprint(os.fspath(saved)) == expected
    assert re.fullmatch(r"kv1-[a-z2-7]{32}", expected or "")


def test_what_does_not_decide_kv_has_no_fingerprint(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "alone.safetensors")
    with pytest.raises(InputError, match="KV depends on that too"):
        compute_model_fingerprint(tmp_path / "alone.safetensors")
    with pytest.raises(NotFound):
        compute_model_fingerprint(tmp_path / "absent")


def file_heads(directory: Path) -> str:
    """The recipe that many caches use: a hash of the first bytes of each weight file."""
    hasher = blake3.blake3()
    for path in sorted(directory.glob("*.safetensors")):
        hasher.update(path.read_bytes()[:HEAD_BYTES])
    return hasher.hexdigest()


def fine_tune(directory: Path, *, seed: int, shards: int) -> Path:
    """A fine-tune of one base: vocabulary frozen, as is usual, and every layer's attention moved a little."""
    config = config_json(vocab_size=2048)
    weights = tensors()
    vocabulary = np.random.default_rng(7).standard_normal((2048, 8)).astype(np.float32)
    moved = np.random.default_rng(seed)
    for name in sorted(weights):
        if name in ("lm_head.weight", "model.embed_tokens.weight"):
            weights[name] = vocabulary
        elif "self_attn" in name:
            weights[name] = weights[name] + moved.normal(0, 0.01, weights[name].shape).astype(np.float32)
    return write_release(directory, weights, config=config, shards=shards)


def test_two_fine_tunes_with_equal_file_heads_get_different_keys(tmp_path: Path) -> None:
    """Geometry, names, configuration and the first 8 KiB of each file agree; only the weights further in differ.

    Equal structure read as "compatible": https://github.com/antirez/ds4/issues/805
    """
    one, other = (fine_tune(tmp_path / f"tune-{seed}", seed=seed, shards=1) for seed in (1, 2))
    heads = [(path / "model.safetensors").read_bytes()[:HEAD_BYTES] for path in (one, other)]
    assert len(heads[0]) == HEAD_BYTES
    assert heads[0] == heads[1]
    assert file_heads(one) == file_heads(other)  # the recipe sees one model
    names = [compute_model_fingerprint(path) for path in (one, other)]
    assert names[0] != names[1]
    assert make_versioned_key([1, 2, 3], names[0]) != make_versioned_key([1, 2, 3], names[1])


def test_kv_that_one_model_stored_is_not_found_by_another(tmp_path: Path) -> None:
    """A file of KV that carries no producer loads silently into any model of that geometry:
    https://github.com/MemTensor/MemOS/issues/2300
    """
    shape = BlockShape(layers=1, kv_heads=1, tokens=4, head_dim=2, dtype="float32")
    block = Block(shape=shape, keys=b"k" * shape.half_bytes, values=b"v" * shape.half_bytes)
    prompt = list(range(8))

    def found(model: Path) -> int:
        namespace = compute_model_fingerprint(model)
        keys = make_versioned_block_keys(prompt, namespace, block_tokens=shape.tokens)
        store = BlockFiles(tmp_path / "store")
        hits = 0
        for key in (bytes.fromhex(key.partition("/")[2]) for key in keys):
            if store.read(key, shape) is None:
                store.write(key, block)
            else:
                hits += 1
        return hits

    one, other = (fine_tune(tmp_path / f"tune-{seed}", seed=seed, shards=1) for seed in (1, 2))
    assert [found(one), found(one), found(other), found(other), found(one)] == [0, 2, 0, 2, 2]


def test_resharding_changes_the_file_heads_and_not_the_fingerprint(tmp_path: Path) -> None:
    """The recipe errs the other way too: the same model, saved in another number of files, loses its cache."""
    one, many = (fine_tune(tmp_path / f"shards-{shards}", seed=1, shards=shards) for shards in (1, 3))
    assert file_heads(one) != file_heads(many)
    assert compute_model_fingerprint(one) == compute_model_fingerprint(many)


def test_importing_the_api_is_light() -> None:
    heavy = "torch transformers scipy sqlalchemy httpx numpy msgspec rich typer yaml kvrelease.release"
    code = (
        "import sys\n"
        "from kvrelease.keys import compute_model_fingerprint, make_versioned_block_keys, make_versioned_key\n"
        "make_versioned_key([1], 'kv1-x')\n"
        f"sys.exit(', '.join(sorted(set('{heavy}'.split()) & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
