"""The journal on a real disk: what a run that was cut short leaves to the next."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvrelease.errors import DamagedFile, InputError
from kvrelease.prewarm.journal import MAX_JOURNAL_BYTES, Journal, JournalKey, Past

KEY = JournalKey(namespace="kv1-a-undeclared-e0", key_space=None, prompt_set="kvprompts1:00")
ONE, TWO = "http://one:8000", "http://two:8000"


def killed_after(path: Path) -> None:
    """Two prompts were answered and one was in flight on one replica, and one was answered on another."""
    with Journal(path, key=KEY) as journal:
        journal.follow(ONE, process="started:1")
        journal.follow(TWO, process="started:7")
        for prompt_id in ("a", "b", "c"):
            journal.begin(ONE, prompt_id)
        journal.finish(ONE, "b")
        journal.begin(TWO, "a")
        journal.finish(ONE, "a")
        journal.finish(TWO, "a")


def past(path: Path, replica: str = ONE, *, process: str | None = "started:1") -> Past:
    with Journal(path, key=KEY) as journal:
        return journal.past(replica, process=process)


def test_the_next_run_knows_what_was_answered_and_what_was_in_flight(tmp_path: Path) -> None:
    killed_after(tmp_path / "j")
    assert past(tmp_path / "j") == Past(done=frozenset("ab"), begun=frozenset("c"))
    assert past(tmp_path / "j", TWO, process="started:7") == Past(done=frozenset("a"))
    assert past(tmp_path / "j", "http://three:8000") == Past()


@pytest.mark.parametrize("process", ["started:2", None])
def test_another_process_has_another_cache(tmp_path: Path, process: str | None) -> None:
    killed_after(tmp_path / "j")
    assert past(tmp_path / "j", process=process) == Past(is_of_another_process=True)


def test_a_process_that_came_anew_starts_anew_and_the_other_replica_goes_on(tmp_path: Path) -> None:
    killed_after(tmp_path / "j")
    with Journal(tmp_path / "j", key=KEY) as journal:
        journal.follow(ONE, process="started:2")
        journal.follow(TWO, process="started:7")
        journal.finish(ONE, "c")
        journal.finish(TWO, "b")
    assert past(tmp_path / "j", process="started:2") == Past(done=frozenset("c"))
    assert past(tmp_path / "j", TWO, process="started:7") == Past(done=frozenset("ab"))


def test_what_a_flush_emptied_counts_no_more(tmp_path: Path) -> None:
    killed_after(tmp_path / "j")
    with Journal(tmp_path / "j", key=KEY) as journal:
        journal.follow(ONE, process="started:1", anew=True)
    assert past(tmp_path / "j") == Past()


def test_a_line_that_was_cut_off_is_as_if_it_had_not_been_written(tmp_path: Path) -> None:
    path = tmp_path / "j"
    killed_after(path)
    whole = path.read_bytes()
    for cut in range(whole.rindex(b"\n", 0, -1) + 1, len(whole)):
        path.write_bytes(whole[:cut])
        assert past(path) == Past(done=frozenset("ab"), begun=frozenset("c"))
        assert past(path, TWO, process="started:7") == Past(begun=frozenset("a"))
        with Journal(path, key=KEY) as journal:
            journal.follow(TWO, process="started:7")
            journal.finish(TWO, "z")
        assert past(path, TWO, process="started:7").done == {"z"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"replica": 7, "done": "a"}\n', "no replica 7"),
        (b"\xff\xfe\n", "line 6: not a line"),
        (b"[]\n", "line 6: not a line"),
        (b"x" * 100_000 + b"\n", "line 6: it is longer"),
    ],
)
def test_damage_names_the_line_and_the_next_step(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "j"
    with Journal(path, key=KEY) as journal:
        journal.follow(ONE, process="started:1")
        for prompt_id in ("a", "b", "c"):
            journal.finish(ONE, prompt_id)
    path.write_bytes(path.read_bytes() + data)
    with pytest.raises(DamagedFile, match=words) as caught:
        Journal(path, key=KEY)
    assert "delete it" in str(caught.value.hint)


@pytest.mark.parametrize(
    "data",
    [b"my notes\n", b"my notes", b"{", b'{"minified": "json"}', b'{"journal":"', b"\x00" * 100, b"x" * 100_000, b"\n"],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(data)
    with pytest.raises(DamagedFile) as caught:
        Journal(path, key=KEY)
    assert "left alone" in str(caught.value.hint)
    assert path.read_bytes() == data


def test_a_header_that_was_cut_off_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "j"
    killed_after(path)
    header = path.read_bytes().split(b"\n")[0]
    path.write_bytes(header[:-5])
    assert past(path) == Past()
    assert path.read_bytes() == header + b"\n"


def test_a_disk_that_is_full_at_the_start_leaves_no_half_of_a_header(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with _files_of_at_most(20), pytest.raises(InputError):
        Journal(path, key=KEY)
    assert path.read_bytes() == b""
    assert past(path) == Past()


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/null"), tmp_path):
        with pytest.raises(InputError, match="no regular file") as caught:
            Journal(path, key=KEY)
        assert "--journal" in str(caught.value.hint)


def test_another_file_that_took_the_place_of_a_journal_is_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, key=KEY) as journal:
        (tmp_path / "mine").write_text("mine", encoding="utf-8")
        (tmp_path / "mine").replace(path)
        journal.remove()
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("field", ["namespace", "key_space", "prompt_set"])
def test_a_journal_of_another_set_namespace_or_key_space_is_refused(tmp_path: Path, field: str) -> None:
    killed_after(tmp_path / "j")
    other = JournalKey(**{name: getattr(KEY, name) for name in KEY.__struct_fields__} | {field: "another"})
    assert other.file_name != KEY.file_name
    with pytest.raises(InputError, match="another prompt set"):
        Journal(tmp_path / "j", key=other)


def test_two_runs_of_one_set_do_not_share_a_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", key=KEY), pytest.raises(InputError, match="another kvrelease prewarm"):
        Journal(tmp_path / "j", key=KEY)
    past(tmp_path / "j")  # free again


def test_a_complete_run_leaves_nothing_behind(tmp_path: Path) -> None:
    with Journal(tmp_path / "state" / "j", key=KEY) as journal:
        journal.follow(ONE, process="started:1")
        journal.remove()
    assert list((tmp_path / "state").iterdir()) == []


@contextmanager
def _files_of_at_most(size_bytes: int) -> Iterator[None]:
    """A disk that is full: writing past the limit fails (Python ignores the signal that comes with it)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, key=KEY) as journal:
        journal.follow(ONE, process="started:1")
        with _files_of_at_most(path.stat().st_size + 20):
            for prompt_id in ("a", "b", "c"):
                journal.finish(ONE, prompt_id)
        assert journal.fault is not None
        assert "cannot be resumed" in journal.fault.message
    assert past(path).done == frozenset()


