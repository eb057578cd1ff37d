"""The same promises on gs://, whose client library answers and refuses in its own way."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvrelease.errors import InputError, NotFound, Refused
from kvrelease.progress import ProgressEvent
from kvrelease.release.loading import load_release
from tests.release.builders import tensors, write_release, write_text_side
from tests.release.gcs_server import BUCKET, Bucket, serve_gcs


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    gcsfs: Any = importlib.import_module("gcsfs")  # untyped
    gcsfs.GCSFileSystem.clear_instance_cache()
    credentials = tmp_path / "application_default_credentials.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(credentials))
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # google-auth: this is no machine of theirs
    with serve_gcs(monkeypatch) as bucket:
        yield bucket
    gcsfs.GCSFileSystem.clear_instance_cache()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_text_side(write_release(tmp_path / "support-v1.3", shards=2))


def test_a_bucket_gives_the_digests_of_the_directory(gcs: Bucket, model: Path) -> None:
    fingerprint = load_release(gcs.upload(model, "llama/support"))
    assert fingerprint.digests == load_release(model).digests
    assert fingerprint.release.source == f"gs://{BUCKET}/llama/support"


def test_object_overwritten_while_it_is_read_is_an_error(gcs: Bucket, model: Path) -> None:
    address = gcs.upload(model, "m")
    other = write_release(model.parent / "other", tensors(9), shards=2)
    name = "model-00002-of-00002.safetensors"

    def overwrite(_: ProgressEvent) -> None:
        gcs.put(f"m/{name}", (other / name).read_bytes())

    with pytest.raises(InputError, match=f"m/{name}: the file changed while it was read"):
        load_release(address, jobs=1, progress=overwrite)


def test_absent_and_forbidden_are_told_apart(gcs: Bucket, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for absent in (f"gs://{BUCKET}/nowhere", "gs://other/m"):
        with pytest.raises(NotFound, match=f"{absent}: no such bucket or object"):
            load_release(absent)
    address = gcs.upload(model, "m")
    gcs.refused = 403
    with pytest.raises(Refused, match="the store refused") as caught:
        load_release(address)
    assert "gcloud auth application-default login" in (caught.value.hint or "")
    assert "Traceback" not in capfd.readouterr().err
