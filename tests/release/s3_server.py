"""A real S3 server on this machine (moto), and the environment that leads our client to it."""

from __future__ import annotations

import atexit
import functools
import importlib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BUCKET = "models"


class S3Server:
    """Objects by key, written through an S3 client as other tools would."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.client = _client(endpoint)
        self.client.create_bucket(Bucket=BUCKET)

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)

    def demand_credentials(self) -> None:
        """From now on the server knows nobody. Source: moto 5.2.5, moto/moto_api/_internal/responses.py."""
        self._control("reset-auth", b"0")

    def forget(self) -> None:
        """moto keeps its state in the process, not in the server."""
        self._control("reset-auth", b"inf")
        self._control("reset", b"")

    def _control(self, name: str, body: bytes) -> None:
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{self.endpoint}/moto-api/{name}", data=body, headers=headers, method="POST")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).close()

    def upload(self, directory: Path, prefix: str) -> str:
        """Copies a release below a prefix; returns its address."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(directory).as_posix()}", path.read_bytes())
        return f"s3://{BUCKET}/{prefix}"


@functools.cache
def _client(endpoint: str) -> Any:
    """What other tools write with; made once, since that takes longer than a test's requests."""
    boto3: Any = importlib.import_module("boto3")  # untyped, as are the two below
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    atexit.register(client.close)
    return client


@functools.cache
def _endpoint() -> str:
    """The server's address; one for all tests, since it takes half a second to end."""
    server = importlib.import_module("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    atexit.register(server.stop)
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


@contextmanager
def serve_s3(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[S3Server]:
    """The server, empty, and credentials in the environment; nothing of the user's own is read."""
    fsspec: Any = importlib.import_module("fsspec")
    endpoint = _endpoint()
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(home / "aws-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(home / "aws-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    bucket = S3Server(endpoint)
    try:
        yield bucket
    finally:
        bucket.forget()
        fsspec.get_filesystem_class("s3").clear_instance_cache()
