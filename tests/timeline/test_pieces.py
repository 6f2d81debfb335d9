"""The parts of a timeline: remembered ids, the agenda, chunks, and the state as bytes."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from onibus.core.errors import Damaged, InvalidArgument, NewerFormat
from onibus.core.numbering import Numbering
from onibus.core.timeline.agenda import DUE, Agenda
from onibus.core.timeline.chunks import Chunks, nobody
from onibus.core.timeline.known_ids import KnownIds
from onibus.core.timeline.partners import Partners
from onibus.core.timeline.state import decode, encode
from onibus.core.timeline.timeline import Arrivals, Timeline


def words(*values: tuple[int, int]) -> Any:
    return np.array(values, np.uint64).reshape(-1, 2)


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


class Keeper:
    """Keeps the chunks of a state."""

    def __init__(self) -> None:
        self.kept: dict[int, bytes] = {}
        self.reads = 0

    def read(self, number: int) -> bytes:
        self.reads += 1
        return self.kept[number]

    def take(self, chunks: Chunks) -> None:
        put, dropped = chunks.changes()
        self.kept |= put
        for number in dropped:
            del self.kept[number]


def test_known_ids_equal_a_dictionary() -> None:
    for seed in range(50):
        random, keeper = Random(seed), Keeper()
        chunks = Chunks(keeper.read)
        known, forget = KnownIds(chunks, run_entries_max=40), 0
        truth: dict[Any, tuple[int, int]] = {}
        for step in range(60):
            # Few first halves, so that identities share them.
            chosen = {(random.randrange(6), random.randrange(6)) for _ in range(5)}
            batch = sorted(chosen, key=lambda _: random.random())
            time = 10 * step + 1
            forget = max(forget, time - random.choice([50, 200]))
            known.add(words(*batch), numbers(*[step] * len(batch)), numbers(*[time] * len(batch)),
                      forget)  # fmt: skip
            truth |= dict.fromkeys(batch, (step, time))
            asked = [(high, low) for high in range(6) for low in range(7)]
            ordinals, times = known.find(words(*asked))
            for identity, ordinal, at in zip(asked, ordinals, times, strict=True):
                wanted = truth.get(identity, (-1, -1))
                if wanted[1] > forget:
                    assert (ordinal, at) == wanted, seed
                else:
                    # Forgotten entries may still be there; whoever asks looks at the time.
                    assert at <= forget, seed
            if random.random() < 0.3:
                head = known.encode()
                keeper.take(chunks)
                known = KnownIds(chunks, run_entries_max=40)
                known.decode(head)


def test_known_ids_keep_few_runs_and_let_go_of_old_ones() -> None:
    keeper = Keeper()
    chunks = Chunks(keeper.read)
    known = KnownIds(chunks)
    for step in range(1_000):
        known.add(words((step, 0), (step, 1)), numbers(step, step), numbers(step, step), step - 500)
        known.encode()
        keeper.take(chunks)
    assert len(keeper.kept) < 12
    assert len(known) < 2_200


def test_a_damaged_run_is_not_believed() -> None:
    keeper = Keeper()
    chunks = Chunks(keeper.read)
    known = KnownIds(chunks)
    known.add(words((1, 2)), numbers(3), numbers(4), 0)
    (number,) = known.encode()
    keeper.take(chunks)
    keeper.kept[number] = keeper.kept[number][:-1] + b"\x00"
    with pytest.raises(Damaged):
        KnownIds(Chunks(keeper.read)).decode([number])


def test_an_agenda_gives_rows_at_their_time_and_in_order() -> None:
    for seed in range(50):
        random, keeper = Random(seed), Keeper()
        chunks = Chunks(keeper.read)
        agenda, waiting, place, now = Agenda(chunks, chunk_bytes=200), [], 0, 0
        for _ in range(40):
            dues = [now + random.randrange(1, 300) for _ in range(random.randrange(8))]
            places = list(range(place, place + len(dues)))
            place += len(dues)
            agenda.add(pa.table({"row": pa.array(places, pa.int64())}), dues, places)
            waiting += list(zip(dues, places, strict=True))
            if random.random() < 0.5:
                head = agenda.encode()
                keeper.take(chunks)
                agenda = Agenda(chunks, chunk_bytes=200)
                agenda.decode(head)
            now += random.randrange(100)
            taken = agenda.take(now)
            due = sorted(one for one in waiting if one[0] <= now)
            waiting = [one for one in waiting if one[0] > now]
            rows = [] if taken is None else taken.column("row").to_pylist()
            assert rows == [at for _, at in due], seed
            if taken is not None:
                assert taken.column(DUE).to_pylist() == [time for time, _ in due]
            assert len(agenda) == len(waiting)
        agenda.take(now + 1_000)
        agenda.encode()
        keeper.take(chunks)
        assert keeper.kept == {}, seed


def test_what_is_not_due_is_not_read() -> None:
    keeper = Keeper()
    chunks = Chunks(keeper.read)
    agenda = Agenda(chunks, chunk_bytes=1_000)
    agenda.add(pa.table({"body": ["x" * 100] * 100}), list(range(1_000, 1_100)), list(range(100)))
    agenda.encode()
    keeper.take(chunks)
    assert len(keeper.kept) > 5
    assert agenda.take(999) is None
    assert keeper.reads == 0
    taken = agenda.take(1_000)
    assert taken is not None
    assert taken.num_rows == 1
    assert keeper.reads == 1


def test_time_does_not_run_backwards() -> None:
    timeline = Timeline(Numbering(0, False), Chunks(nobody))
    rows = pa.table({"row": [1, 2]})
    timeline.take(Arrivals(rows, numbers(5_000, 6_000)))
    passed = timeline.take(Arrivals(rows, numbers(4_000, 7_000)))
    assert passed.stamps.tolist() == [6_000, 7_000]
    assert passed.numbers.tolist() == [3, 4]


def test_a_state_of_something_else_is_refused() -> None:
    timeline = Timeline(Numbering(0, False), Chunks(nobody))
    partners = Partners(Chunks(nobody), 1, 1)
    with pytest.raises(InvalidArgument, match="another operator"):
        decode(encode([timeline]), [partners])
    with pytest.raises(NewerFormat):
        decode(b"\x93\x02\x00\x90", [timeline])
    with pytest.raises(Damaged):
        decode(b"\xc1", [timeline])
