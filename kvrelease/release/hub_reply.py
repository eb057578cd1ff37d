"""What the Hub's answers mean: file lists, ranges, refusals, and whatever its HTTP client raises.

Sources: huggingface_hub 2.4.0, hf_api.py (`RepoFile`, `ModelInfo`), utils/_http.py (`hf_raise_for_status`:
X-Error-Code, X-Error-Message), file_download.py (`get_hf_file_metadata`: X-Linked-Etag).
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from kvrelease.errors import (
    InputError,
    KvreleaseError,
    NotFound,
    Refused,
    ServiceTimeout,
    UnexpectedReply,
    Unreachable,
)

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)\Z")
_SIGN_IN = "set HF_TOKEN to a token that may read the model (or `hf auth login`)"

T = TypeVar("T")


class BrokenOff(UnexpectedReply):
    """An answer that ended before its end: asking again may help."""


class LfsFile(msgspec.Struct, frozen=True, kw_only=True):
    """A large file.

    Attributes:
        oid: SHA-256 of its content, hex.
    """

    oid: str


class HubEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a commit's tree.

    Attributes:
        type: `file` or `directory`.
        path: in the repository.
        oid: of the git object.
        size: bytes, of the content even where git has a pointer.
        lfs: where the content lies outside git.
    """

    type: str
    path: str
    oid: str
    size: int = 0
    lfs: LfsFile | None = None

    @property
    def content_id(self) -> str:
        """What the Hub calls this content: SHA-256 of a large file, git's object id of a small one."""
        return self.lfs.oid if self.lfs is not None else self.oid


def check_content_id(response: Any, entry: HubEntry, *, where: str) -> None:
    """The answer must be of the content that the file list names.

    Raises:
        UnexpectedReply: it is of another.
    """
    served = str(response.headers.get("X-Linked-Etag") or "").removeprefix("W/").strip('"')
    if served and served != entry.content_id:
        raise UnexpectedReply(
            f"reading {where}: the Hub serves content {served}, its own list of files says {entry.content_id}",
            hint="a mirror or proxy keeps an older version: ask the Hub itself (unset HF_ENDPOINT)",
        )


def check_range(response: Any, offset: int, end: int, *, size_bytes: int, where: str) -> None:
    """The answer must be the range that was asked for.

    Raises:
        UnexpectedReply: it is a page, another range, or the whole file.
    """
    if str(response.headers.get("Content-Type", "")).startswith("text/html"):
        raise UnexpectedReply(
            f"reading {where}: an HTML page came instead of the file", hint="look at proxies and HF_ENDPOINT"
        )
    if response.status_code == 200 and (offset, end) == (0, size_bytes):
        return
    found = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    if response.status_code != 206 or found is None:
        raise UnexpectedReply(
            f"reading {where}: the server does not serve byte ranges (HTTP {response.status_code})",
            hint="download the model, and give its directory",
        )
    if int(found[1]) != offset or found[3] not in ("*", str(size_bytes)):
        raise UnexpectedReply(
            f"reading {where}: asked for bytes {offset} to {end} of {size_bytes}, the answer is {found[0]!r}"
        )


def body(response: Any, limit_bytes: int, *, where: str) -> bytes:
    """The answer's bytes, read no further than the limit.

    Raises:
        UnexpectedReply: there are more.
    """
    data = bytearray()
    for chunk in response.iter_bytes():
        data += chunk
        if len(data) > limit_bytes:
            raise UnexpectedReply(f"reading {where}: the answer has more than {limit_bytes} bytes")
    return bytes(data)


def decoded(data: bytes, kind: type[T], *, where: str) -> T:
    """The JSON in an answer, as what it should be.

    Raises:
        UnexpectedReply: it is something else.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        what = "an HTML page" if data.lstrip()[:1] == b"<" else f"not what the Hub answers ({error})"
        raise UnexpectedReply(f"reading {where}: {what} came", hint="look at proxies and HF_ENDPOINT") from error


def refusal(response: Any, *, where: str) -> KvreleaseError:
    """What a status of 400 and more means, told by the Hub's own headers as huggingface_hub reads them."""
    status = int(response.status_code)
    text, hint = f"the Hub answered HTTP {status}", "run again later"
    match response.headers.get("X-Error-Code"), status:
        case "RevisionNotFound", _:
            return NotFound(f"reading {where}: the model has no such revision", hint="give a branch, a tag or a commit")
        case "RepoNotFound", _:
            return NotFound(
                f"reading {where}: no such model, or a private one (HTTP {status})",
                hint=f"check the name; for a private model {_SIGN_IN}",
            )
        case "GatedRepo", _:
            text = f"the model is gated (HTTP {status})"
            hint = f"accept its terms on its page, then {_SIGN_IN}"
        case _, 404:
            return NotFound(f"reading {where}: the Hub has no such file", hint="check the name, and HF_ENDPOINT")
        case _, 401 | 403:
            known = response.headers.get("X-Error-Message") != "Invalid credentials in Authorization header"
            text, hint = f"the Hub {'refused' if known else 'does not know the token'} (HTTP {status})", _SIGN_IN
        case _, 429:
            hint = "wait, or set HF_TOKEN: signed-in users may ask more often"
        case _:
            pass
    return Refused(f"reading {where}: {text}", status=status, hint=hint)


def translate(error: Exception, *, where: str, endpoint: str) -> KvreleaseError:
    """An error of ours for whatever the HTTP client raises: httpx or httpx2, so told by the classes' names."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "OfflineModeIsEnabled" in kinds:
        return InputError(f"reading {where}: offline mode is on", hint="unset HF_HUB_OFFLINE")
    if kinds & {"TimeoutException", "TimeoutError"}:
        return ServiceTimeout(f"reading {where}: {endpoint} did not answer in time", hint="run again")
    if kinds & {"RemoteProtocolError", "DecodingError", "ReadError"}:
        return BrokenOff(f"reading {where}: the answer broke off ({type(error).__name__})", hint="run again")
    if kinds & {"TransportError", "ConnectionError"}:
        return Unreachable(
            f"reading {where}: {endpoint} could not be reached ({type(error).__name__})",
            hint="check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 reads what the local cache has",
        )
    return UnexpectedReply(f"reading {where}: {endpoint} could not be asked ({type(error).__name__})")
