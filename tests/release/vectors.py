"""The published releases of docs/vectors.json, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.release.builders import raw_safetensors, write_json

VECTORS = Path(__file__).parents[2] / "docs" / "vectors.json"


def published() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(VECTORS.read_text(encoding="utf-8"))
    return cases


def write_case(directory: Path, case: dict[str, Any]) -> Path:
    """A text is a file's content, an object a JSON file's; byte *i* of a weight file's data is *i* mod 251."""
    for name, content in case["files"].items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_bytes(content.encode())
        else:
            write_json(path, content)
    for name, header in case["safetensors"].items():
        size = max(entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
        data = bytes(number % 251 for number in range(size))
        (directory / name).write_bytes(raw_safetensors(header, data))
    return directory
