"""Data directories and lakes that earlier versions made."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec

from onibus import Message

FOLDER = Path(__file__).parent
#: the versions that have a folder here
VERSIONS = sorted(path.name for path in FOLDER.iterdir() if (path / "data.tar.gz").exists())
#: of these, the versions that have a lake here
LAKES = [version for version in VERSIONS if (FOLDER / version / "lake.tar.gz").exists()]
#: of these, the versions whose lakes a capture converts
CONVERTED = [version for version in LAKES if version != "0.2.0-iceberg"]
#: made so slowly that the bus no longer remembered the attempt id of a FIFO receive
FORGOT_ATTEMPTS = ("0.2.0-iceberg",)


def unpack(version: str, name: str, into: Path) -> Path:
    """Unpack the data directory (`data`) or the lake (`lake`) of a version; return its folder."""
    with tarfile.open(FOLDER / version / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    return into / name


def expected(version: str) -> dict[str, Any]:
    """Return what the version itself listed: `made_ms`, and `entities` by name."""
    with gzip.open(FOLDER / version / "expected.json.gz", "rt") as file:
        listed: dict[str, Any] = json.load(file)
    _add_new_fields(listed)
    return listed


def _add_new_fields(listed: Any) -> None:
    """Give every message the fields that it has had since, at their defaults."""
    if isinstance(listed, dict):
        message = listed.get("message")
        if isinstance(message, list):
            message += msgspec.to_builtins(Message())[len(message) :]
        listed = list(listed.values())
    if isinstance(listed, list):
        for one in listed:
            _add_new_fields(one)
