"""What is said of adapters that differ between two releases."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from kvrelease.release.adapter import AdapterDigest
from kvrelease.release.adapter_diff import adapter_notes, adapter_reasons, replaced_adapters, what_changed
from kvrelease.release.comparison import compare_adapters
from kvrelease.release.fingerprint import Fingerprint
from tests.builders import fingerprint

A = AdapterDigest(
    name="support",
    digest="kvfp1-full/llama.1+adapter:00",
    kv_name="kv1-" + "a" * 32,
    content="kvfp1-adapter:00",
    source="./lora",
    tensors=2,
    bytes=8,
    config={"r": 2, "lora_alpha": 4},
    uncounted={"base_model_name_or_path": "acme/base", "revision": "0123", "peft_version": "0.1"},
    weights="kvfp1-full:00",
)


def changed(**changes: object) -> AdapterDigest:
    """Another adapter; its digests are others too."""
    other = {"digest": "kvfp1-full/llama.1+adapter:01", "content": "kvfp1-adapter:01"}
    return msgspec.structs.replace(A, **(other | changes))


def served(*adapters: AdapterDigest) -> Fingerprint:
    return fingerprint(adapters=adapters)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (changed(weights="kvfp1-full:01"), "its weights changed"),
        (
            changed(config={"r": 2, "lora_alpha": 8}),
            "its weights are the same; its configuration changed in lora_alpha 4 → 8",
        ),
        (
            changed(weights="kvfp1-full:01", uncounted=A.uncounted | {"revision": "4567"}),
            "its weights changed; it was made for another base: revision 0123 → 4567",
        ),
        (changed(weights=None), "its weights changed"),
        (
            changed(weights=None, config={"r": 4, "lora_alpha": 4}),
            "whether its weights changed a saved fingerprint does not say; its configuration changed in r 2 → 4",
        ),
        (changed(content=A.content), "the same adapter on another base"),
    ],
)
def test_in_what_an_adapter_is_another_one_is_said(other: AdapterDigest, said: str) -> None:
    assert what_changed(A, other) == said


def test_who_wrote_an_adapter_is_no_change_of_it() -> None:
    assert "another base" not in what_changed(A, changed(uncounted=A.uncounted | {"peft_version": "0.2"}))


def test_a_changed_adapter_invalidates_its_own_kv_and_is_told_once() -> None:
    old, new = served(A), served(changed(weights="kvfp1-full:01"))
    names = replaced_adapters(old, new, compare_adapters(old, new))
    assert names == ("support",)
    (reason,) = adapter_reasons(old, new, names)
    assert reason.startswith("the adapter 'support' is another one (its weights changed): KV made with it under")
    assert not any("is another one" in note for note in _notes(old, new, told=names))
    assert any("is another one (its weights changed)" in note for note in _notes(old, new))


def test_adapters_that_come_and_go_are_told_with_the_name_that_each_needs() -> None:
    added = _notes(served(), served(A))
    assert any("give each a namespace of its own ('support': kv1-aaaa" in note for note in added)
    assert any("new adapters: 'support'; if an engine served another one under such a name" in note for note in added)
    assert _notes(served(A), served()) == ("adapters that are gone: 'support'",)
    assert _notes(served(A), served(A)) == ()


def _notes(old: Fingerprint, new: Fingerprint, *, told: Sequence[str] = ()) -> tuple[str, ...]:
    return adapter_notes(old, new, compare_adapters(old, new), told=told)
