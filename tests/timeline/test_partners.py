"""Rows that wait for each other come out in an order in which they can be processed."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from onibus import Bus
from onibus.core.timeline.chunks import Chunks, nobody
from onibus.core.timeline.partners import ALONE, MET, MISSING, Partners, Steps
from onibus.core.timeline.state import decode, encode
from tests.bus_helpers import ManualClock, get, msg, pass_ms, run

LIMIT, REMEMBER = 1_000, 5_000
START = 1_700_000_000_000
#: (workflow, what it needs, what it gives)
Step = tuple[str, str | None, str | None]


def steps_of(rows: list[Step], times: list[int], first: int = 0) -> Steps:
    table = pa.table({"row": pa.array(range(first, first + len(rows)), pa.int64())})
    workflows, needs, gives = zip(*rows, strict=True) if rows else ((), (), ())
    return Steps(table, np.array(times, np.int64), list(workflows), list(needs), list(gives))


def released(partners: Partners, steps: Steps, until: int = 0) -> list[tuple[int, int, str]]:
    """Take rows; return (row, time, outcome) of what came out."""
    out = partners.take(steps, until)
    rows = [] if out.rows is None else out.rows.column("row").to_pylist()
    return list(zip(rows, out.times, out.outcomes, strict=True))


def at_once(rows: list[Step], times: list[int], until: int) -> list[tuple[int, int, str]]:
    return released(Partners(Chunks(nobody), LIMIT, REMEMBER), steps_of(rows, times), until)


def random_rows(random: Random, count: int = 30) -> tuple[list[Step], list[int]]:
    chain = ["order", "payment", "shipment", "receipt"]
    rows: list[Step] = []
    for _ in range(count):
        at = random.randrange(len(chain))
        needs = None if at == 0 else random.choice([chain[at - 1], chain[at - 1], None])
        rows.append((f"w{random.randrange(5)}", needs, random.choice([chain[at], chain[at], None])))
    times = np.cumsum([random.choice([0, 0, 1, 100, LIMIT - 1, LIMIT]) for _ in rows]) + START
    return rows, times.tolist()


@pytest.mark.promise("L1", "L2")
def test_a_workflow_comes_out_in_order() -> None:
    rows: list[Step] = [
        ("a", "payment", "shipment"),
        ("a", "order", "payment"),
        ("b", "order", "payment"),
        ("a", None, "order"),
        ("a", "shipment", None),
    ]
    times = [START + at for at in range(5)]
    assert at_once(rows, times, START + LIMIT * 2) == [
        (3, START + 3, ALONE),
        (1, START + 3, MET),
        (0, START + 3, MET),
        (4, START + 4, MET),
        (2, START + 2 + LIMIT, MISSING),
    ]


def test_nothing_comes_out_before_what_it_needs_unless_it_is_marked() -> None:
    for seed in range(300):
        rows, times = random_rows(Random(seed))
        until = times[-1] + LIMIT
        out = at_once(rows, times, until)
        assert sorted(row for row, _, _ in out) == list(range(len(rows))), seed
        assert [time for _, time, _ in out] == sorted(time for _, time, _ in out), seed
        given: dict[Any, int] = {}
        for row, time, outcome in out:
            workflow, needs, gives = rows[row]
            if outcome == MET:
                assert time - given[workflow, needs] < REMEMBER, seed
            elif outcome == MISSING:
                assert time == times[row] + LIMIT, seed
            else:
                assert needs is None, seed
            if gives is not None:
                given[workflow, gives] = time


def test_cut_into_batches_it_is_the_same() -> None:
    for seed in range(300):
        random = Random(seed)
        rows, times = random_rows(random)
        until = times[-1] + random.choice([0, LIMIT])
        out: list[tuple[int, int, str]] = []
        kept: dict[int, bytes] = {}
        head, start = None, 0
        while start < len(rows):
            end = min(len(rows), start + random.randrange(1, 8))
            partners = Partners(Chunks(kept.__getitem__), LIMIT, REMEMBER)
            if head is not None:
                decode(head, [partners])
            steps = steps_of(rows[start:end], times[start:end], start)
            out += released(partners, steps, until if end == len(rows) else 0)
            head = encode([partners])
            put, dropped = partners.chunks.changes()
            kept |= put
            for chunk in dropped:
                del kept[chunk]
            start = end
        assert out == at_once(rows, times, until), seed
        if len(out) == len(rows):
            assert kept == {}, seed


@pytest.mark.promise("L1", "L2")
@run
async def test_a_consumer_that_defers_processes_in_the_same_order() -> None:
    """The same rule, done by a consumer with a queue: defer, remember the number, receive it."""
    for seed in range(8):
        rows, times = random_rows(Random(seed), 20)
        times = [START + at for at in range(len(rows))]
        expected = [row for row, _, _ in at_once(rows, times, times[-1])]
        clock = ManualClock(START)
        async with Bus.ephemeral(clock=clock) as bus:
            await bus.create_queue("steps")
            done: list[int] = []
            given: set[Any] = set()
            aside: dict[Any, list[int]] = {}
            receiver = bus.receiver("steps")
            for at, row in enumerate(rows):
                await bus.send("steps", msg(str(at)))
                (held,) = await get(bus, "steps")
                workflow, needs, _ = row
                if needs is not None and (workflow, needs) not in given:
                    await receiver.defer(held)
                    aside.setdefault((workflow, needs), []).append(held.sequence_number)
                else:
                    ahead = [held]
                    while ahead:
                        held = ahead.pop(0)
                        done.append(int(held.body))
                        workflow, _, gives = rows[done[-1]]
                        await receiver.complete(held)
                        if gives is not None:
                            given.add((workflow, gives))
                            numbers = aside.pop((workflow, gives), [])
                            ahead += await receiver.receive_deferred(numbers) if numbers else []
                await pass_ms(bus, clock, 1)
            assert done == expected, seed
