"""What a stop, a kill and a start do to what the official clients have sent and hold (B8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from onibus import Bus
from tests.amqp.sdk.stage import scenario
from tests.amqp.sdk.towns import Town
from tests.amqp.sdk.world import (
    HOUR,
    World,
    bodies,
    get,
    get_one,
    moment,
    msg,
    numbers,
    partitions,
    peek_all,
    until,
)
from tests.bus_helpers import ManualClock, keys_of
from tests.bus_helpers import msg as our_msg
from tests.over_http.on_disk import kill, stop
from tests.server.processes import Served
from tests.simulator.counters import set_counter

# These clients leave the sockets of broken connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ENDS = pytest.mark.parametrize("end", [stop, kill])
#: Enough to get over the start of a server on a busy machine.
PATIENT: Any = {"retry_total": 100, "retry_mode": "fixed", "retry_backoff_factor": 0.3}


def wall() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.promise("B8", "B1", "B4", "D5", "D8", "S3", "S6", "S7", "P4", "P9", "L1")
@ENDS
@scenario
async def test_everything_outlives_a_stop_and_a_kill(
    town: Town, end: Callable[[Served], None]
) -> None:
    async with town.serve() as server:
        life = await Life.begin(town.world(server, **PATIENT))
        await asyncio.to_thread(end, server)
    while wall() < life.due_ms:
        await asyncio.sleep(0.05)
    async with town.serve() as server:
        await life.go_on(town.world(server), clean=end is stop)


class Life:
    """What is sent, held and left waiting before a server ends, and looked for after."""

    KEYS = tuple(f"customer-{n}" for n in range(20))

    def __init__(self, world: World) -> None:
        #: these clients go on over the restart
        self._first = world
        self.due_ms = 0

    @classmethod
    async def begin(cls, world: World) -> Life:
        life = cls(world)
        await life._make()
        return life

    async def _make(self) -> None:
        world = self._first
        self._parts = await world.queue(enable_partitioning=True, requires_duplicate_detection=True)
        self._queue = await world.queue(lock_duration=timedelta(minutes=5))
        self._sessions = await world.queue(requires_session=True)
        self._end = await world.queue(enable_partitioning=True)
        self._start = await world.queue(forward_to=self._end)
        detecting = self._detecting = await world.queue(requires_duplicate_detection=True)
        (
            to_parts,
            of_parts,
            sender,
            self._receiver,
            session,
            to_start,
            to_detecting,
        ) = await world.open(
            world.to(self._parts),
            world.of(self._parts),
            world.to(self._queue),
            world.of(self._queue),
            world.of(self._sessions, session_id="x"),
            world.to(self._start),
            world.to(detecting),
        )
        await to_parts.send_messages([msg(key, "m", partition_key=key) for key in self.KEYS])
        later = moment(wall() + HOUR)
        await to_parts.schedule_messages(msg("x", "scheduled", partition_key="s"), later)
        self._sent = await peek_all(of_parts)
        receiver = self._receiver
        await sender.send_messages([msg(one) for one in ("done", "aside", "bad", "held", "free")])
        done, aside, bad, self._held = await get(receiver, 4)
        await receiver.complete_message(done)
        await receiver.defer_message(aside)
        await receiver.dead_letter_message(bad, reason="why")
        await session.session.set_state(b"half way")
        [self._later] = await sender.schedule_messages(msg("later"), later)
        # A session that a killed server had given out is free when its lock has run out.
        await asyncio.gather(session.close(), world.admin.close())
        self._busy = Sender(to_detecting)
        await self._busy.sent(10)
        # It comes due while nobody is there.
        self.due_ms = wall() + 1_000
        [self._due] = await sender.schedule_messages(msg("due"), moment(self.due_ms))
        # Some are on their way when the end comes, and some wait.
        await to_start.send_messages([msg(f"{n}", partition_key=f"{n}") for n in range(300)])

    async def go_on(self, world: World, clean: bool) -> None:
        to_parts, of_parts, sender, receiver, dead, session, forwarded, detected = await world.open(
            world.to(self._parts),
            world.of(self._parts),
            world.to(self._queue),
            world.of(self._queue),
            world.of(self._queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER),
            world.of(self._sessions, session_id="x"),
            world.of(self._end),
            world.of(self._detecting),
        )
        await self._busy.sent(10)
        await self._ids_and_keys_are_known(to_parts, of_parts)
        found = {str(one): one for one in await peek_all(receiver)}
        states = ServiceBusMessageState
        assert {body: one.state for body, one in found.items()} == {
            **{"aside": states.DEFERRED, "held": states.ACTIVE, "free": states.ACTIVE},
            **{"later": states.SCHEDULED, "due": states.ACTIVE},
        }
        assert found["due"].sequence_number == self._due + 1, "it came due meanwhile"
        letter = await get_one(dead)
        assert (str(letter), letter.dead_letter_reason) == ("bad", "why")
        await sender.cancel_scheduled_messages(self._later)
        await sender.send_messages(msg("next"))
        assert numbers(await peek_all(receiver))[-1] == self._due + 2, "no gap and no reuse"
        assert await session.session.get_state() == b"half way"
        await self._lock_is_kept(receiver, clean)

        async def all_went_on() -> bool:
            return await world.counts(self._start) == (0, 0, 0)

        await until(all_went_on)
        went = sorted(bodies(await peek_all(forwarded)), key=int)
        assert went == [f"{n}" for n in range(300)], "none is lost, none forwarded twice"
        count = await self._busy.stop()
        busy = await peek_all(detected)
        assert bodies(busy) == [str(n) for n in range(count)], "none is lost, none comes twice"
        assert numbers(busy) == list(range(1, count + 1))

    async def _ids_and_keys_are_known(self, sender: Any, receiver: Any) -> None:
        again = [msg("again", "m", partition_key=key) for key in self.KEYS]
        await sender.send_messages([*again, msg("again", "scheduled", partition_key="s")])
        assert numbers(await peek_all(receiver)) == numbers(self._sent)
        await sender.send_messages([msg(key, "n", partition_key=key) for key in self.KEYS])
        more = await peek_all(receiver)
        assert len(set(numbers(more))) == 2 * len(self.KEYS) + 1
        where = set(zip(bodies(more), partitions(more), strict=True))
        assert where == set(zip(bodies(self._sent), partitions(self._sent), strict=True))

    async def _lock_is_kept(self, other: Any, clean: bool) -> None:
        """A stop keeps locks; after a kill one may end early, and its token is refused then."""
        if clean:
            assert bodies(await get(other, 3)) == ["free", "due", "next"], "it is held"
        try:
            # By the same client, on a connection of its own making.
            await self._receiver.complete_message(self._held)
        except MessageLockLostError:
            assert not clean
            assert "held" in bodies(await peek_all(other))
        else:
            assert "held" not in bodies(await peek_all(other))


class Sender:
    """Sends messages one by one, over whatever happens, by a client that tries again and again.

    What was not acknowledged is sent again, and detected as a duplicate where it was stored.
    """

    def __init__(self, link: Any) -> None:
        self._link = link
        self._count = 0
        self._stopping = False
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while not self._stopping:
            number = f"{self._count}"
            try:
                await self._link.send_messages(msg(number, f"m-{number}"))
            except ServiceBusError:
                await asyncio.sleep(0.1)
            else:
                self._count += 1

    async def sent(self, wanted: int) -> None:
        """Wait until so many more were acknowledged."""
        wanted += self._count
        while self._count < wanted and not self._task.done():
            await asyncio.sleep(0.01)

    async def stop(self) -> int:
        """Return how many were sent."""
        self._stopping = True
        await self._task
        return self._count


@pytest.mark.promise("S4", "S8")
@scenario
async def test_clocks_that_were_set_back_and_numbers_that_roll_over(town: Town) -> None:
    """A bus writes the disk by which the server starts: its clock is an hour ahead."""
    (key,) = keys_of(3, 1)
    base, last, place = 3 << 48, (1 << 48) - 1, town.place
    ahead = ManualClock(wall() + HOUR)
    async with Bus.open(place.data, stores=place.stores, clock=ahead, reserve_bytes=0) as bus:
        await bus.create_queue("clock")
        await bus.send("clock", our_msg("an hour ahead"))
        await bus.create_queue("numbers", enable_partitioning=True)
        set_counter(bus.broker, "numbers", last - 1, 3)
        await bus.send("numbers", our_msg("0", partition_key=key))
        await bus.create_queue("wide")
        set_counter(bus.broker, "wide", 2**63 - 2)
    async with town.serve() as server:
        world = town.world(server)
        sender, receiver, to_numbers = await world.open(
            world.to("clock"), world.of("clock"), world.to("numbers")
        )
        await to_numbers.send_messages([msg(body, partition_key=key) for body in "123"])
        to_wide = await world.sender("wide")
        await to_wide.send_messages([msg(body) for body in "0123"])
        await _times_run_on(sender, receiver)
        await asyncio.to_thread(kill, server)
    async with town.serve() as server:
        receiver = await town.world(server).receiver("numbers")
        received = await get(receiver, 4)
        assert bodies(received) == ["0", "1", "2", "3"], "their order does not wrap"
        assert numbers(received) == [base + last - 1, base + last, base, base + 1]
        await receiver.defer_message(received[2])
        [again] = await receiver.receive_deferred_messages(base)
        assert str(again) == "2"
        receiver = await town.world(server).receiver("wide")
        received = await get(receiver, 4)
        assert bodies(received) == ["0", "1", "2", "3"]
        assert numbers(received) == [2**63 - 2, 2**63 - 1, 0, 1]
        for message in received:
            await receiver.complete_message(message)
        assert await receiver.peek_messages(10) == []


async def _times_run_on(sender: Any, receiver: Any) -> None:
    for body in ("1", "2"):
        await sender.send_messages(msg(body))
    stamps = [one.enqueued_time_utc for one in await peek_all(receiver)]
    assert stamps[0] > moment(wall() + HOUR // 2)
    assert stamps == sorted(stamps)
    await sender.schedule_messages(msg("soon"), moment(wall() + 300))
    *_, last = await get(receiver, 4)
    assert str(last) == "soon", "timers are not frozen"
