"""Google Cloud Storage on this machine, as far as a reader of objects asks.

Derived from gcsfs 2026.10.1, gcsfs/core.py: `_do_list_objects` (b/BUCKET/o), `_get_object` (b/BUCKET/o/KEY), `url`
(download/storage/v1/b/BUCKET/o/KEY?alt=media), and retry.py, `validate_response` (error bodies).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.http_servers import QuickHandler, QuietServer

BUCKET = "models"


class Bucket:
    """Objects by key, each with its generation; `refused` is the status of every answer, if any."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.refused: int | None = None

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = (data, self.objects.get(key, (b"", 1000))[1] + 1)

    def upload(self, directory: Path, prefix: str) -> str:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(directory).as_posix()}", path.read_bytes())
        return f"gs://{BUCKET}/{prefix}"


@contextmanager
def serve_gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    bucket = Bucket()
    server = QuietServer(("127.0.0.1", 0), handler_of(bucket))
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        yield bucket
    finally:
        server.stop()


def handler_of(bucket: Bucket) -> type[QuickHandler]:
    class Handler(QuickHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            if bucket.refused is not None:
                self.answer(bucket.refused, {"error": {"message": "no", "code": bucket.refused}})
            elif re.fullmatch(rf"/storage/v1/b/{BUCKET}/o/?", parts.path):
                self.listing(query.get("prefix", ""), query.get("delimiter"))
            elif match := re.fullmatch(rf"(/download)?/storage/v1/b/{BUCKET}/o/(.+)", parts.path):
                self.one(unquote(match[2]), is_data=bool(match[1]))
            else:
                self.answer(404, {"error": {"message": "not found", "code": 404}})

        def listing(self, prefix: str, delimiter: str | None) -> None:
            below = [key for key in sorted(bucket.objects) if key.startswith(prefix)]
            folders = {
                prefix + key.removeprefix(prefix).partition("/")[0] + "/"
                for key in below
                if delimiter and "/" in key.removeprefix(prefix)
            }
            items = [self.row(key) for key in below if not any(key.startswith(folder) for folder in folders)]
            self.answer(200, {"kind": "storage#objects", "items": items, "prefixes": sorted(folders)})

        def row(self, key: str) -> dict[str, object]:
            data, generation = bucket.objects[key]
            return {"name": key, "bucket": BUCKET, "size": str(len(data)), "generation": str(generation), "etag": "x="}

        def one(self, key: str, *, is_data: bool) -> None:
            if key not in bucket.objects:
                self.answer(404, {"error": {"message": "No such object", "code": 404}})
            elif not is_data:
                self.answer(200, self.row(key))
            else:
                begin, end = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups()  # type: ignore[union-attr]
                self.send(206, bucket.objects[key][0][int(begin) : int(end) + 1], "application/octet-stream")

        def answer(self, status: int, value: object) -> None:
            self.send(status, json.dumps(value).encode(), "application/json")

        def send(self, status: int, content: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler
