"""What the audit says of a Delta log that was changed: it names the table, whatever was changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onibus.client import Client
from onibus.spark import delta_log
from onibus.spark.jobs.audit import FAILED, PASSED
from onibus.spark.lake_files import LakeDamaged
from tests.client.server_helpers import ServerThread
from tests.spark.lake_helpers import Captures, send
from tests.spark.test_audit import audited, fill

#: Fields whose string is JSON.
NESTED = ("stats", "schemaString")


@pytest.fixture
def bus(own_server: ServerThread, entity: str) -> Iterator[Client]:
    with own_server.client() as client:
        client.create_queue(entity, enable_partitioning=True, requires_duplicate_detection=True)
        yield client


def altered(value: Any, name: str = "") -> Iterator[Any]:
    """Yield a value of JSON with one of its values changed, each in turn."""
    if isinstance(value, dict):
        for key, one in value.items():
            for other in altered(one, key):
                yield {**value, key: other}
    elif name in NESTED:
        yield from (json.dumps(one) for one in altered(json.loads(value)))
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, list):
        yield value[:-1] if value else ["partition"]
    else:
        yield f"{value}x"


def changes(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines of a commit with one of them missing, repeated or altered, or two swapped."""
    for at, line in enumerate(lines):
        yield [*lines[:at], *lines[at + 1 :]]
        yield [*lines[: at + 1], *lines[at:]]
        for other in altered(json.loads(line)):
            yield [*lines[:at], json.dumps(other).encode(), *lines[at + 1 :]]
    for one, other in combinations(range(len(lines)), 2):
        order = list(lines)
        order[one], order[other] = order[other], order[one]
        yield order


def is_named(captures: Captures, place: Path, *logs: Path) -> None:
    """See that an audit names the table of one of these Delta logs, with a verdict or without."""
    try:
        verdict = audited(captures, place, with_broker=False)
    except LakeDamaged as error:
        named = [str(error)]
    else:
        named = [words for found in verdict.findings for words in found.examples]
        assert verdict.verdict == FAILED, logs
    assert any(str(log.parent) in words for log in logs for words in named), named


@pytest.mark.promise("R9")
@pytest.mark.parametrize("each", [50, 2])
def test_the_audit_names_each_change_of_a_commit(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each: int
) -> None:
    """Including commits before a checkpoint: they show in earlier versions of the table."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_EACH", each)
    fill(captures, bus, tmp_path, bad=lambda number: number % 7 == 0)
    assert audited(captures, tmp_path).verdict == PASSED
    paths = sorted((tmp_path / captures.entity).glob("*/_delta_log/*.json"))
    assert len(paths) >= 5
    assert any(tmp_path.rglob("*.checkpoint.parquet")) == (each == 2)
    tried = 0
    for path in paths:
        content = path.read_bytes()
        for lines in changes(content.splitlines()):
            tried += 1
            path.write_bytes(b"\n".join(lines))
            is_named(captures, tmp_path, path.parent)
        path.write_bytes(content)
    assert tried > 300
    for one, other in combinations(paths, 2):
        first, second = one.read_bytes(), other.read_bytes()
        for swapped in ((second, first), (second, second)):
            one.write_bytes(swapped[0])
            other.write_bytes(swapped[1])
            is_named(captures, tmp_path, one.parent, other.parent)
        one.write_bytes(first)
        other.write_bytes(second)
    assert audited(captures, tmp_path).verdict == PASSED


@pytest.mark.promise("R9")
def test_the_audit_names_each_change_of_a_checkpoint(
    captures: Captures, bus: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "CHECKPOINT_EACH", 2)
    fill(captures, bus, tmp_path)
    path = max((tmp_path / captures.entity).glob("messages/_delta_log/*.checkpoint.parquet"))
    content = path.read_bytes()
    table = pq.ParquetFile(path).read()
    rows = range(table.num_rows)
    orders = [[at for at in rows if at != gone] for gone in rows]
    orders += [sorted([*rows, again]) for again in rows]
    for order in orders:
        pq.write_table(table.take(order), path)
        is_named(captures, tmp_path, path.parent)
    actions = table.to_pylist(maps_as_pydicts="strict")
    for at, row in enumerate(actions):
        for kind, action in row.items():
            for other in altered(action or {}):
                changed = [*actions[:at], {**row, kind: other}, *actions[at + 1 :]]
                pq.write_table(pa.Table.from_pylist(changed, table.schema), path)
                is_named(captures, tmp_path, path.parent)
    path.write_bytes(content[: len(content) // 2])
    is_named(captures, tmp_path, path.parent)
    path.write_bytes(content)
    assert audited(captures, tmp_path).verdict == PASSED


@pytest.mark.promise("R9")
def test_commits_without_digests_are_those_of_earlier_versions(
    captures: Captures, bus: Client, tmp_path: Path, entity: str
) -> None:
    """They count, until a commit has a digest; and a capture does not continue a changed log."""
    for first in (1, 4):
        send(bus, entity, first, first + 2)
        captures.run(tmp_path, outcomes=False)
    paths = sorted((tmp_path / entity).glob("messages/_delta_log/*.json"))

    def put(path: Path, digest: str | None) -> None:
        actions = [json.loads(line) for line in path.read_bytes().splitlines()]
        told = actions[0]["commitInfo"]
        if digest is None:
            told.pop("onibusDigest", None)
        else:
            told["onibusDigest"] = digest
        path.write_text("\n".join(map(json.dumps, actions)), "utf-8")

    last = paths[-1].read_bytes()
    put(paths[-1], None)
    with pytest.raises(LakeDamaged, match=r"\.json is damaged"):
        captures.run(tmp_path, outcomes=False)
    for path in paths[:-1]:
        put(path, None)
    captures.run(tmp_path, outcomes=False)
    assert captures.numbers(tmp_path)
    paths[-1].write_bytes(last)
    captures.run(tmp_path, outcomes=False)
    put(paths[-1], "0" * 64)
    with pytest.raises(LakeDamaged, match=r"\.json is damaged"):
        captures.run(tmp_path, outcomes=False)
