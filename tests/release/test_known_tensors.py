"""What stands for tensors that are not read."""

from __future__ import annotations

import pytest

from kvrelease.release.families import FAMILIES
from kvrelease.release.families.family import Family
from kvrelease.release.known_tensors import known_from_saved
from kvrelease.release.weights import StoredTensor


def stored(*names: str) -> list[StoredTensor]:
    return [
        StoredTensor(name=name, dtype="F32", shape=(1,), where="model.safetensors", offset=4 * at, size_bytes=4)
        for at, name in enumerate(names)
    ]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.rule)
def test_a_tied_copy_that_a_saved_fingerprint_left_out_is_its_embeddings_in_every_family(family: Family) -> None:
    for embeddings in family.embeddings:
        for output in family.outputs:
            names = (f"{embeddings}.weight", f"{output}.weight")
            found = known_from_saved(stored(*names), {names[0]: "ab" * 32}, fast=None, source="v1")
            assert found is not None
            assert found.payloads == dict.fromkeys(names, "ab" * 32)


def test_a_tensor_that_the_saved_fingerprint_lacks_is_not_known() -> None:
    names = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    saved = dict.fromkeys(names[:1], "ab" * 32)
    assert known_from_saved(stored(*names), saved, fast=None, source="v1") is None
    assert known_from_saved(stored("lm_head.weight"), {}, fast=None, source="v1") is None


def test_an_output_layer_of_its_own_stays_what_it_is() -> None:
    saved = {"transformer.wte.weight": "ab" * 32, "lm_head.weight": "cd" * 32}
    found = known_from_saved(stored(*saved), saved, fast=None, source="v1")
    assert found is not None
    assert found.payloads == saved


def test_which_of_two_embeddings_an_output_layer_copies_is_not_guessed() -> None:
    saved = {"transformer.wte.weight": "ab" * 32, "wte.weight": "cd" * 32}
    assert known_from_saved(stored(*saved, "lm_head.weight"), saved, fast=None, source="v1") is None
