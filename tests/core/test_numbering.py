"""Sequence numbers that roll over (S8), with a counter of a few bits."""

from __future__ import annotations

import pytest

from onibus.core.errors import MessageNotFound
from onibus.core.numbering import Numbering
from onibus.core.path.deliver import find_deferred
from onibus.core.path.settle import defer
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
            assert message.token is not None
            defer(bench.partition.subscription, message.token, bench.now, bench.out)
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
        (ordinal,) = find_deferred(bench.partition.subscription, [number], None, dead=False)
        assert bench.partition.subscription.view(ordinal).body == b"kept %d" % number
    with pytest.raises(MessageNotFound):
        bench.partition.subscription.ordinal(5)
