"""Filling a data directory for measurements, faster than clients could."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice

from bench.measure import BODY_BYTES
from onibus import Bus, Message
from onibus.core.records import WriteBatch

#: Ids recorded between two commits while filling.
_IDS_A_COMMIT = 4_096


def remember(bus: Bus, queue: str, count: int) -> list[bytes]:
    """Let a queue remember random ids, as sends would; return some of them."""
    partition = bus.broker.find(queue).partitions[0]
    core, store = partition.online(), partition.store.loop
    assert store is not None
    dice = random.Random(1)
    known: list[bytes] = []
    for start in range(0, count, _IDS_A_COMMIT):
        now = bus.broker.clock.now()
        out = WriteBatch()
        for number in range(start, min(start + _IDS_A_COMMIT, count)):
            identity = dice.randbytes(16)
            core.ids.record(identity, 1 + number, now)
            if number % 1_000 == 0:
                known.append(identity)
        core.ids.write(out)
        while core.ids.maintain(core.forget_before(now), out):
            _commit(bus, queue, out)
            out = WriteBatch()
        _commit(bus, queue, out)
    return known


def _commit(bus: Bus, queue: str, out: WriteBatch) -> None:
    """Commit at once: nothing else runs while a directory is filled."""
    partition = bus.broker.find(queue).partitions[0]
    assert partition.store.loop is not None
    store, core = partition.store.loop.store, partition.online()
    core.commit_started()
    store.commit(out)
    core.commit_finished()
    store.maintain()


async def send_in_batches(
    bus: Bus, queue: str, messages: Iterator[Message], size: int = 64
) -> list[int]:
    """Send messages in batches; return their numbers."""
    numbers = []
    while batch := list(islice(messages, size)):
        numbers += [sent.sequence_number for sent in await bus.send_batch(queue, batch)]
    return numbers


def stream(
    count: int, session_of: Callable[[int], str] | None = None, due_ms: int | None = None
) -> Iterator[Message]:
    """Messages of 1 KB with different times to live."""
    dice = random.Random(2)
    body = os.urandom(BODY_BYTES)
    for number in range(count):
        yield Message(
            body=body,
            session_id=session_of(number) if session_of else None,
            time_to_live_ms=dice.randrange(10**8, 10**9),
            scheduled_enqueue_time_ms=due_ms,
        )


def tomorrow_ms() -> int:
    return int(time.time() * 1000) + 86_400_000
