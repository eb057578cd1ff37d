from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.engines.address import parse_address
from kvrelease.errors import InputError, KvreleaseError, NotFound, UsageError
from kvrelease.fleet.listed import MAX_FILE_BYTES, ListedReplica, distinct, listed_replica, read_replicas

A = parse_address("http://a:8000")
B = parse_address("http://b:8000")


def read(path: Path, text: str) -> tuple[ListedReplica, ...]:
    path.write_text(text, encoding="utf-8")
    return read_replicas(path)


def test_text_has_one_url_a_line_and_comments(tmp_path: Path) -> None:
    text = "# the first rack\nhttp://a:8000/v1\n\n  dns+http://b:8000   # all pods\n"
    assert read(tmp_path / "replicas.txt", text) == (
        ListedReplica(address=A),
        ListedReplica(address=B, is_name=True),
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.yaml", "- http://a:8000\n- {url: 'http://b:8000', rank: 1, headers: {X-Pod: '7'}}\n"),
        ("r.json", '["http://a:8000", {"url": "http://b:8000", "rank": 1, "headers": {"X-Pod": "7"}}]'),
    ],
)
def test_a_list_has_urls_and_objects(tmp_path: Path, name: str, text: str) -> None:
    assert read(tmp_path / name, text) == (
        ListedReplica(address=A),
        ListedReplica(address=B, rank=1, headers={"X-Pod": "7"}),
    )


@pytest.mark.parametrize(
    ("name", "text", "kind", "said"),
    [
        ("r.txt", "", InputError, "no replica"),
        ("r.txt", "# nothing\n", InputError, "no replica"),
        ("r.txt", "http://a\na:8000\n", UsageError, "line 2"),
        ("r.txt", "http://me:secret@a\n", UsageError, "line 1"),
        ("r.yaml", "url: http://a\n", UsageError, "list"),
        ("r.yaml", "- {url: http://a, port: 8000}\n", UsageError, "unknown key"),
        ("r.yaml", "- {url: http://a, rank: -1}\n", UsageError, "rank"),
        ("r.yaml", "- {url: http://a, rank: true}\n", UsageError, "rank"),
        ("r.yaml", "- {url: http://a, headers: {X-Key: 7}}\n", UsageError, "headers"),
        ("r.yaml", "- [http://a]\n", UsageError, "entry 1"),
        ("r.json", '{"a": ', UsageError, "YAML"),
    ],
)
def test_what_is_no_list_of_replicas_says_where(
    tmp_path: Path, name: str, text: str, kind: type[KvreleaseError], said: str
) -> None:
    with pytest.raises(kind) as caught:
        read(tmp_path / name, text)
    assert str(tmp_path / name) in caught.value.message
    assert said in f"{caught.value.message} {caught.value.hint}"
    assert "secret" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    "text", ["a:8000,b:8000", "http://a,b", "http://me:secret@a/v1,http://b", "http://a; http://b", "http://a http://b"]
)
def test_a_list_in_one_text_is_told_how_each_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="several engines' URLs") as caught:
        listed_replica(text)
    assert "repeat --engine-url" in (caught.value.hint or "")
    assert "secret" not in caught.value.message


def test_a_comma_in_a_path_is_part_of_it() -> None:
    assert listed_replica("http://a/x,y").address.url == "http://a/x,y"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.txt"):
        read_replicas(tmp_path / "none.txt")


def test_a_replica_that_is_named_twice_is_one() -> None:
    replicas, repeated = distinct(
        [listed_replica(url) for url in ("http://a:8000", "http://b:8000", "http://a:8000/v1/")]
    )
    assert [one.address for one in replicas] == [A, B]
    assert repeated == ("http://a:8000",)


def test_ranks_of_one_address_are_replicas_of_their_own() -> None:
    replicas, repeated = distinct([listed_replica("http://a:8000", rank=rank) for rank in (0, 1, 0)])
    assert [one.rank for one in replicas] == [0, 1]
    assert repeated == ("http://a:8000",)


def test_a_replica_that_is_named_twice_with_other_headers_is_refused_without_them() -> None:
    with pytest.raises(UsageError) as caught:
        distinct([listed_replica("http://a", headers={"X": value}) for value in ("secret-1", "secret-2")])
    assert "secret" not in f"{caught.value.message} {caught.value.hint}"


def test_a_file_larger_than_any_list_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "replicas.txt"
    url = b"http://a:8000 #"
    path.write_bytes(url + b"x" * (MAX_FILE_BYTES - len(url)))
    assert read_replicas(path) == (ListedReplica(address=A),)
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(InputError, match="which no list of replicas is"):
        read_replicas(path)
