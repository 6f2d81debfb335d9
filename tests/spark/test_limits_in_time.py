"""A batch that is limited ends at the same time in all partitions, however unlike they are."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from onibus import Message
from onibus.spark.log_stream import LogStreamReader
from onibus.spark.options import read_options
from tests.bus_helpers import KEYS
from tests.spark.served_bus import ServedBus

#: Keys of two partitions.
HOT, COLD = KEYS[0], KEYS[1]


@pytest.fixture
def served() -> Iterator[ServedBus]:
    with ServedBus() as started:
        yield started


@pytest.mark.promise("R3")
@pytest.mark.parametrize("limit", [{"maxMessagesPerTrigger": "40"}, {"maxBytesPerTrigger": "9000"}])
def test_a_cold_partition_does_not_run_ahead_of_a_hot_one(
    served: ServedBus, limit: dict[str, str]
) -> None:
    served.client.create_queue("q", enable_partitioning=True)
    for second in range(100):
        # All messages of the cold partition are in the second half.
        keys = [HOT] * 4 + ([COLD] if second > 50 else [])
        batch = [Message(body=bytes(200), partition_key=key) for key in keys]
        served.client.send_batch("q", batch)
        served.clock.advance(1_000)
    options = read_options({**served.options, "entity": "q", **limit})
    reader = LogStreamReader(options, StructType([StructField("body", BinaryType())]))
    hot, cold = (str(crc32(key.encode()) % 16) for key in (HOT, COLD))
    offset = reader.initialOffset()
    first = dict(offset["next"])
    sizes = []
    while True:
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        if end == offset:
            break
        sizes.append(sum(end["next"].values()) - sum(offset["next"].values()))
        reader.partitions(offset, end)
        offset = end
        # The second that each has come to: one message more of the cold one is one second.
        hot_at = (end["next"][hot] - first[hot]) // 4
        cold_at = 51 + end["next"][cold] - first[cold]
        assert cold_at <= max(hot_at, 50) + 1, f"{cold_at} is ahead of {hot_at}"
    assert sum(sizes) == 449
    assert len(sizes) < 20, "batches are about as large as they may be"
    if "maxMessagesPerTrigger" in limit:
        assert max(sizes) <= 40
    reader.stop()
