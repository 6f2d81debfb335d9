"""Random messages with the times at which they come, and what a real bus makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from onibus import Bus, Message
from onibus.core.arrow_block import SCHEMA, columns_of
from onibus.core.path.route import effective_key, partition_of
from onibus.core.settings import QueueSettings, make
from tests.bus_helpers import DAY, HOUR, MINUTE, SECOND, ManualClock, settle
from tests.log_helpers import read

START = 1_700_000_000_000

#: Settings of queues that differ in what decides duplicates, partitions and expiry.
KINDS: list[dict[str, Any]] = [
    {},
    {"requires_duplicate_detection": True, "duplicate_detection_window_ms": 20 * SECOND},
    {"requires_duplicate_detection": True, "enable_partitioning": True},
    {"enable_partitioning": True, "default_time_to_live_ms": MINUTE},
    {"requires_duplicate_detection": True, "requires_session": True, "enable_partitioning": True},
    {"fifo": True, "content_based_deduplication": True},
    {"fifo": True, "content_based_deduplication": True, "content_matches_any_id": True},
    {"fifo": True, "content_based_deduplication": True, "deduplication_scope": "messageGroup"},
    {"requires_duplicate_detection": True, "default_time_to_live_ms": MINUTE,
     "dead_letter_on_expiration": True},
]  # fmt: skip


@dataclass
class Workload:
    """Messages, the times at which they come, and the queue they go to."""

    settings: QueueSettings
    messages: list[Message] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    #: when the last look is taken
    until: int = START

    def partitions(self) -> list[int]:
        """Return where each message goes. Keyless ones go in turn, as in the broker."""
        count = 16 if self.settings.enable_partitioning else 1
        keyless, found = 0, []
        for message in self.messages:
            key = effective_key(message, self.settings)
            found.append(keyless % count if key is None else partition_of(key, count))
            keyless += key is None
        return found

    def table(self, positions: list[int]) -> pa.Table:
        """Return messages as columns, each with its position in `order`."""
        columns = columns_of([self.messages[at] for at in positions]) if positions else None
        table = (
            SCHEMA.empty_table()
            if columns is None
            else pa.Table.from_arrays(columns, schema=SCHEMA)
        )
        return table.append_column("order", pa.array(positions, pa.int64()))


def make_workload(
    seed: int, count: int = 40, keyless: bool = True, kind: int | None = None
) -> Workload:
    """Return random messages for a random queue, or for one of a kind."""
    random = Random(seed)
    given = random.choice(KINDS)
    if kind is not None:
        given = KINDS[kind]
    workload = Workload(make(dict(given), QueueSettings))
    settings = workload.settings
    window = settings.duplicate_detection_window_ms
    steps = [0, 0, 1, 500, window // 3, window - 1, window, MINUTE]
    time = START
    for at in range(count):
        time += random.choice(steps)
        workload.messages.append(_message(random, settings, at, time, keyless))
        workload.times.append(time)
    workload.until = time + random.choice([0, MINUTE, HOUR, DAY])
    return workload


def _message(random: Random, settings: QueueSettings, at: int, time: int, keyless: bool) -> Message:
    session = partition_key = None
    if settings.requires_session or random.random() < 0.4:
        session = f"session-{random.randrange(4)}"
    elif random.random() < 0.5 or not keyless:
        partition_key = f"key-{random.randrange(4)}"
    message_id: str | None = f"id-{random.randrange(12)}"
    if random.random() < 0.1 and (session or partition_key or settings.fifo):
        message_id = None
    if settings.fifo and random.random() < 0.5:
        message_id = None
    due = ttl = None
    if not settings.fifo and random.random() < 0.25:
        due = time + random.choice([-5, 0, 1, 700, 30 * SECOND, MINUTE, HOUR])
    if random.random() < 0.3:
        ttl = random.choice([1, SECOND, MINUTE, HOUR])
    body = f"body-{random.randrange(8)}" if settings.fifo else f"body-{at}"
    return Message(
        body=body.encode(),
        message_id=message_id,
        session_id=session,
        partition_key=partition_key,
        scheduled_enqueue_time_ms=due,
        time_to_live_ms=ttl,
    )


@dataclass
class Told:
    """What a bus says became of messages."""

    #: position → the number it got or repeats, and whether it was dropped
    sent: list[tuple[int, bool]]
    #: (number, stamp, expiry, kind, body) of every row of the log
    log: list[tuple[int, int, int | None, str, bytes]]
    #: (number, outcome) of what expired
    expired: set[tuple[int, str]]


async def tell(workload: Workload) -> Told:
    """Send the messages to a bus at their times, and ask it at the end."""
    clock = ManualClock(START)
    sent = []
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", **_given(workload.settings), retention_ms=365 * DAY)
        dues = sorted({m.scheduled_enqueue_time_ms for m in workload.messages
                       if m.scheduled_enqueue_time_ms is not None})  # fmt: skip
        for message, time in zip(workload.messages, workload.times, strict=True):
            await _pass(bus, clock, dues, time)
            answer = await bus.send("q", message)
            sent.append((answer.sequence_number, answer.duplicate_of is not None))
        await _pass(bus, clock, dues, workload.until)
        log, expired = [], set()
        ends = bus.log_positions("q")
        for index, first in enumerate(ends.earliest):
            log += [
                (row["sequence_number"], row["enqueued_time_ms"], row["expires_at_ms"],
                 row["kind"], row["body"])
                for row in await read(bus, "q", first or 0, partition=index)
            ]  # fmt: skip
            expired |= await _expired(bus, index)
        return Told(sent, sorted(log), expired)


async def _pass(bus: Bus, clock: ManualClock, dues: list[int], until: int) -> None:
    """Let time pass, and let the bus notice at every moment at which something is due."""
    for moment in [due for due in dues if clock.wall() < due <= until] + [until]:
        clock.advance(max(moment - clock.wall(), 0))
        await settle(bus)


async def _expired(bus: Bus, index: int) -> set[tuple[int, str]]:
    first = bus.log_positions("q", log="outcomes").earliest[index]
    batches = [batch async for batch in bus.read_outcomes("q", index, first or 0)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return {
        (row["sequence_number"], row["outcome"])
        for row in rows
        if row["outcome"] in ("expired", "dead-lettered")
    }


def _given(settings: QueueSettings) -> dict[str, Any]:
    names = ("requires_duplicate_detection", "duplicate_detection_window_ms", "requires_session",
             "enable_partitioning", "default_time_to_live_ms", "dead_letter_on_expiration", "fifo",
             "content_based_deduplication", "content_matches_any_id",
             "deduplication_scope")  # fmt: skip
    return {name: getattr(settings, name) for name in names}


def times_of(workload: Workload, positions: list[int]) -> Any:
    return np.array([workload.times[at] for at in positions], np.int64)


def compare(workload: Workload, told: Told, events: list[dict[str, Any]]) -> None:
    """Check that events say what the bus said."""
    by_order = {row["order"]: row for row in events if row["outcome"] in FIRST
                and row["scheduled_number"] is None}  # fmt: skip
    sent = [
        (by_order[at]["duplicate_of"], True)
        if by_order[at]["outcome"] == "duplicate"
        else (by_order[at]["sequence_number"], False)
        for at in range(len(workload.messages))
    ]
    assert sent == told.sent
    log = [
        (row["sequence_number"], row["enqueued_time_ms"], row["expires_at_ms"],
         "scheduled" if row["outcome"] == "scheduled" else "message", row["body"])
        for row in events
        if row["outcome"] in ("accepted", "scheduled")
    ]  # fmt: skip
    assert sorted(log) == told.log
    expired = {
        (row["sequence_number"], row["outcome"])
        for row in events
        if row["outcome"] in ("expired", "dead-lettered")
    }
    assert expired == told.expired


FIRST = ("accepted", "scheduled", "duplicate")
