"""One store of several is taken away from a running server, and given back, while clients go on.

Its directory is moved away, as if its disk were pulled out: the server misses the files, and finds
nothing where they were. In one case an empty directory stands there, as where a disk is mounted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from onibus import Message
from onibus.client import AsyncClient
from onibus.core.errors import PartitionOffline, Unknown
from tests.bus_helpers import KEYS
from tests.over_http.helpers import bodies, everything, get, msg, partition_index, until
from tests.over_http.on_disk import Place, run


class Disk:
    """The directory of a store, which can be taken away."""

    def __init__(self, place: Path, mounted: bool) -> None:
        self._place = place
        self._elsewhere = place.with_name(place.name + "-elsewhere")
        self._mounted = mounted

    def take_away(self) -> None:
        os.rename(self._place, self._elsewhere)
        if self._mounted:
            self._place.mkdir()

    def give_back(self) -> None:
        if self._mounted:
            self._place.rmdir()
        else:
            assert not self._place.exists(), "something was made in its place"
        os.rename(self._elsewhere, self._place)


class Senders:
    """Clients that send with and without keys until they are stopped; they know what was taken."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.taken: set[str] = set()
        #: never acknowledged: each may be there, or not
        self.unknown: set[str] = set()
        self._count = 0
        self.stopping = False

    async def run(self, keyed: bool) -> None:
        while not self.stopping:
            self._count += 1
            key = KEYS[self._count % 16] if keyed else None
            body = f"{key or 'keyless'}/{self._count}"
            try:
                await self._client.send("q", Message(body=body.encode(), partition_key=key))
            except Unknown:
                self.unknown.add(body)
            except PartitionOffline:
                assert keyed, "another partition takes what has no key"
            else:
                self.taken.add(body)
            await asyncio.sleep(0.01)


async def offline(client: AsyncClient) -> tuple[int, ...]:
    """Return the partitions that are down, once there are some."""

    async def some() -> tuple[int, ...]:
        # Somebody has to use the store: that its files are gone is seen after a commit.
        for key in KEYS:
            try:
                await client.send("q", msg("probe", partition_key=key))
            except (PartitionOffline, Unknown):
                continue
        return (await client.queue("q")).offline_partitions

    found: tuple[int, ...] = await until(some)
    return found


async def available(client: AsyncClient) -> bool:
    return (await client.queue("q")).availability == "available"


async def refused(call: Awaitable[Any]) -> None:
    with pytest.raises(PartitionOffline) as told:
        await call
    assert told.value.retryable


@pytest.mark.promise("P2", "P5", "P6", "P10", "P13")
@pytest.mark.parametrize("mounted", [False, True])
@run
async def test_a_store_is_taken_away_and_given_back(tmp_path: Path, mounted: bool) -> None:
    place = Place(tmp_path)
    disk = Disk(place.stores["a"], mounted)
    with place.serve():
        async with place.client() as client, place.client() as other:
            detecting = {"enable_partitioning": True, "requires_duplicate_detection": True}
            await client.create_queue("q", enable_partitioning=True)
            await client.create_queue("d", **detecting)
            before = await client.send_batch("d", [msg(key, message_id=key) for key in KEYS])
            senders = Senders(other)
            busy = [asyncio.ensure_future(senders.run(keyed)) for keyed in (True, False)]
            await asyncio.sleep(0.3)
            disk.take_away()
            down = await offline(client)
            await _while_it_is_away(client, down)
            await asyncio.sleep(0.3)
            disk.give_back()
            await until(lambda: available(client))
            await asyncio.sleep(0.2)
            senders.stopping = True
            await asyncio.gather(*busy)
            # Everything that was acknowledged is there, and what was refused is not.
            found = {m.body.decode() for m in await everything(client, "q")} - {"probe"}
            assert found >= senders.taken
            assert found - senders.taken <= senders.unknown | {"to another"}
            again = await client.send_batch("d", [msg(key, message_id=key) for key in KEYS])
            assert [one.duplicate_of for one in again] == [one.sequence_number for one in before]
            await client.change_queue("q", max_delivery_count=3)
            await client.create_queue("new", enable_partitioning=True)
            await client.delete_queue("d")


async def _while_it_is_away(client: AsyncClient, down: tuple[int, ...]) -> None:
    """Look at everything that P5, P6 and P10 promise of entities with a lost store."""
    info, detecting = await client.queue("q"), await client.queue("d")
    assert (info.availability, info.offline_partitions) == ("limited", down)
    assert (detecting.availability, len(down)) == ("limited", 8)
    lost = [KEYS[index] for index in detecting.offline_partitions]
    fine = [key for key in KEYS if key not in lost]
    assert (len(lost), detecting.active_count) == (8, 8), "those that can be counted"
    for key in lost:
        await refused(client.send("d", msg("never", message_id=key)))
    mixed = [msg("never", partition_key=key, message_id="new") for key in (fine[0], lost[0])]
    await refused(client.send_batch("d", mixed))
    assert (await client.queue("d")).active_count == 8, "nothing is stored"
    sent = [await client.send("q", msg("to another")) for _ in range(16)]
    went = {partition_index(one.sequence_number) for one in sent}
    assert went <= set(range(16)) - set(down)
    await client.send("d", msg("goes on", message_id="n", partition_key=fine[0]))
    # A receive keeps giving out what the other partitions have, and does not say 'nothing'.
    received: list[str] = []
    while some := await get(client, "d", 2):
        received += bodies(some)
    assert sorted(received) == sorted([*fine, "goes on"])
    await refused(client.create_queue("new", enable_partitioning=True))
    await refused(client.change_queue("q", max_delivery_count=3))
    await refused(client.delete_queue("q"))
    assert await client.queues() == ["d", "q"]
    assert (await client.queue("q")).settings.max_delivery_count == 10
    assert any("store a" in alarm for alarm in await client.alarms())


@pytest.mark.promise("P2", "P5", "B8")
@run
async def test_a_server_starts_without_a_store_and_gets_it_back(tmp_path: Path) -> None:
    place = Place(tmp_path)
    disk = Disk(place.stores["b"], mounted=True)
    with place.serve() as server:
        async with place.client() as client:
            await client.create_queue("q", enable_partitioning=True)
            sent = await client.send_batch("q", [msg(key, partition_key=key) for key in KEYS])
        server.stop()
    disk.take_away()
    with place.serve():
        async with place.client() as client:
            info = await client.queue("q")
            assert info.availability == "limited"
            assert len(await everything(client, "q")) == 8
            disk.give_back()
            await until(lambda: available(client))
            found = {m.sequence_number for m in await everything(client, "q")}
            assert found == {one.sequence_number for one in sent}
