"""A Hub on this machine: the three endpoints that a reader of models asks, and a second host for large files.

Derived from huggingface_hub 2.4.0: hf_api.py (`model_info`: /api/models/{model}/revision/{revision};
`_iter_repo_tree_pages`: /api/models/{model}/tree/{revision}; `RepoFile`: keys of an entry), utils/_pagination.py (Link
header), utils/_http.py (`hf_raise_for_status`: X-Error-Code, X-Error-Message), file_download.py (`hf_hub_url`:
/{model}/resolve/{revision}/{file}; `get_hf_file_metadata`: X-Repo-Commit, X-Linked-Etag, X-Linked-Size, and the
redirect of large files to another host).
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.http_servers import QuickHandler, QuietServer

PAGE = 4  # the real one has 1000 entries a page


class Hub:
    """Models by name, and what shall go wrong.

    Attributes:
        refused: status and X-Error-Code of every answer of the Hub itself.
        page: HTML that comes instead of every API answer.
        without_ranges: large files come whole, whatever was asked.
        renamed: old name → new name; the old one redirects, as the real Hub does.
        next_page_host: where lists of files go on, None for this server.
        cut_bytes: each answer of the second host is cut off after so many bytes, as often as `cuts` says.
        expired: the second host refuses once.
        stalls: the second host never answers for what lies behind the front of a file.
        stalled: as many requests wait for such an answer.
        requests: (host, path, authorization) of every request.
    """

    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.refs: dict[tuple[str, str], str] = {}
        self.blobs: dict[str, bytes] = {}
        self.sha256: dict[int, str] = {}
        self.refused: tuple[int, str | None] | None = None
        self.page: str | None = None
        self.without_ranges = False
        self.renamed: dict[str, str] = {}
        self.next_page_host: str | None = None
        self.cut_bytes: int | None = None
        self.cuts = 0
        self.expired = False
        self.stalls = False
        self.stalled = threading.Semaphore(0)
        self.closing = threading.Event()
        self.linked_etag: str | None = None
        self.requests: list[tuple[str, str, str | None]] = []
        self.endpoint = ""
        self.elsewhere = ""

    def push(self, model: str, directory: Path, *, ref: str = "main") -> str:
        """A directory as a new commit of a model; returns the commit."""
        files = {
            path.relative_to(directory).as_posix(): path.read_bytes()
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        }
        commit = hashlib.sha1(repr(sorted((name, blob_id(data)) for name, data in files.items())).encode()).hexdigest()
        self.commits[model, commit] = files
        self.sha256 |= {id(data): hashlib.sha256(data).hexdigest() for name, data in files.items() if is_large(name)}
        self.blobs |= {self.sha256[id(data)]: data for name, data in files.items() if is_large(name)}
        self.refs[model, ref] = commit
        return commit

    def asked(self, host: str) -> int:
        return sum(1 for other, _, _ in self.requests if other == host)


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_large(name: str) -> bool:
    return name.endswith(".safetensors")


def entry(name: str, data: bytes) -> dict[str, object]:
    found: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": blob_id(data)}
    if is_large(name):
        found["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return found


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """The Hub and its second host, listening."""
    hub = Hub()
    servers = [QuietServer(("127.0.0.1", 0), handler_of(hub, host)) for host in ("hub", "elsewhere")]
    for server in servers:
        server.start()
    hub.endpoint, hub.elsewhere = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    try:
        yield hub
    finally:
        hub.closing.set()
        for server in servers:
            server.stop()


def handler_of(hub: Hub, host: str) -> type[QuickHandler]:
    class Handler(QuickHandler):
        def do_GET(self) -> None:
            hub.requests.append((host, self.path, self.headers.get("Authorization")))
            path = unquote(urlsplit(self.path).path)
            if host == "elsewhere":
                self.blob(path)
            elif hub.refused is not None:
                status, code = hub.refused
                self.answer(status, b'{"error":"no"}', {"X-Error-Code": code} if code else {})
            elif old := next((old for old in hub.renamed if f"/{old}/" in self.path), None):
                self.answer(307, b"", {"Location": self.path.replace(old, hub.renamed[old])})
            elif match := re.fullmatch(r"/api/models/(.+?)/revision/(.+)", path):
                self.revision(match[1], match[2])
            elif match := re.fullmatch(r"/api/models/(.+?)/tree/(.+)", path):
                self.tree(match[1], match[2])
            elif match := re.fullmatch(r"/(.+?)/resolve/([0-9a-f]{40})/(.+)", path):
                self.resolve(match[1], match[2], match[3])
            else:
                self.answer(404, b"")

        def revision(self, model: str, revision: str) -> None:
            if not any(known == model for known, _ in hub.commits):
                self.answer(404, b'{"error":"Repository not found"}', {"X-Error-Code": "RepoNotFound"})
                return
            commit = hub.refs.get((model, revision), revision)
            if (model, commit) not in hub.commits and (model, revision) not in hub.refs:
                self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            else:
                self.api({"id": model, "sha": commit, "siblings": []})

        def tree(self, model: str, commit: str) -> None:
            files = hub.commits.get((model, commit))
            if files is None:
                self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
                return
            query = urlsplit(self.path).query
            start = int(query.rpartition("cursor=")[2]) if "cursor=" in query else 0
            rows = [entry(name, data) for name, data in sorted(files.items())]
            rows.insert(0, {"type": "directory", "path": "folder", "size": 0, "oid": "0" * 40})
            following = (
                f"{hub.next_page_host or hub.endpoint}{urlsplit(self.path).path}?recursive=True&cursor={start + PAGE}"
            )
            more = {"Link": f'<{following}>; rel="next"'} if start + PAGE < len(rows) else {}
            self.api(rows[start : start + PAGE], more)

        def api(self, value: object, headers: dict[str, str] | None = None) -> None:
            if hub.page is not None:
                self.answer(200, hub.page.encode(), {"Content-Type": "text/html"})
            else:
                self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

        def resolve(self, model: str, commit: str, name: str) -> None:
            data = hub.commits[model, commit].get(name)
            if data is None:
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            elif is_large(name):
                sha256 = hub.sha256[id(data)]
                self.answer(
                    302,
                    b"Found. Redirecting",
                    {
                        "Location": f"{hub.elsewhere}/blobs/{sha256}?Signature=s3cret",
                        "X-Linked-Etag": f'"{hub.linked_etag or sha256}"',
                        "X-Linked-Size": str(len(data)),
                        "X-Repo-Commit": commit,
                    },
                )
            else:
                self.ranged(data)

        def blob(self, path: str) -> None:
            wanted = path.rpartition("/")[2]
            if hub.expired:
                hub.expired = False
                self.answer(403, b"<?xml?><Error>Request has expired</Error>")
                return
            if wanted in hub.blobs:
                self.ranged(hub.blobs[wanted])
            else:
                self.answer(404, b"")

        def ranged(self, data: bytes) -> None:
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if match is None or (hub.without_ranges and host == "elsewhere"):
                self.answer(200, data)
                return
            begin, end = int(match[1]), min(int(match[2]) + 1, len(data))
            if hub.stalls and begin > 0:
                hub.stalled.release()
                hub.closing.wait()
            self.answer(206, data[begin:end], {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})

        def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if host == "elsewhere" and hub.cut_bytes is not None and hub.cuts > 0 and len(content) > hub.cut_bytes:
                hub.cuts -= 1
                self.wfile.write(content[: hub.cut_bytes])
                self.close_connection = True
                return
            self.wfile.write(content)

    return Handler
