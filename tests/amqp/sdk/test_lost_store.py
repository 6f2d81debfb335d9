"""One store of two is taken away from a running server, and given back, while clients go on.

Its directory is moved away, as if its disk were pulled out.
"""

from __future__ import annotations

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.towns import Town
from tests.amqp.sdk.world import (
    World,
    bodies,
    get,
    msg,
    partitions,
    peek_all,
    until,
)
from tests.bus_helpers import KEYS
from tests.over_http.test_lost_store import Disk

# These clients leave the sockets of broken connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.promise("P2", "P5", "P6", "P9", "P10", "P13", "D9")
@scenario
async def test_a_store_is_taken_away_and_given_back(town: Town) -> None:
    disk = Disk(town.place.stores["a"], mounted=False)
    async with town.serve() as server:
        story = await Story.begin(town.world(server))
        disk.take_away()
        await story.while_it_is_away()
        disk.give_back()
        await story.after()


class Story:
    """Queues over two stores, one of which is away for a while."""

    def __init__(self, world: World) -> None:
        self._world = world

    @classmethod
    async def begin(cls, world: World) -> Story:
        story = cls(world)
        await story._make()
        return story

    async def _make(self) -> None:
        world = self._world
        self._queue = await world.queue(enable_partitioning=True)
        self._detecting = await world.queue(
            enable_partitioning=True, requires_duplicate_detection=True
        )
        # One of them is in the store that goes, one in the other.
        self._sources = [await world.queue(forward_to=self._queue) for _ in range(2)]
        queue, detecting = self._queue, self._detecting
        self._sender, self._receiver, self._to_detecting, self._detected = await world.open(
            world.to(queue), world.of(queue), world.to(detecting), world.of(detecting)
        )
        self._to_sources = await world.open(*(world.to(one) for one in self._sources))
        await self._to_detecting.send_messages([msg(key, key) for key in KEYS])

    async def _offline(self) -> tuple[int, ...]:
        """Return the partitions that are down, once there are some.

        Somebody has to use the store: that its files are gone is seen after a commit.
        """
        for key in KEYS:
            try:
                await self._sender.send_messages(msg("probe", partition_key=key))
            except ServiceBusError:
                continue
        return (await self._world.owner.queue(self._detecting)).offline_partitions

    async def while_it_is_away(self) -> None:
        world, queue, detecting = self._world, self._queue, self._detecting
        down = await until(self._offline)
        lost = [KEYS[index] for index in down]
        fine = [key for key in KEYS if key not in lost]
        assert len(lost) == 8
        for name in (queue, detecting):
            assert (await world.admin.get_queue(name)).availability_status == "Limited"
        assert await world.counts(detecting) == (8, 0, 0), "those that can be counted"
        # A client that would try again is told that this is worth it.
        sender = self._to_detecting
        for key in lost[:2]:
            with pytest.raises(ServiceBusServerBusyError) as busy:
                await sender.send_messages(msg("retried", "new", partition_key=key))
            assert busy.value._retryable
        mixed = [msg("never", "mixed", partition_key=key) for key in (fine[0], lost[0])]
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(mixed)
        assert await world.counts(detecting) == (8, 0, 0), "nothing is stored"
        await sender.send_messages(msg("goes on", "n", partition_key=fine[0]))
        for _ in range(16):
            await self._sender.send_messages(msg("to another"))
        went = [one for one in await peek_all(self._receiver) if str(one) == "to another"]
        assert len(went) == 16
        missing = set((await world.owner.queue(queue)).offline_partitions)
        assert set(partitions(went)) == set(range(16)) - missing
        # A receive keeps giving out what the other partitions have.
        received = await get(self._detected, 9)
        assert sorted(bodies(received)) == sorted([*fine, "goes on"])
        for message in received:
            await self._detected.complete_message(message)
        await self._cannot_be_changed()
        await self._waits_at_the_source(KEYS[min(missing)])

    async def _waits_at_the_source(self, key: str) -> None:
        taken = []
        for source, sender in zip(self._sources, self._to_sources, strict=True):
            try:
                await sender.send_messages(msg("forwarded", partition_key=key))
            except ServiceBusServerBusyError:
                continue
            taken.append(source)
        [source] = taken
        assert await self._world.counts(source) == (1, 0, 0)

    async def _cannot_be_changed(self) -> None:
        admin = self._world.admin
        found = await admin.get_queue(self._queue)
        found.max_delivery_count = 3
        for change in (
            admin.update_queue(found),
            admin.delete_queue(self._queue),
            admin.create_queue("new", enable_partitioning=True),
        ):
            with pytest.raises(HttpResponseError) as refused:
                await change
            assert refused.value.status_code == 503
        assert (await admin.get_queue(self._queue)).max_delivery_count == 10

    async def after(self) -> None:
        world, detecting = self._world, self._detecting

        async def available() -> bool:
            told = await world.admin.get_queue(detecting)
            return bool(told.availability_status == "Available")

        await until(available)

        async def went_on() -> bool:
            return "forwarded" in bodies(await peek_all(self._receiver))

        await until(went_on)
        sender, receiver = self._to_detecting, self._detected
        # Every id that was stored is known, and none that was refused.
        await sender.send_messages([msg("again", key) for key in KEYS])
        lost = {str(one) for one in await peek_all(receiver)}
        assert len(lost) == 8
        assert "again" not in lost
        key = min(lost)
        await sender.send_messages(msg("retried", "new", partition_key=key))
        assert len(await peek_all(receiver)) == 9
        found = await world.admin.get_queue(self._queue)
        found.max_delivery_count = 3
        await world.admin.update_queue(found)
        await world.admin.delete_queue(detecting)
