"""In which part a tokenizer changed, from releases and from saved fingerprints."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kvrelease import artifacts
from kvrelease.release.details import Probe, TokenizerParts
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import Diff, KvStatus
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from kvrelease.release.pair import load_pair
from kvrelease.release.text_changes import ValueChange
from kvrelease.release.tokenizer_change import (
    MergesChange,
    TokenizerChange,
    TokenSample,
    VocabularyChange,
    compare_tokenizers,
)
from kvrelease.report.diff import diff_document
from kvrelease.report.terminal import render_text
from tests.release.builders import write_json, write_release
from tests.release.gguf_writer import STRING, array, small_model, write_gguf

VOCAB = {"a": 0, "b": 1, "c": 2, "ab": 3, " ": 4, "e": 5, "t": 6}


def write(directory: Path, *, vocab: dict[str, int] | None = None, **changes: object) -> Path:
    model = {"type": "BPE", "vocab": vocab or VOCAB, "merges": [["a", "b"]]}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "model": model, **changes}
    write_json(directory / "tokenizer.json", tokenizer)
    return directory


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write(write_release(tmp_path / "old"))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write(write_release(tmp_path / "new"))


def diff(old: Path, new: Path) -> Diff:
    pair = load_pair(old, new)
    return diff_fingerprints(pair.old, pair.new, texts=pair.texts)


def change(found: Diff) -> TokenizerChange:
    assert found.tokenizer is not None
    assert found.kv.status is KvStatus.VALID
    assert found.tokenizer.sentence in found.kv.notes[0]
    return found.tokenizer


def saved(what: Path, *, mode: Mode = Mode.FULL) -> Path:
    path = what.parent / f"{what.name}.json"
    artifacts.write(path, load_release(what, mode=mode))
    return path


def test_tokens_that_came_went_and_moved_are_counted_with_samples(old: Path, new: Path) -> None:
    write(new, vocab={"a": 1, "b": 0, "c": 2, "ab": 3, " ": 4, "e": 5, "x": 6})
    found = change(diff(old, new))
    assert found.parts == ("vocabulary",)
    assert found.vocabulary == VocabularyChange(
        added=1,
        removed=1,
        moved=2,
        samples=(
            TokenSample(token="x", old=None, new=6),
            TokenSample(token="t", old=6, new=None),
            TokenSample(token="a", old=0, new=1),
            TokenSample(token="b", old=1, new=0),
        ),
    )
    assert found.sentence.startswith(
        "the tokenizer changed in its vocabulary (1 added, 1 removed, 2 at another id); a fixed text becomes other "
        "token ids, from number "
    )


def test_saved_fingerprints_name_the_parts_and_compare_what_a_fixed_text_becomes(old: Path, new: Path) -> None:
    write(new, vocab=VOCAB | {"x": 7}, normalizer={"type": "Lowercase"})
    found = change(diff(saved(old), saved(new)))
    assert found.parts == ("vocabulary", "normalizer")
    assert (found.vocabulary, found.counts) == (None, {"vocabulary": (7, 8)})
    assert found.probe is not None
    assert not found.probe.is_equal
    assert "its vocabulary (7 → 8), its normalizer; a fixed text becomes other token ids" in found.sentence


def test_a_fixed_text_that_stays_what_it_was_is_told(old: Path, new: Path) -> None:
    write(new, vocab=VOCAB | {"never in the text": 7})
    found = change(diff(old, new))
    assert found.probe is not None
    assert (found.probe.is_equal, found.probe.first_difference) == (True, None)
    assert found.sentence.endswith(f"; a fixed text still becomes the same {found.probe.old} token ids")


def test_an_order_of_merges_is_told_as_such(old: Path, new: Path) -> None:
    merges = [["a", "b"], ["b", "c"]]
    vocab = VOCAB | {"bc": 7}
    write(old, model={"type": "BPE", "vocab": vocab, "merges": merges})
    write(new, model={"type": "BPE", "vocab": vocab, "merges": merges[::-1]})
    found = change(diff(old, new))
    assert found.merges == MergesChange(added=0, removed=0)
    assert "in its merges (their order);" in found.sentence


def test_added_tokens_and_settings_are_told_by_their_keys(old: Path, new: Path) -> None:
    token = {"id": 9, "content": "<s>", "special": True}
    write(old, added_tokens=[token])
    write(new, added_tokens=[token | {"special": False}])
    write_json(old / "tokenizer_config.json", {"bos_token": "<s>", "model_max_length": 10})
    write_json(new / "tokenizer_config.json", {"bos_token": "</s>", "model_max_length": 10})
    assert change(diff(old, new)).values == (
        ValueChange(key="added tokens: <s>: special", old=True, new=False),
        ValueChange(key="tokenizer_config.json: bos_token", old="<s>", new="</s>"),
    )


def test_another_notation_is_a_change_in_form_alone(old: Path, new: Path) -> None:
    text = json.loads((new / "tokenizer.json").read_text())
    text["model"]["merges"] = ["a b"]
    (new / "tokenizer.json").write_text(json.dumps(text))
    found = change(diff(old, new))
    assert found.parts == ()
    assert "in form only: every part that is read is the same" in found.sentence


def test_an_older_or_fast_fingerprint_does_not_say_in_which_part(old: Path, new: Path) -> None:
    write(new, vocab=VOCAB | {"x": 7})
    path = saved(old)
    older = json.loads(path.read_text())
    del older["details"]
    path.write_text(json.dumps(older))
    for side in (path, saved(old, mode=Mode.FAST)):
        found = diff(side, new).tokenizer
        assert found is not None
        assert found.sentence == "the tokenizer changed; a saved or fast fingerprint does not say in which part"


def test_a_tokenizer_on_one_side_is_told(old: Path, new: Path) -> None:
    (new / "tokenizer.json").unlink()
    assert change(diff(old, new)).sentence == "the tokenizer is gone"
    assert change(diff(new, old)).sentence == "the new release brings a tokenizer, the old one had none"


def test_a_format_that_is_not_read_is_named_and_not_called_the_same(old: Path, new: Path) -> None:
    for directory, data in ((old, b"\x0a\x01"), (new, b"\x0a\x02")):
        (directory / "tokenizer.json").unlink()
        (directory / "tokenizer.model").write_bytes(data)
    found = change(diff(old, new))
    assert found.parts == ("tokenizer.model",)
    assert found.not_read == (
        "tokenizer.model is compared as a whole: its format is not read",
        "what a fixed text becomes was not tried: only a tokenizer.json can be run",
    )
    assert found.sentence == "the tokenizer changed in its tokenizer.model; what a fixed text becomes was not compared"


def test_the_tokenizer_of_a_gguf_file_changes_by_key(tmp_path: Path) -> None:
    write_gguf(tmp_path / "old.gguf", small_model())
    tokens = array(STRING, ["a", "b", "ab", "e", ""])
    write_gguf(tmp_path / "new.gguf", small_model(tokenizer__ggml__tokens=tokens))
    found = change(diff(tmp_path / "old.gguf", tmp_path / "new.gguf"))
    assert found.parts == ("vocabulary",)
    assert "which tokens changed is not read" in found.not_read[0]


def test_a_tokenizer_that_the_library_refuses_is_still_taken_apart(old: Path, new: Path) -> None:
    for directory, kind in ((old, "One"), (new, "Two")):
        write(directory, normalizer={"type": kind})
    found = change(diff(old, new))
    assert found.parts == ("normalizer",)
    assert "what a fixed text becomes was not tried: the tokenizers library refuses it" in found.not_read[0]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the {} release's tokenizer.json could not be taken apart (Input data was truncated)"),
        (b'{"model": {"vocab": {"a', "the {} release's tokenizer.json could not be taken apart (Input data was trunc"),
        (b'{"model": {"vocab": null}}', "the {} release's tokenizer.json could not be taken apart ("),
        (None, "the {} release has no tokenizer.json, and no other vocabulary that is read"),
    ],
)
def test_what_is_not_read_has_no_parts_and_no_counts(old: Path, new: Path, data: bytes | None, why: str) -> None:
    for directory in (old, new):
        write_json(directory / "tokenizer_config.json", {"tokenizer_class": "X"})
    path = new / "tokenizer.json"
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    parts = None if data is None else ("tokenizer.json",)
    for age, pair in (("new", (old, new)), ("old", (new, old)), ("new", (saved(old), saved(new)))):
        found = diff(*pair)
        told = change(found)
        assert (told.parts, told.counts, told.vocabulary) == (parts, {}, None)
        assert not [value for value in told.values if value.key != "tokenizer.json"]
        assert told.lacks is not None
        assert told.lacks.startswith(why.format(age))
        assert told.sentence.endswith(
            "so what else changed in it is not known; what a fixed text becomes was not compared"
        )
        assert f"the tokenizer ({told.lacks})" in found.summary
        page = " ".join(render_text(diff_document(found), width=2000).split())
        known = "not known" if data is None else "tokenizer.json; what else is not known"
        assert f"parts of the tokenizer {known}: {told.lacks}" in page
        assert "the same: the files differ in form alone" not in page
    warnings = load_release(new).warnings
    told_by = [text for text in warnings if text.startswith("tokenizer.json could not be taken apart (")]
    assert len(told_by) == (data is not None)


def test_steps_that_only_an_engines_code_knows_are_not_called_none(old: Path, new: Path) -> None:
    (old / "tokenizer.json").unlink()
    write_json(old / "vocab.json", VOCAB)
    (old / "merges.txt").write_text("a b\nb c\n")
    write(new, pre_tokenizer={"type": "Whitespace"})
    found = change(diff(old, new))
    assert found.parts == ("merges",)
    assert found.values == ()
    assert found.lacks == "the old release has no tokenizer.json, and leaves its further steps to an engine's code"


def test_a_part_that_a_tokenizer_does_not_have_counts_none(old: Path, new: Path) -> None:
    write(new, model={"type": "Unigram", "vocab": [["a", -1.0]]})
    found = change(diff(old, new))
    assert found.counts == {"vocabulary": (7, 1), "merges": (1, None)}
    assert "its merges (1 → none)" in found.sentence


PARTS = TokenizerParts(algorithm="a1", parts={"merges": "0"}, counts={}, not_read=(), probe=None)


def compared(old: tuple[int, ...], new: tuple[int, ...], **changes: object) -> TokenizerChange:
    """Two tokenizers that make these ids of a text."""
    probe = Probe(text="t1", ids=new, library="tokenizers 1")
    sides = (Probe(text="t1", ids=old, library="tokenizers 1"), msgspec.structs.replace(probe, **changes))
    before, after = (msgspec.structs.replace(PARTS, parts={"merges": str(n)}, probe=p) for n, p in enumerate(sides))
    return compare_tokenizers(before, after, None)


def test_the_first_id_that_differs_is_counted_from_one_in_words() -> None:
    found = compared((1, 2, 3), (1, 2, 4, 5))
    assert found.probe is not None
    assert (found.probe.is_equal, found.probe.first_difference) == (False, 2)
    assert (found.probe.old_ids, found.probe.new_ids, found.probe.libraries) == ((3,), (4, 5), ())
    assert found.sentence.endswith("; a fixed text becomes other token ids, from number 3 on (3 → 4 ids)")


def test_ids_that_only_go_on_differ_where_the_shorter_ones_end() -> None:
    found = compared((1, 2), (1, 2, 3), library="tokenizers 2")
    assert found.probe is not None
    assert (found.probe.is_equal, found.probe.first_difference, found.probe.new_ids) == (False, 2, (3,))
    assert found.probe.libraries == ("tokenizers 1", "tokenizers 2")


def test_two_texts_and_two_ways_to_take_apart_are_not_compared() -> None:
    assert compared((1,), (2,), text="t2").probe is None
    other = msgspec.structs.replace(PARTS, algorithm="a2")
    assert compare_tokenizers(PARTS, other, None).parts is None


def test_merges_that_came_and_went_are_counted(old: Path, new: Path) -> None:
    vocab = VOCAB | {"bc": 7, "ca": 8}
    write(old, model={"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]})
    write(new, model={"type": "BPE", "vocab": vocab, "merges": [["b", "c"], ["c", "a"]]})
    assert change(diff(old, new)).merges == MergesChange(added=2, removed=1)


def test_a_step_is_told_as_a_whole_and_settings_by_key(old: Path, new: Path) -> None:
    """A step's keys mean nothing without its type, and the next release's step may be of another one."""
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    for after in (strip | {"strip_left": False}, {"type": "Lowercase"}):
        write(old, normalizer=strip)
        write(new, normalizer=after)
        assert change(diff(old, new)).values == (ValueChange(key="normalizer", old=strip, new=after),)
