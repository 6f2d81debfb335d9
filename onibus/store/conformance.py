"""Checks that every store must pass, for the tests of any store.

A check takes an `Exercise`, which opens the store under test (or reopens it) and makes its next
commit fail. It raises AssertionError:

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_store(check):
        check(Exercise(open=..., fail_next=...))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onibus.core.errors import OnibusError, StoreFailed
from onibus.core.records import (
    BLOCKS,
    COUNTERS,
    DUPLICATES,
    GONE,
    ID_CHUNKS,
    META,
    RECENT_IDS,
    SESSIONS,
    TABLES,
    Row,
    Table,
    WriteBatch,
)
from onibus.store.interface import Store


@dataclass(frozen=True)
class Exercise:
    """Access of a check to the store under test."""

    #: Opens the store; after a `close`, on the same data.
    open: Callable[[], Store]
    #: Makes the next commit of an open store fail.
    fail_next: Callable[[Store], None]


def batch(*rows: tuple[Table, Row]) -> WriteBatch:
    """Return a batch that puts these rows."""
    written = WriteBatch()
    for table, row in rows:
        written.put(table, row)
    return written


def block(number: int, payload: bytes = b"") -> Row:
    return (number, payload)


def commit_then_read(exercise: Exercise) -> None:
    store = exercise.open()
    store.commit(batch((BLOCKS, block(1, b"one")), (GONE, (7, 0, 5, 9))))
    assert store.read(BLOCKS, (1,)) == block(1, b"one")
    assert store.read(GONE, (7, 0, 5)) == (7, 0, 5, 9)
    assert store.read(BLOCKS, (2,)) is None
    assert store.read(GONE, (7, 0, 6)) is None
    store.close()


def put_replaces_the_whole_row(exercise: Exercise) -> None:
    store = exercise.open()
    store.commit(batch((SESSIONS, (1, 0, "s", b"state", 5, 6, 7, 8, "me", b"t", 9))))
    store.commit(batch((SESSIONS, (1, 0, "s", None, 0, 0, 0, 0, "", None, 0))))
    assert list(store.scan(SESSIONS)) == [(1, 0, "s", None, 0, 0, 0, 0, "", None, 0)]
    store.close()


def delete_removes_that_row_only(exercise: Exercise) -> None:
    store = exercise.open()
    store.commit(batch(*((GONE, (1, 0, first, first)) for first in range(5))))
    written = WriteBatch()
    written.delete(GONE, (1, 0, 3))
    written.delete(GONE, (1, 0, 77))
    written.put(GONE, (1, 0, 4, 40))
    store.commit(written)
    assert [(row[2], row[3]) for row in store.scan(GONE)] == [(0, 0), (1, 1), (2, 2), (4, 40)]
    store.close()


def last_word_of_a_batch_counts(exercise: Exercise) -> None:
    store = exercise.open()
    store.commit(batch((BLOCKS, block(1)), (BLOCKS, block(2))))
    written = batch((BLOCKS, block(3, b"early")), (BLOCKS, block(3, b"late")))
    written.delete(BLOCKS, (1,))
    written.put(BLOCKS, block(1, b"back"))
    written.put(BLOCKS, block(2, b"not any more"))
    written.delete(BLOCKS, (2,))
    store.commit(written)
    assert list(store.scan(BLOCKS)) == [block(1, b"back"), block(3, b"late")]
    store.close()


def absorbed_batch_comes_after(exercise: Exercise) -> None:
    store = exercise.open()
    earlier = batch((BLOCKS, block(1, b"a")), (BLOCKS, block(2, b"a")))
    earlier.delete(BLOCKS, (3,))
    later = batch((BLOCKS, block(1, b"b")), (BLOCKS, block(3, b"b")), (META, ("m", 1)))
    later.delete(BLOCKS, (2,))
    earlier.absorb(later)
    store.commit(earlier)
    assert list(store.scan(BLOCKS)) == [block(1, b"b"), block(3, b"b")]
    assert store.read(META, ("m",)) == ("m", 1)
    store.close()


def empty_batch_is_harmless(exercise: Exercise) -> None:
    store = exercise.open()
    store.commit(WriteBatch())
    store.commit(batch((BLOCKS, block(1))))
    store.commit(WriteBatch())
    assert list(store.scan(BLOCKS)) == [block(1)]
    store.close()


def scan_goes_by_key(exercise: Exercise) -> None:
    store = exercise.open()
    numbers = [5, -3, 2**62, 0, -(2**62), 9, 10, 1]
    texts = ["b", "", "é", "a\x00b", "a", "Z", "\U0001f68c", "\uffee"]
    for number in numbers:
        store.commit(batch((RECENT_IDS, (number, 0, b""))))
    rows = [
        (number % 3, number, text, None, 0, 0, 0, 0, "", None, 0)
        for number in (2, 1)
        for text in texts
    ]
    store.commit(batch(*((SESSIONS, row) for row in rows)))
    assert [row[0] for row in store.scan(RECENT_IDS)] == sorted(numbers)
    assert [row[:3] for row in store.scan(SESSIONS)] == sorted(row[:3] for row in rows)
    store.close()


def scan_gives_the_columns_asked_for(exercise: Exercise) -> None:
    store = exercise.open()
    store.commit(batch((BLOCKS, block(2, b"payload")), (BLOCKS, block(1, b"x"))))
    assert list(store.scan(BLOCKS, ("payload", "block"))) == [(b"x", 1), (b"payload", 2)]
    assert list(store.scan(BLOCKS, ("payload",))) == [(b"x",), (b"payload",)]
    assert list(store.scan(COUNTERS)) == []
    store.close()


def scan_keeps_its_moment(exercise: Exercise) -> None:
    store = exercise.open()
    before = [block(number) for number in range(500)]
    store.commit(batch(*((BLOCKS, row) for row in before)))
    rows = store.scan(BLOCKS)
    seen = [next(rows)]
    written = batch((BLOCKS, block(7, b"changed")), (BLOCKS, block(1000)))
    written.delete(BLOCKS, (499,))
    store.commit(written)
    assert store.read(BLOCKS, (7,)) == block(7, b"changed"), "a scan must not hold other reads back"
    assert store.highest(BLOCKS) == 1000
    seen.extend(rows)
    assert seen == before
    assert len(list(store.scan(BLOCKS))) == 500
    store.close()


def every_table_takes_every_value(exercise: Exercise) -> None:
    values = (0, -1, 2**63 - 1, -(2**63), "", "text\x00é\U0001f68c", b"", b"\x00\xff", None)
    store = exercise.open()
    wanted: dict[Table, list[Row]] = {}
    for table in TABLES:
        if table is META:
            continue
        others = len(table.columns) - table.key
        rows: list[Row] = [
            (*(1,) * (table.key - 1), number, *(values[number - 1],) * others)
            for number in range(1, len(values) + 1)
        ]
        wanted[table] = rows
        store.commit(batch(*((table, row) for row in rows)))
    store.close()
    store = exercise.open()
    for table, rows in wanted.items():
        assert list(store.scan(table)) == rows, table.name
        assert [store.read(table, row[: table.key]) for row in rows] == rows, table.name
    store.close()


def keys_of_several_kinds(exercise: Exercise) -> None:
    store = exercise.open()
    rows: list[Row] = [
        (1, "sub", "session", b"x", 0, 0, 0, 0, "", None, 0),
        (1, "sub", "Session", b"y", 0, 0, 0, 0, "", None, 0),
        (1, "sub", "session ", b"z", 0, 0, 0, 0, "", None, 0),
        (1, "Sub", "session", b"w", 0, 0, 0, 0, "", None, 0),
    ]
    store.commit(batch(*((SESSIONS, row) for row in rows)))
    assert [store.read(SESSIONS, row[:3]) for row in rows] == rows
    store.commit(batch((META, ("name of mine", b"v")), (DUPLICATES, (2**62, 3, "id", 1, 2))))
    assert store.read(META, ("name of mine",)) == ("name of mine", b"v")
    assert store.read(DUPLICATES, (2**62, 3)) == (2**62, 3, "id", 1, 2)
    store.close()


def highest_is_the_greatest_first_key(exercise: Exercise) -> None:
    store = exercise.open()
    assert store.highest(BLOCKS) is None
    store.commit(batch((BLOCKS, block(3)), (BLOCKS, block(12)), (GONE, (9, 1, 1, 1))))
    store.commit(batch((GONE, (8, 5, 5, 5)), (BLOCKS, block(5))))
    assert store.highest(BLOCKS) == 12
    assert store.highest(GONE) == 9
    written = WriteBatch()
    written.delete(BLOCKS, (12,))
    store.commit(written)
    assert store.highest(BLOCKS) == 5
    store.close()


def large_values_come_back(exercise: Exercise) -> None:
    store = exercise.open()
    payload = bytes(range(256)) * 4096
    chunk = payload[::-1]
    store.commit(batch((BLOCKS, block(1, payload)), (ID_CHUNKS, (1, 0, chunk))))
    store.commit(batch((BLOCKS, block(2, payload + b"!"))))
    assert store.size() >= 2 * len(payload)
    store.close()
    store = exercise.open()
    assert [row[-1] for row in store.scan(BLOCKS)] == [payload, payload + b"!"]
    assert store.read(ID_CHUNKS, (1,)) == (1, 0, chunk)
    assert list(store.scan(BLOCKS, ("block",))) == [(1,), (2,)]
    store.close()


def reopening_keeps_what_was_committed(exercise: Exercise) -> None:
    for number in range(1, 6):
        store = exercise.open()
        assert [row[0] for row in store.scan(BLOCKS, ("block",))] == list(range(1, number))
        store.commit(batch((BLOCKS, block(number)), (COUNTERS, (0, number, 0, 0, 0, 0, 0, 0, 0))))
        store.maintain()
        assert store.size() > 0
        store.close()
    store = exercise.open()
    assert store.read(COUNTERS, (0,)) == (0, 5, 0, 0, 0, 0, 0, 0, 0)
    assert store.highest(BLOCKS) == 5
    store.close()


def failed_commit_is_whole_or_absent(exercise: Exercise) -> None:
    store = exercise.open()
    store.commit(batch((BLOCKS, block(1)), (GONE, (1, 0, 1, 1))))
    exercise.fail_next(store)
    refused(lambda: store.commit(batch((BLOCKS, block(2)), (GONE, (1, 0, 2, 2)))), OnibusError)
    store.close()
    store = exercise.open()
    blocks = [row[0] for row in store.scan(BLOCKS)]
    assert blocks in ([1], [1, 2])
    assert [row[2] for row in store.scan(GONE)] == blocks
    store.commit(batch((BLOCKS, block(3))))
    assert store.read(BLOCKS, (3,)) == block(3)
    store.close()


def failed_commit_poisons(exercise: Exercise) -> None:
    store = exercise.open()
    store.commit(batch((BLOCKS, block(1))))
    exercise.fail_next(store)
    refused(lambda: store.commit(batch((BLOCKS, block(2)))), OnibusError)
    nothing_works(store)
    store.close()
    store.close()


def closed_store_refuses(exercise: Exercise) -> None:
    store = exercise.open()
    store.close()
    nothing_works(store)
    store.close()


def nothing_works(store: Store) -> None:
    """Assert that every call but `close` raises StoreFailed."""
    refused(lambda: store.commit(batch((BLOCKS, block(9)))), StoreFailed)
    refused(lambda: store.read(BLOCKS, (1,)), StoreFailed)
    refused(lambda: store.scan(BLOCKS), StoreFailed)
    refused(lambda: store.highest(BLOCKS), StoreFailed)
    refused(lambda: store.maintain(), StoreFailed)
    refused(lambda: store.probe(), StoreFailed)
    refused(lambda: store.size(), StoreFailed)


def refused(call: Callable[[], object], kind: type[OnibusError]) -> None:
    """Assert that the call raises an error of that kind."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__} was raised")


CHECKS = (
    commit_then_read,
    put_replaces_the_whole_row,
    delete_removes_that_row_only,
    last_word_of_a_batch_counts,
    absorbed_batch_comes_after,
    empty_batch_is_harmless,
    scan_goes_by_key,
    scan_gives_the_columns_asked_for,
    scan_keeps_its_moment,
    every_table_takes_every_value,
    keys_of_several_kinds,
    highest_is_the_greatest_first_key,
    large_values_come_back,
    reopening_keeps_what_was_committed,
    failed_commit_is_whole_or_absent,
    failed_commit_poisons,
    closed_store_refuses,
)
