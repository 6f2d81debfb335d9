"""Transactions over two stores that an earlier version began: the namespace's store decides them.

The power failed when it had staged one transaction, and staged and decided another one. Each
completes the message of one queue and sends to another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onibus import Bus
from onibus.core.records import STAGED, WORKS
from tests.bus_helpers import ManualClock, bodies, peek_everything, run
from tests.gateway.fragile import quiet
from tests.upgrades.contents import STORES
from tests.upgrades.earlier import unpack

#: A little later than the directory was made.
LATER_MS = 1_795_070_000_000


def store_of(shard: Any) -> Any:
    return shard.loop.store


@pytest.mark.promise("B5", "D1")
@run
async def test_an_undecided_transaction_has_not_happened_and_a_decided_one_has(
    tmp_path: Path,
) -> None:
    data = unpack("0.2.0-works", "unfinished", tmp_path)
    for again in (False, True):
        async with Bus.open(data, stores=STORES, clock=ManualClock(wall=LATER_MS)) as bus:
            await quiet(bus)
            found = {name: bodies(peek_everything(bus, name)) for name in ("a0", "a1", "b0", "b1")}
            assert found == {"a0": ["a0 held"], "a1": [], "b0": [], "b1": ["b1 new"]}
            for store in map(store_of, (bus.broker.namespace, *bus.broker.stores.values())):
                assert list(store.scan(STAGED)) == list(store.scan(WORKS)) == []
            if again:
                [received] = await bus.receiver("a0").receive(1)
                assert received.delivery_count == 0
