"""What is asked of the Hub over the network: a revision's commit, its file list, and ranges of its files.

Requests go through huggingface_hub's own session, so that its proxies, certificates and token apply; the token follows
no redirect to another host. Sources: huggingface_hub 2.4.0, hf_api.py (`model_info`, `_iter_repo_tree_pages`),
utils/_pagination.py (Link header) and file_download.py (the redirect of large files to another host).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from kvrelease import __version__
from kvrelease.errors import KvreleaseError, NotFound, Refused, ServiceTimeout, UnexpectedReply, Unreachable
from kvrelease.release.hub_cache import is_commit
from kvrelease.release.hub_reply import (
    BrokenOff,
    HubEntry,
    body,
    check_content_id,
    check_range,
    decoded,
    refusal,
    translate,
)
from kvrelease.release.small_files import MAX_JSON_BYTES
from kvrelease.release.source import HUB_PREFIX
from kvrelease.release.workers import pause

_TIMEOUT_S = 30.0
# A name is asked for twice, so that a wrong address is told soon; a range in the middle of 100 GB is worth a wait.
_NAME_ATTEMPTS = 2
_RANGE_ATTEMPTS = 5
_MAX_PAGES = 1000  # of 1000 files each
_MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)

T = TypeVar("T")


class _Commit(msgspec.Struct, frozen=True, kw_only=True):
    sha: str


class HubClient:
    """Asks one Hub about one model."""

    def __init__(self, *, endpoint: str, model: str, first_wait_s: float = 1.0) -> None:
        """Args are the Hub's address, `org/name`, and the wait before the first repetition, doubled each time."""
        self.model = model
        self._endpoint = endpoint.rstrip("/")
        self._first_wait_s = first_wait_s
        self._locations: dict[str, str] = {}
        self._lock = threading.Lock()

    def commit_of(self, revision: str) -> str:
        """The commit that a branch, a tag or a commit stands for now.

        Raises:
            NotFound: no such model, or no such revision.
            Refused: the model is gated or private.
            ServiceError: the Hub did not answer properly.
        """
        url = f"{self._endpoint}/api/models/{self.model}/revision/{quote(revision, safe='')}"
        where = f"{HUB_PREFIX}{self.model}@{revision}"
        data, _ = self._again(lambda: self._small(url, where=where), attempts=_NAME_ATTEMPTS)
        commit = decoded(data, _Commit, where=where).sha
        if not is_commit(commit):
            raise UnexpectedReply(f"reading {where}: the Hub says it is {commit!r}, which is no commit")
        return commit

    def tree(self, commit: str) -> tuple[HubEntry, ...]:
        """All files of a commit.

        Raises:
            Refused: the model is gated or private.
            ServiceError: the Hub did not answer properly.
        """
        where = f"{HUB_PREFIX}{self.model}@{commit}"
        url: str | None = f"{self._endpoint}/api/models/{self.model}/tree/{commit}?recursive=True&expand=False"
        entries: list[HubEntry] = []
        for _ in range(_MAX_PAGES):
            if url is None:
                return tuple(entry for entry in entries if entry.type == "file")
            page = url
            data, following = self._again(partial(self._small, page, where=where), attempts=_NAME_ATTEMPTS)
            entries += decoded(data, list[HubEntry], where=where)
            url = None if following is None else _next_page(page, following, where=where)
        raise UnexpectedReply(f"reading {where}: its list of files does not end after {_MAX_PAGES} pages")

    def range_of(self, entry: HubEntry, commit: str, offset: int, end: int) -> bytes:
        """Bytes of a file, from offset to end, both inside the file.

        Raises:
            NotFound: the file is gone.
            Refused: the model is gated or private.
            ServiceError: the Hub did not answer properly.
        """
        return self._again(lambda: self._range(entry, commit, offset, end), attempts=_RANGE_ATTEMPTS)

    def _again(self, ask: Callable[[], T], *, attempts: int) -> T:
        """The answer, asked for again where repeating may help; every request of ours only reads."""
        wait_s = self._first_wait_s
        for _ in range(attempts - 1):
            try:
                return ask()
            except (Unreachable, ServiceTimeout, BrokenOff):
                pass
            except Refused as error:
                if error.status is None or (error.status != 429 and error.status < 500):
                    raise
            pause(wait_s)
            wait_s *= 2
        return ask()

    def _small(self, url: str, *, where: str) -> tuple[bytes, str | None]:
        """The body of an API's answer, and the address of the next page."""
        with self._get(url, {}, where=where) as response:
            following = response.links.get("next", {}).get("url")
            return body(response, MAX_JSON_BYTES, where=where), following

    def _range(self, entry: HubEntry, commit: str, offset: int, end: int) -> bytes:
        """A range, from where the file was served last; signed addresses expire, then the Hub gives a new one."""
        url = f"{self._endpoint}/{self.model}/resolve/{commit}/{quote(entry.path)}"
        with self._lock:
            known = self._locations.get(url, url)
        try:
            data, served = self._fetched(known, entry, commit, offset, end)
        except (Refused, NotFound):
            if known == url:
                raise
            data, served = self._fetched(url, entry, commit, offset, end)
        with self._lock:
            self._locations[url] = served
        return data

    def _fetched(self, url: str, entry: HubEntry, commit: str, offset: int, end: int) -> tuple[bytes, str]:
        """A range, and the address that served it."""
        where = f"{HUB_PREFIX}{self.model}@{commit}/{entry.path}"
        with self._get(url, {"Range": f"bytes={offset}-{end - 1}"}, where=where, entry=entry) as response:
            check_range(response, offset, end, size_bytes=entry.size, where=where)
            return body(response, end - offset, where=where), str(response.url)

    @contextlib.contextmanager
    def _get(self, url: str, headers: Mapping[str, str], *, where: str, entry: HubEntry | None = None) -> Iterator[Any]:
        """The answer to a GET, redirects followed, a refusal raised; the body is not read yet."""
        with self._translated(where):
            from huggingface_hub import constants, get_session, get_token  # noqa: PLC0415 - late

            token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
            for _ in range(_MAX_REDIRECTS):
                sent = {"user-agent": f"kvrelease/{__version__}", "accept-encoding": "identity", **headers}
                if token is not None and _place(url) == _place(self._endpoint):
                    sent["authorization"] = f"Bearer {token}"
                with get_session().stream(
                    "GET", url, headers=sent, follow_redirects=False, timeout=_TIMEOUT_S
                ) as response:
                    if entry is not None:
                        check_content_id(response, entry, where=where)
                    if response.status_code not in _REDIRECTS:
                        if response.status_code >= 400:
                            raise refusal(response, where=where)
                        yield response
                        return
                    url = redirected(url, response.headers.get("Location", ""), where=where)
            raise UnexpectedReply(f"reading {where}: more than {_MAX_REDIRECTS} redirects")

    @contextlib.contextmanager
    def _translated(self, where: str) -> Iterator[None]:
        try:
            yield
        except KvreleaseError:
            raise
        except Exception as error:
            raise translate(error, where=where, endpoint=self._endpoint) from error


def redirected(url: str, location: str, *, where: str) -> str:
    """Where a redirect leads.

    Raises:
        UnexpectedReply: out of TLS, where anybody on the way could answer.
    """
    target = urljoin(url, location)
    if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
        raise UnexpectedReply(
            f"reading {where}: {urlsplit(url).netloc} redirects from https to {urlsplit(target).scheme}://",
            hint="look at HF_ENDPOINT: a mirror must serve files by https",
        )
    return target


def _next_page(url: str, following: str, *, where: str) -> str:
    target = urljoin(url, following)
    if _place(target) != _place(url):
        raise UnexpectedReply(f"reading {where}: its list of files goes on at another host, {urlsplit(target).netloc}")
    return target


def _place(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
