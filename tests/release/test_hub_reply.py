"""What the Hub's answers mean, told from answers as its HTTP client holds them."""

from __future__ import annotations

import httpx
import pytest

from kvrelease.errors import (
    InputError,
    KvreleaseError,
    NotFound,
    Refused,
    ServiceTimeout,
    UnexpectedReply,
    Unreachable,
)
from kvrelease.release.hub_reply import (
    BrokenOff,
    HubEntry,
    LfsFile,
    body,
    check_content_id,
    check_range,
    decoded,
    refusal,
    translate,
)

SMALL = HubEntry(type="file", path="config.json", oid="a" * 40, size=10)
LARGE = HubEntry(type="file", path="m.safetensors", oid="b" * 40, size=10, lfs=LfsFile(oid="c" * 64))


def ranged(text: str, *, status: int = 206) -> httpx.Response:
    return httpx.Response(status, headers={"Content-Range": text})


def check(response: httpx.Response, offset: int = 100, end: int = 200) -> None:
    check_range(response, offset, end, size_bytes=1000, where="x")


def test_the_range_that_was_asked_for_is_taken() -> None:
    check(ranged("bytes 100-199/1000"))
    check(ranged("bytes 100-199/*"))  # a cache in between need not know the size
    check(ranged("bytes 100-149/1000"))  # fewer bytes: whoever counts them asks again
    check(httpx.Response(200), 0, 1000)  # all of the file, which is what was asked for


@pytest.mark.parametrize("content_range", ["bytes 0-99/1000", "bytes 101-200/1000", "bytes 100-199/999"])
def test_another_range_or_one_of_another_file_is_refused(content_range: str) -> None:
    with pytest.raises(UnexpectedReply, match=f"asked for bytes 100 to 200 of 1000, the answer is '{content_range}'"):
        check(ranged(content_range))


@pytest.mark.parametrize(
    "response",
    [httpx.Response(200), ranged("bytes 100-199/1000", status=200), ranged("items 1-2/3"), httpx.Response(206)],
)
def test_an_answer_without_the_range_is_refused(response: httpx.Response) -> None:
    with pytest.raises(UnexpectedReply, match="does not serve byte ranges"):
        check(response)


def test_a_page_in_place_of_the_file_is_told() -> None:
    page = httpx.Response(206, headers={"Content-Type": "text/html", "Content-Range": "bytes 100-199/1000"})
    with pytest.raises(UnexpectedReply, match="an HTML page came instead of the file"):
        check(page)


@pytest.mark.parametrize(("entry", "content_id"), [(SMALL, "a" * 40), (LARGE, "c" * 64)])
def test_the_content_is_that_of_the_list_of_files(entry: HubEntry, content_id: str) -> None:
    assert entry.content_id == content_id
    for served in (f'"{content_id}"', f'W/"{content_id}"', content_id, ""):
        check_content_id(httpx.Response(302, headers={"X-Linked-Etag": served}), entry, where="x")
    with pytest.raises(UnexpectedReply, match="serves content dddd"):
        check_content_id(httpx.Response(302, headers={"X-Linked-Etag": '"dddd"'}), entry, where="x")


def test_an_answer_is_read_no_further_than_its_limit() -> None:
    assert body(httpx.Response(200, content=b"abc"), 3, where="x") == b"abc"
    with pytest.raises(UnexpectedReply, match="more than 2 bytes"):
        body(httpx.Response(200, content=b"abc"), 2, where="x")


def test_an_answer_is_what_it_should_be_or_said_not_to_be() -> None:
    assert decoded(b'[{"type": "file", "path": "a", "oid": "b", "new": 1}]', list[HubEntry], where="x")[0].path == "a"
    for data, what in ((b" <html>", "an HTML page came"), (b'[{"path": 1}]', "not what the Hub answers")):
        with pytest.raises(UnexpectedReply, match=what):
            decoded(data, list[HubEntry], where="x")


@pytest.mark.parametrize(
    ("status", "headers", "kind", "reason"),
    [
        (404, {"X-Error-Code": "RevisionNotFound"}, NotFound, "no such revision"),
        (401, {"X-Error-Code": "RepoNotFound"}, NotFound, "no such model, or a private one"),
        (404, {"X-Error-Code": "EntryNotFound"}, NotFound, "no such file"),
        (403, {"X-Error-Code": "GatedRepo"}, Refused, "the model is gated"),
        (
            401,
            {"X-Error-Message": "Invalid credentials in Authorization header"},
            Refused,
            "the Hub does not know the token",
        ),
        (403, {}, Refused, "the Hub refused"),
        (429, {}, Refused, "HTTP 429"),
        (500, {}, Refused, "HTTP 500"),
    ],
)
def test_a_refusal_is_told_by_the_hubs_own_words(
    status: int, headers: dict[str, str], kind: type[KvreleaseError], reason: str
) -> None:
    found = refusal(httpx.Response(status, headers=headers), where="hf:acme/support")
    assert type(found) is kind
    assert found.message.startswith("reading hf:acme/support: ")
    assert reason in found.message
    assert found.hint
    assert not isinstance(found, Refused) or found.status == status


class OfflineModeIsEnabled(ConnectionError):
    """As huggingface_hub 2.4.0, errors.py."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OfflineModeIsEnabled(), InputError),
        (httpx.ReadTimeout(""), ServiceTimeout),
        (httpx.ConnectTimeout(""), ServiceTimeout),
        (httpx.RemoteProtocolError(""), BrokenOff),
        (httpx.ReadError(""), BrokenOff),
        (httpx.ConnectError(""), Unreachable),
        (ConnectionError(), Unreachable),
        (ValueError("https://hub?token=s3cret"), UnexpectedReply),
    ],
)
def test_whatever_the_client_raises_is_an_error_of_ours_without_its_text(
    error: Exception, kind: type[KvreleaseError]
) -> None:
    found = translate(error, where="x", endpoint="https://hub.example")
    assert type(found) is kind
    assert "s3cret" not in f"{found.message} {found.hint}"
