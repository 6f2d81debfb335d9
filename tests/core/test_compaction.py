"""Compaction: merging and rewriting blocks keeps every message byte for byte."""

from __future__ import annotations

import random
from typing import Any

import pytest

from onibus.core.commands import AcceptSession, HeldSession, Receive, Settlement
from onibus.core.path import compact as compact_module
from onibus.core.path.compact import DEAD_BYTES_MAX, compact, forget_retained
from tests.core.partition_helpers import Bench


def living(bench: Bench) -> dict[int, Any]:
    """Return every live row with all that its block says of it."""
    log, gone = bench.partition.log, bench.partition.subscription.gone
    found = {}
    for place in log.places:
        block = log.read(place)
        for position in range(block.rows):
            ordinal, stamp, expires, session, *_ = block.entry(position)
            if ordinal not in gone:
                found[ordinal] = (stamp, expires, session, block.row(position))
    return found


def compact_all(bench: Bench) -> int:
    slices = 0
    while compact(bench.partition, bench.out, eager=True):
        bench.commit()
        slices += 1
        assert slices < 1_000, "it comes to an end"
    return slices


def sizes_match(bench: Bench) -> None:
    """What the log believes of its blocks is what they are."""
    log = bench.partition.log
    assert log.total_bytes == sum(place.size for place in log.places)
    assert log.live_bytes == sum(place.live_bytes for place in log.places)
    assert [p.first for p in log.places] == sorted(p.first for p in log.places)
    assert sum(place.live for place in log.places) == len(living(bench))


@pytest.mark.parametrize("seed", range(10))
def test_every_message_is_kept_byte_for_byte(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench(requires_session=bool(seed % 2))
    for n in range(120):
        bench.now += chance.randrange(5)
        size = chance.choice((10, 300, 3_000))
        bodies = [b"%d/%d " % (n, at) + b"x" * size for at in range(chance.randrange(1, 6))]
        ttl = chance.choice((None, 10**9 + n))
        bench.send(*bodies, session_id=f"s{n % 7}", time_to_live_ms=ttl)
    slices = 0
    for _ in range(4):
        take_some(bench, chance)
        before = living(bench)
        slices += compact_all(bench)
        assert living(bench) == before
        sizes_match(bench)
        bench.restart()
        assert living(bench) == before
        sizes_match(bench)
    assert slices > 0


def take_some(bench: Bench, chance: random.Random) -> None:
    """Complete some of what can be received, and defer some."""
    if bench.settings.requires_session:
        accepted = bench.apply(AcceptSession(0, None))
        assert accepted is not None
        session = HeldSession(accepted.session_id, accepted.token)
        received = bench.apply(Receive(0, 30, session=session)).messages
        bench.commit()
    else:
        received = bench.receive(90)
    for message in received:
        if chance.random() < 0.1:
            bench.settle(Settlement("defer"), message)
            bench.commit()
        else:
            bench.complete(message)


def test_many_small_blocks_become_few() -> None:
    bench = Bench()
    for n in range(500):
        bench.send(b"%d" % n)
    compact_all(bench)
    assert len(bench.partition.log.places) < 50
    assert [m.body for m in bench.receive(500)] == [b"%d" % n for n in range(500)]


def test_what_is_being_received_is_not_rewritten_unless_it_is_much() -> None:
    bench = Bench()
    body, rows = b"x" * 50_000, 20
    log = bench.partition.log
    while log.total_bytes - log.live_bytes <= DEAD_BYTES_MAX:
        assert not compact(bench.partition, bench.out), "it may soon go by itself"
        bench.send(*[body] * rows)
        first, *others = bench.receive(rows)
        bench.complete(*others)
        bench.settle(Settlement("defer"), first)
        bench.commit()
    before = living(bench)
    while compact(bench.partition, bench.out):
        bench.commit()
    assert log.total_bytes - log.live_bytes <= DEAD_BYTES_MAX
    assert living(bench) == before
    sizes_match(bench)


def test_blocks_without_living_rows_go_whole() -> None:
    bench = Bench()
    for n in range(10):
        bench.send(b"%d" % n, b"x")
    bench.complete(*bench.receive(20))
    assert bench.partition.log.places == []
    assert bench.partition.log.total_bytes == bench.partition.log.live_bytes == 0
    assert len(bench.partition.subscription.gone.firsts) == 1


@pytest.mark.parametrize("sessions", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_messages_are_settled_between_the_slices_of_a_rewrite(
    seed: int, sessions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_module, "SLICE_STEPS", 700)
    chance = random.Random(seed)
    bench = Bench(requires_session=sessions)
    for n in range(200):
        bench.send(*[b"%d/%d" % (n, at) for at in range(3)], session_id=f"s{n % 7}")
    taken, restarts = chance.sample(range(20, 200), 6), chance.sample(range(200), 2)
    for at in range(400):
        compact(bench.partition, bench.out, eager=True)
        bench.commit()
        sizes_match(bench)
        if at in taken:
            take_some(bench, chance)
        if at in restarts:
            bench.restart()
    assert len(bench.partition.log.places) < 100


@pytest.mark.promise("R2")
def test_a_reader_that_is_added_between_two_slices_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compact_module, "SLICE_STEPS", 1)
    bench = Bench()
    for n in range(60):
        bench.send(b"%d/0" % n, b"%d/1" % n)
    for message in bench.receive(120)[1::2]:
        bench.complete(message)
    log = bench.partition.log
    for _ in range(20):
        assert compact(bench.partition, bench.out, eager=True)
    ordinal = log.complete_from
    bench.partition.keep_for("reader", ordinal)
    compact_all(bench)
    rows = sum(place.rows for place in log.places if place.first >= ordinal)
    assert rows == log.next_ordinal - ordinal


@pytest.mark.promise("R1")
@pytest.mark.parametrize("old", [0, 1, 130, 199, 200])
def test_where_retention_ends_is_found_by_reading_a_few_blocks(old: int) -> None:
    bench = Bench(retention_ms=60_000)
    for n in range(200):
        bench.now += 60_001 if n == old else n % 3
        bench.send(b"%d" % n)
    bench.restart()
    bench.store.blocks_read = 0
    now = bench.now + (60_001 if old == 200 else 0)
    forget_retained(bench.partition, now, bench.out)
    assert bench.partition.log.floor == old + 1
    assert bench.store.blocks_read <= 9