def test_no_salt_and_no_text_is_written(tmp_path: Path) -> None:
    killed_after(tmp_path / "j")
    text = (tmp_path / "j").read_text(encoding="utf-8")
    assert (tmp_path / "j").stat().st_mode & 0o077 == 0
    assert set(text.splitlines()[0].split('"')) >= {"kv1-a-undeclared-e0", "kvprompts1:00"}


def test_a_replica_that_joins_a_resumed_run_is_not_mixed_up_with_the_first(tmp_path: Path) -> None:
    killed_after(tmp_path / "j")
    with Journal(tmp_path / "j", key=KEY) as journal:
        journal.follow("http://three:8000", process="started:3")
        journal.follow(ONE, process="started:1")
        journal.finish(ONE, "c")
        journal.finish("http://three:8000", "z")
    assert past(tmp_path / "j").done == frozenset("abc")
    assert past(tmp_path / "j", "http://three:8000", process="started:3").done == frozenset("z")


def test_a_journal_larger_than_any_is_not_read_into_memory(tmp_path: Path) -> None:
    killed_after(tmp_path / "j")
    os.truncate(tmp_path / "j", MAX_JOURNAL_BYTES + 1)  # of holes
    with pytest.raises(DamagedFile, match="which no journal has"):
        Journal(tmp_path / "j", key=KEY)


def test_a_journal_of_another_format_is_not_read(tmp_path: Path) -> None:
    killed_after(tmp_path / "j")
    text = (tmp_path / "j").read_text(encoding="utf-8")
    (tmp_path / "j").write_text(text.replace("prewarm-journal.1", "prewarm-journal.9", 1), encoding="utf-8")
    with pytest.raises(DamagedFile, match="its format is not kvrelease"):
        Journal(tmp_path / "j", key=KEY)
