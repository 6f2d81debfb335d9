"""Sequence numbers that roll over (S8), with a counter of a few bits."""

from __future__ import annotations

import pytest

from onibus.core.commands import ReceiveDeferred, Settlement
from onibus.core.errors import InvalidOperation, MessageNotFound
from onibus.core.numbering import ORDINALS_END, Numbering, from_column, to_column
from onibus.core.path.stamp import pass_over
from tests.core.partition_helpers import Bench

BITS = 4  # numbers are 0 … 15


@pytest.mark.promise("S2", "S8")
def test_numbers_are_the_counter_under_the_partitions_index() -> None:
    plain, partitioned = Numbering(0, False), Numbering(7, True)
    assert [plain.number(o) for o in (1, 2, 2**63 - 1, 2**63)] == [1, 2, 2**63 - 1, 0]
    assert [partitioned.number(o) - (7 << 48) for o in (1, 2**48 - 1, 2**48)] == [1, 2**48 - 1, 0]
    assert Numbering(0x7FFF, True).number(2**48 - 1) == 2**63 - 1, "never a negative number"


@pytest.mark.promise("S8")
def test_a_number_leads_back_to_its_youngest_ordinals() -> None:
    numbering = Numbering(3, True, BITS)
    for next_ordinal in range(1, 100):
        for ordinal in range(max(1, next_ordinal - 16), next_ordinal):
            assert numbering.candidates(numbering.number(ordinal), next_ordinal)[0] == ordinal
    assert numbering.candidates(5, 10) == (), "a number of another partition"


@pytest.mark.promise("P7", "S8")
def test_pages_of_a_peek_come_to_an_end_with_every_message() -> None:
    numbering = Numbering(3, True, BITS)
    base = numbering.number(0)
    # Messages of three rounds of the counter; `stamp` skipped the numbers in use.
    live = {5, 6, 9, 15, 20, 23, 30, 35, 40, 42}
    assert len({numbering.number(ordinal) for ordinal in live}) == len(live)
    for first, next_ordinal in ((1, 43), (5, 43), (5, 48), (5, 53)):
        for size in (1, 2, 3, 20):
            seen: list[int] = []
            start = 0
            while True:
                begin = numbering.not_below(start, first, next_ordinal, live.__contains__)
                page = sorted(ordinal for ordinal in live if ordinal >= begin)[:size]
                if not page:
                    break
                seen += page
                assert len(seen) <= len(live)
                start = numbering.number(page[-1]) + 1
            assert seen == sorted(live)
    assert numbering.not_below(base + 16, 5, 43, live.__contains__) == 16, "behind the last number"
    assert numbering.not_below(base + 17, 5, 43, live.__contains__) == 43, "no number at all"


@pytest.mark.promise("P7", "S8")
def test_a_peek_starts_below_or_above_what_is_there() -> None:
    def nothing(_: int) -> bool:
        return False

    numbering = Numbering(0, False, BITS)
    # Not rolled over: as numbers go.
    assert [numbering.not_below(n, 5, 9, nothing) for n in (0, 1, 5, 7, 9, 12)] == [
        5,
        5,
        5,
        7,
        9,
        9,
    ]
    # Ordinals 21 to 24 have the numbers 5 to 8: 3 is nearer below them, 10 nearer above.
    assert [numbering.not_below(n, 21, 25, nothing) for n in (0, 3, 7, 9, 10)] == [
        21,
        21,
        23,
        25,
        25,
    ]


@pytest.mark.promise("S8")
def test_ordinals_are_kept_in_columns_of_signed_integers() -> None:
    for ordinal in (0, 1, 2**63 - 1, 2**63, 2**64 - 1):
        assert -(2**63) <= to_column(ordinal) < 2**63
        assert from_column(to_column(ordinal)) == ordinal
    assert to_column(2**63 - 1) == 2**63 - 1, "as they always were"


@pytest.mark.promise("S8")
def test_a_partition_without_ordinals_refuses_messages() -> None:
    bench = Bench()
    pass_over(bench.partition, ORDINALS_END - 3, bench.out)
    assert [one.sequence_number for one in bench.send(b"a", b"b")] == [2**63 - 3, 2**63 - 2]
    with pytest.raises(InvalidOperation, match="ordinals"):
        bench.send(b"c")


@pytest.mark.promise("S8")
def test_the_counter_rolls_over_and_order_is_kept() -> None:
    bench = Bench(BITS)
    seen = []
    for n in range(50):
        (sent,) = bench.send(b"%d" % n)
        seen.append(sent.sequence_number)
        if n % 3 == 0:
            bench.restart()
        if n % 5 == 4:
            received = bench.receive(10)
            assert [m.body for m in received] == [b"%d" % m for m in range(n - 4, n + 1)]
            bench.complete(*received)
    assert seen == [n % 16 for n in range(1, 51)]


@pytest.mark.promise("S8")
@pytest.mark.parametrize("batch", [1, 7])
def test_a_number_still_in_use_is_not_given_out_again(batch: int) -> None:
    bench = Bench(BITS)
    bench.send(b"a", b"kept 2", b"b", b"kept 4")
    received = bench.receive(4)
    for message in received:
        if message.body.startswith(b"kept"):
            bench.settle(Settlement("defer"), message)
    bench.commit()
    bench.complete(received[0], received[2])
    given: list[int] = []
    for n in range(42 // batch):
        sent = bench.send(*[b"%d" % n] * batch)
        given += [one.sequence_number for one in sent]
        bench.complete(*bench.receive(batch))
        bench.restart()
    free = [n for n in range(16) if n not in (2, 4)]
    start = free.index(5)
    assert given == [free[(start + at) % 14] for at in range(len(given))]
    for number in (2, 4):
        (kept,) = bench.apply(ReceiveDeferred(0, [number]))
        assert kept.body == b"kept %d" % number
    with pytest.raises(MessageNotFound):
        bench.partition.subscription.ordinal(5)
