"""Streaming reads of the log: batches that can be planned again, a named reader that follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row

from onibus.client import Client
from tests.spark.reading import Reads, fill, forget_last_commit


@pytest.mark.promise("R2", "R3")
def test_batches_restarts_and_the_named_reader(
    client: Client, entity: str, reads: Reads, tmp_path: Path
) -> None:
    client.create_queue(entity, enable_partitioning=True)
    fill(client, entity, 400, partition_key=[f"k{at % 5}" for at in range(400)])
    batches: list[list[Row]] = []
    rows = reads.stream(reader="lake", maxMessagesPerTrigger=150, columns="sequence_number,body")

    reads.run(rows, tmp_path, batches.append)
    assert [len(batch) for batch in batches] == [150, 150, 100]
    [reader] = client.readers(entity)
    assert reader.lag == (0,) * 16, "the last batch of a run is passed too"

    client.receiver(entity, delete=True).receive(100)
    fill(client, entity, 30, partition_key=[f"k{at % 5}" for at in range(30)])
    reads.run(rows, tmp_path, batches.append)
    assert len(batches) == 4
    found = [row for batch in batches for row in batch]
    assert len({row.sequence_number for row in found}) == 430
    assert sorted(int(row.body) for row in found) == sorted([*range(400), *range(30)])

    forget_last_commit(tmp_path)
    reads.run(rows, tmp_path, batches.append)
    assert batches[4] == batches[3], "a batch that is planned again has the same rows"
    assert len(batches) == 5


def test_limits_by_bytes_and_outcomes(
    client: Client, entity: str, reads: Reads, tmp_path: Path
) -> None:
    client.create_queue(entity, retention_ms=3_600_000)
    fill(client, entity, 20, body=[bytes(10_000)] * 20)
    sizes: list[int] = []
    rows = reads.stream(maxBytesPerTrigger=60_000, columns="sequence_number")
    reads.run(rows, tmp_path / "log", lambda batch: sizes.append(len(batch)))
    assert sizes == [5, 5, 5, 5]

    client.receiver(entity, delete=True).receive(7)
    ended: list[Row] = []
    outcomes = reads.stream(table="outcomes", maxMessagesPerTrigger=5)
    reads.run(outcomes, tmp_path / "outcomes", ended.extend)
    assert [(row.number, row.outcome) for row in ended] == [(n, "completed") for n in range(1, 8)]


@pytest.mark.promise("R2", "R8")
def test_what_a_stopped_query_finds_changed(
    client: Client, entity: str, reads: Reads, tmp_path: Path
) -> None:
    def make() -> None:
        client.create_queue(entity)
        fill(client, entity, 5)

    def retention_passes() -> None:
        client.receiver(entity, delete=True).receive(100)
        fill(client, entity, 5)
        client.receiver(entity, delete=True).receive(100)

    def made_again() -> None:
        client.delete_queue(entity)
        make()

    make()
    first = {"startingPosition": "earliest"}
    reads.run(reads.stream(**first), tmp_path)
    changes: list[tuple[Callable[[], None], str, dict[str, str]]] = [
        (retention_passes, "partition 0: messages 6 to 10 are no longer retained", {}),
        (made_again, "was deleted and recreated since offset", {}),
        (lambda: client.delete_queue(entity), entity, {}),
        (make, "the checkpoint belongs to", {"entity": f"{entity}-2"}),
    ]
    for change, said, options in changes:
        change()
        if options:
            client.create_queue(options["entity"])
        if change is retention_passes:
            fill(client, entity, 1)
        reads.options |= options
        with pytest.raises(PySparkException, match=said):
            reads.run(reads.stream(**first), tmp_path)
