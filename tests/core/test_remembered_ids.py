"""Remembered ids against a plain dictionary: any order of work, any crash, the same answers."""

from __future__ import annotations

import random
import tracemalloc
from collections import deque

import pytest

from onibus.core.errors import Damaged
from onibus.core.id_runs import Sizes
from onibus.core.records import ID_CHUNKS, ID_RUNS, RECENT_IDS, Row, Table, WriteBatch
from onibus.core.remembered_ids import RememberedIds

PARTITION = 65_536 + 3
SMALL = Sizes(
    seal_at=8,
    runs_merged=3,
    tier_max=3,
    chunk_entries=4,
    segment_words=2,
    writes_a_slice=3,
    deletes_a_slice=5,
)
TABLES = (RECENT_IDS, ID_RUNS, ID_CHUNKS)


class Disk:
    """Committed rows, and batches on their way to it; a crash loses those from some point on."""

    def __init__(self) -> None:
        self.rows: dict[Table, dict[Row, Row]] = {table: {} for table in TABLES}
        self.batches: deque[tuple[int, WriteBatch]] = deque()
        self._last_id = 0

    def read_ids(self, chunk: int) -> bytes:
        data = self.rows[ID_CHUNKS][(chunk,)][2]
        assert isinstance(data, bytes)
        return data

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def commit_next(self) -> int:
        mark, batch = self.batches.popleft()
        for table, rows in batch.tables.items():
            for key, row in rows.items():
                if row is None:
                    self.rows[table].pop(key, None)
                else:
                    self.rows[table][key] = row
        return mark

    def crash(self) -> None:
        self.batches.clear()
        ids = [key[0] for rows in self.rows.values() for key in rows]
        self._last_id = max((i for i in ids if isinstance(i, int)), default=0)

    def recover(self, sizes: Sizes) -> tuple[RememberedIds, WriteBatch]:
        ids, out = RememberedIds(PARTITION, self, sizes), WriteBatch()
        chunks = [row[0] for row in self.rows[ID_CHUNKS].values()]
        ids.recover(self.rows[RECENT_IDS].values(), self.rows[ID_RUNS].values())
        for orphan in ids.orphans(chunk for chunk in chunks if isinstance(chunk, int)):
            out.delete(ID_CHUNKS, (orphan,))
        return ids, out


