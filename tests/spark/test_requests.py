"""The requests that a streaming query sends, counted at the server while it works as in Spark."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from onibus.spark.idling import Idling
from onibus.spark.log_stream import LogStreamReader
from onibus.spark.options import read_options
from onibus.spark.queue_stream import QueueStreamReader
from tests.spark.reading import fill
from tests.spark.served_bus import ServedBus

SCHEMA = StructType([StructField("body", BinaryType())])


@pytest.fixture
def served() -> Iterator[ServedBus]:
    with ServedBus() as started:
        yield started


class Trigger:
    """A query whose triggers call a source as Spark does."""

    def __init__(self, served: ServedBus, reader: Any) -> None:
        self.served, self.reader = served, reader
        # Spark looks again at once.
        reader._idling.now = lambda: 0.0
        self.offset = reader.initialOffset()
        self.before: Any = None

    def run(self) -> list[bytes]:
        """Run a trigger; return the bodies of its batch."""
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        if isinstance(self.reader, LogStreamReader):
            self.reader.reportLatestOffset()
        if json.dumps(end) == json.dumps(self.offset):
            return []
        if self.before is not None:
            self.reader.commit(self.offset)
        self.before, self.offset = self.offset, end
        rows = [
            batch for part in self.reader.partitions(self.before, end)
            for batch in self.reader.read(part)
        ]  # fmt: skip
        return pa.Table.from_batches(rows).column("body").to_pylist()

    def counted(self) -> tuple[list[bytes], Counter[str]]:
        """Run a trigger; return its bodies and the requests that it sent."""
        before = self.served.requests()
        return self.run(), self.served.requests() - before


@pytest.mark.parametrize("limits", [{}, {"maxMessagesPerTrigger": "20"}])
def test_a_batch_of_sixteen_partitions_takes_three_requests(
    served: ServedBus, limits: dict[str, str]
) -> None:
    served.client.create_queue("q", enable_partitioning=True)
    options = {**served.options, "entity": "q", "reader": "lake", **limits}
    query = Trigger(served, LogStreamReader(read_options(options), SCHEMA))
    send(served, 40)
    query.run()
    for number in range(3):
        if not limits:
            send(served, 40 + number)
        bodies, requests = query.counted()
        if not bodies:
            break
        assert sum(requests.values()) <= 3, requests
        assert len(bodies) == (20 if limits else 40 + number)
    query.reader.stop()


def test_an_idle_query_sends_one_request_per_wait(served: ServedBus) -> None:
    served.client.create_queue("q")
    options = {**served.options, "entity": "q", "reader": "lake"}
    query = Trigger(served, LogStreamReader(read_options(options), SCHEMA))
    send(served, 5)
    assert len(query.run()) == 5
    assert query.run() == [], "the first look does not wait: Spark may have a batch without rows"
    for _ in range(3):
        assert sum(idle(served, query, lambda: served.advance(1_000)).values()) == 1
    before = query.offset
    # A row ends the wait: planned, read, and the named reader follows with the next batch.
    assert sum(idle(served, query, lambda: send(served, 2)).values()) <= 3
    assert query.offset["next"]["0"] == before["next"]["0"] + 2
    assert query.run() == [], "after a batch, it looks at once"
    query.reader.stop()


def test_a_batch_of_a_queue_takes_three_requests_and_an_idle_query_one_per_wait(
    served: ServedBus,
) -> None:
    served.client.create_queue("q", enable_partitioning=True)
    options = {**served.options, "entity": "q", "mode": "queue", "reader": "billing"}
    query = Trigger(served, QueueStreamReader(read_options(options), SCHEMA))
    send(served, 40)
    assert len(query.run()) == 40
    for number in range(3):
        send(served, 40 + number)
        bodies, requests = query.counted()
        assert len(bodies) == 40 + number
        assert sum(requests.values()) <= 3, requests
    assert query.run() == []
    assert served.client.queue("q").active_count == 0
    assert not served.client.claims("q"), "an idle query has committed its claims"

    for _ in range(2):
        assert sum(idle(served, query, lambda: served.advance(1_000)).values()) == 1
    assert sum(idle(served, query, lambda: send(served, 1)).values()) <= 3
    assert query.run() == []
    assert served.client.queue("q").active_count == 0
    query.reader.stop()


def idle(served: ServedBus, query: Trigger, end: Callable[[], object]) -> Counter[str]:
    """Let an idle query wait until `end` ends that; return what it has sent."""
    seen: list[Counter[str]] = []
    thread = threading.Thread(target=lambda: seen.append(query.counted()[1]))
    thread.start()
    entity = served.bus.broker.find("q")
    served.wait_for(lambda: len(entity.waiters) + len(entity.log_waiters.waiters) == 1)
    end()
    thread.join(60)
    return seen[-1]


def send(served: ServedBus, count: int) -> None:
    fill(served.client, "q", count, partition_key=[str(at) for at in range(count)])


def test_when_an_idle_query_waits() -> None:
    clock = [0.0]
    idling = Idling(1_000, lambda: clock[0])

    def waits_after(seconds: float) -> bool:
        clock[0] += seconds
        return bool(idling.wait_ms())

    assert not waits_after(0)
    idling.looked(found=False)
    assert waits_after(0.01)
    idling.looked(found=False)
    assert not waits_after(0.99), "a trigger each second does not come late"
    idling.looked(found=False)
    idling.work()
    assert not waits_after(0.01), "another source has rows"
    idling.looked(found=True)
    assert not waits_after(0.01)