def identity(number: int) -> bytes:
    """Return an identity; some share their first eight bytes, so that ties are met."""
    mixed = number * 0x9E3779B97F4A7C15 % 2**64
    high = mixed if number % 5 else (number // 20) * 0x9E3779B97F4A7C15 % 2**64
    return high.to_bytes(8, "little") + (mixed ^ number).to_bytes(8, "little")


class Owner:
    """Drives the ids as a partition does, beside a model that forgets nothing by mistake."""

    def __init__(self, seed: int, sizes: Sizes = SMALL) -> None:
        self.random = random.Random(seed)
        self.sizes = sizes
        self.disk = Disk()
        self.ids = RememberedIds(PARTITION, self.disk, sizes)
        self.out = WriteBatch()
        self.model: dict[int, tuple[int, int]] = {}
        #: The model as of each batch that is on its way.
        self.models: deque[dict[int, tuple[int, int]]] = deque()
        self.committed: dict[int, tuple[int, int]] = {}
        self.now = 1_000
        self.forget_before = 0
        self.ordinal = 0
        self.tiers_seen: set[int] = set()

    def check(self, numbers: list[int]) -> None:
        expected = []
        for number in numbers:
            time, ordinal = self.model.get(number, (-1, -1))
            expected.append(ordinal if time > self.forget_before else -1)
        found = self.ids.find([identity(number) for number in numbers], self.forget_before)
        assert found == expected

    def record(self, number: int) -> None:
        self.ids.record(identity(number), self.ordinal, self.now)
        self.model[number] = (self.now, self.ordinal)
        self.ordinal += 1

    def hand_over(self) -> None:
        self.ids.write(self.out)
        self.disk.batches.append((self.ids.mark(), self.out))
        self.models.append(dict(self.model))
        self.out = WriteBatch()

    def commit_next(self) -> None:
        if self.disk.batches:
            self.ids.settled(self.disk.commit_next())
            self.committed = self.models.popleft()

    def crash(self) -> None:
        self.disk.crash()
        self.models.clear()
        self.model = dict(self.committed)
        self.ids, self.out = self.disk.recover(self.sizes)

    def send(self, universe: int) -> None:
        numbers = [self.random.randrange(universe) for _ in range(self.random.choice((1, 4, 40)))]
        self.check(numbers)
        known = self.ids.find([identity(n) for n in numbers], self.forget_before)
        for number, ordinal in zip(numbers, known, strict=True):
            # Now and then one that is still remembered: the newest has to win.
            if ordinal < 0 or self.random.random() < 0.05:
                self.record(number)
        self.ids.write(self.out)

    def step(self, universe: int) -> None:
        self.now += self.random.choice((0, 1, 5))
        choice = self.random.random()
        if choice < 0.40:
            self.send(universe)
        elif choice < 0.70:
            for _ in range(self.random.randrange(1, 12)):
                self.ids.maintain(self.forget_before, self.out)
        elif choice < 0.82:
            self.hand_over()
        elif choice < 0.94:
            self.commit_next()
        elif choice < 0.985:
            self.forget_before = max(self.forget_before, self.now - self.random.randrange(20, 900))
        else:
            self.crash()
        tiers = (row[2] for row in self.disk.rows[ID_RUNS].values())
        self.tiers_seen.update(tier for tier in tiers if isinstance(tier, int))


@pytest.mark.promise("D5")
@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_work_and_crashes_gives_the_answers_of_a_dictionary(seed: int) -> None:
    owner = Owner(seed)
    universe = (60, 600, 6_000)[seed % 3]
    for _ in range(700):
        owner.step(universe)
    owner.check(list(range(min(universe, 2_000))))
    finish(owner)
    owner.check(list(range(min(universe, 2_000))))


def finish(owner: Owner) -> None:
    """Do all maintenance, commit it all, and open what is on the disk again."""
    owner.hand_over()
    while owner.ids.maintain(owner.forget_before, owner.out):
        owner.hand_over()
        owner.commit_next()
    owner.hand_over()
    while owner.disk.batches:
        owner.commit_next()
    owner.crash()
    assert not owner.out, "nothing is orphaned once all is committed"


@pytest.mark.promise("D5")
def test_all_tiers_are_reached_and_survive_a_restart() -> None:
    owner = Owner(1)
    for number in range(8 * 27 * 4 + 5):
        owner.record(number)
        owner.hand_over()
        while owner.ids.maintain(owner.forget_before, owner.out):
            owner.hand_over()
            owner.commit_next()
    finish(owner)
    tiers = sorted(row[2] for row in owner.disk.rows[ID_RUNS].values())  # type: ignore[type-var]
    assert tiers[-1] == 3
    assert tiers.count(3) >= 3
    assert owner.ids.count == 8 * 27 * 4 + 5
    owner.check(list(range(1_000)))


@pytest.mark.promise("D5")
def test_an_entry_is_forgotten_to_the_millisecond_in_every_generation() -> None:
    owner = Owner(2)
    for number in range(200):
        owner.now = 1_000 + number
        owner.record(number)
        owner.hand_over()
        owner.commit_next()
        owner.ids.maintain(0, owner.out)
    for forget_before in range(999, 1_205):
        owner.forget_before = forget_before
        owner.check(list(range(200)))


@pytest.mark.promise("D7")
def test_what_is_forgotten_leaves_the_disk() -> None:
    owner = Owner(3)
    for number in range(500):
        owner.record(number)
        owner.hand_over()
        owner.ids.maintain(0, owner.out)
    owner.forget_before = owner.now
    finish(owner)
    assert not owner.disk.rows[ID_RUNS]
    assert not owner.disk.rows[ID_CHUNKS]
    assert len(owner.disk.rows[RECENT_IDS]) <= 8


@pytest.mark.promise("D7")
def test_memory_is_stated_as_it_is_and_small() -> None:
    ids = RememberedIds(PARTITION, Disk())
    tracemalloc.start()
    for number in range(16_000):
        ids.record(identity(number), 1_000_000 + number, 1_700_000_000_000 + number)
        if number % 64 == 63:
            ids.write(WriteBatch())
    traced = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert ids.memory_bytes() == pytest.approx(traced, rel=0.15)

    owner = Owner(8, Sizes())
    for number in range(16_384 * 12):
        owner.record(number)
    owner.hand_over()
    finish(owner)
    assert owner.ids.count == 16_384 * 12
    # One young generation and the filters; with more ids it nears the 2.5 bytes of the filter.
    sealed = owner.ids.memory_bytes() - 140 * 16_384
    assert sealed / (16_384 * 11) < 3


def test_what_is_recorded_is_not_sealed_before_it_is_written() -> None:
    owner = Owner(4)
    for number in range(100):
        owner.record(number)
    assert not owner.ids.maintain(0, owner.out)
    assert not owner.out
    owner.check(list(range(120)))
    owner.ids.write(owner.out)
    assert len(owner.out.tables[RECENT_IDS]) == -(-100 // 8), "a row for each generation"
    assert owner.ids.maintain(0, owner.out)


def test_a_crash_while_merging_leaves_orphans_that_recovery_deletes() -> None:
    owner = Owner(5, Sizes(seal_at=64, runs_merged=4, chunk_entries=4, segment_words=2))
    for number in range(64 * 4 + 1):
        owner.record(number)
    owner.hand_over()
    while len(owner.disk.rows[ID_RUNS]) < 4:
        owner.ids.maintain(0, owner.out)
        owner.hand_over()
        owner.commit_next()
    for _ in range(8):
        owner.ids.maintain(0, owner.out)
        owner.hand_over()
        owner.commit_next()
    owner.crash()
    assert owner.out.tables[ID_CHUNKS]
    owner.check(list(range(300)))
    finish(owner)
    owner.check(list(range(300)))
    assert [row[2] for row in owner.disk.rows[ID_RUNS].values()] == [1]


@pytest.mark.promise("D5")
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_rows_of_small_commits_are_folded_and_none_is_lost(lost: int) -> None:
    owner = Owner(7, Sizes(seal_at=700, chunk_entries=16))
    for number in range(1_000):
        owner.record(number)
        if number % 100 == 99:
            for more in range(1_000 + 40 * number, 1_000 + 40 * number + 40):
                owner.record(more)
        owner.hand_over()
        while len(owner.disk.batches) > lost:
            owner.commit_next()
        owner.ids.maintain(0, owner.out)
        if number % 130 == 77:
            owner.crash()
            owner.check(list(range(1_100)))
        assert len(owner.disk.rows[RECENT_IDS]) < 400
    finish(owner)
    owner.check(list(range(50_000)))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_flipped_bit_is_noticed(table: Table) -> None:
    owner = Owner(6)
    for number in range(30):
        owner.record(number)
    owner.hand_over()
    while owner.ids.maintain(0, owner.out):
        owner.hand_over()
    while owner.disk.batches:
        owner.commit_next()
    for key, row in owner.disk.rows[table].items():
        whole = row[-1]
        assert isinstance(whole, bytes)
        owner.disk.rows[table][key] = (*row[:-1], bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(Damaged):
        recover_and_find(owner.disk)


def recover_and_find(disk: Disk) -> None:
    ids, _ = disk.recover(SMALL)
    ids.find([identity(number) for number in range(30)], 0)


def test_nothing_remembered_finds_nothing() -> None:
    ids = RememberedIds(PARTITION, Disk())
    assert ids.find([identity(1)], 0) == [-1]
    assert ids.find([], 0) == []
    assert ids.count == 0
    assert not ids.maintain(0, WriteBatch())
