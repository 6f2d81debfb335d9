"""What a stop, a kill and a start do to a server with a disk (B8, and what outlives restarts)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onibus import Bus
from onibus.core.errors import LockLost, QuotaExceeded, SessionLocked
from tests.bus_helpers import KEYS, ManualClock
from tests.over_http.helpers import (
    HOUR,
    MINUTE,
    bodies,
    everything,
    get,
    get_one,
    msg,
    numbers,
    partition_index,
    send,
    until,
)
from tests.over_http.on_disk import Place, kill, run, stop
from tests.server.processes import Served, served
from tests.simulator.counters import set_counter

ENDS = pytest.mark.parametrize("end", [stop, kill])


def wall() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.promise("B8", "D5", "D8", "F1", "S3", "S7", "P4", "L1", "L5", "R5", "R2", "B4")
@ENDS
@run
async def test_everything_outlives_a_stop_and_a_kill(
    place: Place, end: Callable[[Served], None]
) -> None:
    keys = [f"customer-{n}" for n in range(20)]
    with place.serve() as server:
        async with place.client() as client:
            detecting = {"requires_duplicate_detection": True, "enable_partitioning": True}
            await client.create_queue("p", **detecting)
            await client.create_queue("f", fifo=True)
            await client.create_queue("q", retention_ms=HOUR)
            await client.create_queue("s", requires_session=True)
            batch = [msg(key, message_id="m", partition_key=key) for key in keys]
            sent = await client.send_batch("p", batch)
            await client.send("f", msg("1", message_id="d", session_id="g"))
            receiver = client.receiver("q", renew_ms=0)
            await send(client, "q", "done", "aside", "bad", "claimed", "left")
            done, aside, bad = await receiver.receive(3)
            await receiver.complete(done)
            await receiver.defer(aside)
            await receiver.dead_letter(bad, reason="why")
            claim = await client.claim("q", "job", 1)
            assert claim is not None
            due = wall() + HOUR
            scheduled = await client.schedule("q", msg("later"), due)
            reader = await client.create_reader("q", "r")
            await client.move_reader("q", "r", [2], reader.incarnation)
            async with await client.accept_session("s", "x") as session:
                await session.set_state(b"half way")
        end(server)
    with place.serve():
        async with place.client() as client:
            again = await client.send_batch("p", batch)
            assert [one.duplicate_of for one in again] == [one.sequence_number for one in sent]
            more = await client.send_batch("p", [msg(partition_key=key) for key in keys])
            assert [partition_index(one.sequence_number) for one in more] == [
                partition_index(one.sequence_number) for one in sent
            ]
            assert len({one.sequence_number for one in [*sent, *more]}) == 40
            assert (await client.send("f", msg("2", message_id="d", session_id="g"))).duplicate_of
            states = {(m.body, m.state) for m in await client.peek("q")}
            assert states >= {(b"aside", "deferred"), (b"left", "active"), (b"later", "scheduled")}
            (letter,) = await client.peek("q", dead_letters=True)
            assert (letter.body, letter.dead_letter_reason) == (b"bad", "why")
            assert bodies(await client.read_claim("q", "job", claim.number)) == ["claimed"]
            await client.commit_claim("q", "job", claim.number)
            assert (await client.readers("q"))[0].positions == (2,)
            await client.cancel_scheduled("q", [scheduled])
            assert (await client.send("q", msg("next"))).sequence_number == scheduled + 1
            async with await client.accept_session("s", "x") as session:
                assert await session.get_state() == b"half way"


@pytest.mark.promise("B8", "B4", "B1")
@run
async def test_a_clean_stop_keeps_locks(place: Place) -> None:
    with place.serve() as server:
        async with place.client() as client:
            await client.create_queue("q", lock_duration_ms=5 * MINUTE)
            await client.create_queue("s", requires_session=True, lock_duration_ms=5 * MINUTE)
            await send(client, "q", "held", "free")
            await send(client, "s", "x", session_id="a")
            held = await get_one(client, "q")
            session = await client.accept_session("s", "a", renew_ms=0)
            (of_session,) = await session.receive()
            stop(server)
            with place.serve():
                assert bodies(await get(client, "q")) == ["free"]
                with pytest.raises(SessionLocked):
                    await client.accept_session("s", "a")
                await client.receiver("q").complete(held)
                await session.complete(of_session)
                assert (await client.queue("s")).active_count == 0


@pytest.mark.promise("B8", "B1")
@run
async def test_after_a_kill_a_lock_may_end_early_and_nothing_else(place: Place) -> None:
    with place.serve() as server:
        async with place.client() as client:
            await client.create_queue("q", lock_duration_ms=5 * MINUTE)
            await send(client, "q", "x")
            held = await get_one(client, "q")
            kill(server)
            with place.serve():
                free = await get(client, "q")
                try:
                    await client.receiver("q").complete(held)
                except LockLost:
                    # Its hold was not on the disk: somebody else has the message now.
                    assert bodies(free) == ["x"]
                else:
                    assert free == []
                assert len(await client.peek("q")) == len(free)


@pytest.mark.promise("S7", "S6")
@run
async def test_what_came_due_while_the_server_was_down_is_enqueued_at_start(place: Place) -> None:
    with place.serve() as server:
        async with place.client() as client:
            await client.create_queue("q")
            due = wall() + 1_500
            number = await client.schedule("q", msg("due"), due)
            await client.schedule("q", msg("not yet"), due + HOUR)
            kill(server)
            while wall() < due:
                await asyncio.sleep(0.05)
            with place.serve():
                await until(lambda: client.peek("q", start=number + 2))
                found = [(m.body, m.state) for m in await everything(client, "q")]
                assert found == [(b"not yet", "scheduled"), (b"due", "active")]


@pytest.mark.promise("S4")
@run
async def test_a_clock_that_was_set_back_does_not_take_time_back(place: Place) -> None:
    ahead = ManualClock(wall() + HOUR)
    async with Bus.open(place.data, stores=place.stores, clock=ahead, reserve_bytes=0) as bus:
        await bus.create_queue("q", default_time_to_live_ms=10 * MINUTE)
        await bus.send("q", msg("an hour ahead"))
    with place.serve():
        async with place.client() as client:
            await send(client, "q", "1", "2")
            stamps = [m.enqueued_time_ms for m in await client.peek("q")]
            assert stamps[0] > wall() + HOUR // 2
            assert stamps == sorted(stamps)
            await client.schedule("q", msg("soon"), wall() + 300)
            assert await until(lambda: client.peek("q", start=5)), "timers are not frozen"


@pytest.mark.promise("S8")
@pytest.mark.parametrize("partitioned", [False, True], ids=["63 bits", "48 bits"])
@run
async def test_numbers_roll_over(place: Place, partitioned: bool) -> None:
    key = KEYS[3] if partitioned else None
    base, last = (3 << 48, (1 << 48) - 1) if partitioned else (0, (1 << 63) - 1)
    async with Bus.open(place.data, stores=place.stores, reserve_bytes=0) as bus:
        await bus.create_queue("q", enable_partitioning=partitioned)
        set_counter(bus.broker, "q", last - 1, 3 if partitioned else 0)
        await bus.send("q", msg("0", partition_key=key))
    with place.serve() as server:
        async with place.client() as client:
            sent = await send(client, "q", "1", "2", "3", partition_key=key)
            expected = [base + last, base, base + 1]
            assert [one.sequence_number for one in sent] == expected
            page = await client.peek("q", limit=2)
            rest = await client.peek("q", start=page[-1].sequence_number + 1)
            assert numbers(page + rest) == [base + last - 1, *expected]
            kill(server)
            with place.serve():
                received = await get(client, "q")
                assert bodies(received) == ["0", "1", "2", "3"], "their order does not wrap"
                receiver = client.receiver("q")
                await receiver.defer(received[2])
                assert bodies(await receiver.receive_deferred([base])) == ["2"]
                assert numbers(received)[1:] == expected


CONFIG = """
{   // as the emulator has it
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": false,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": true,
              "RequiresSession": false
            }
          }
        ],
        "Topics": [
          {
            "Name": "topic.1",
            "Properties": {"DefaultMessageTimeToLive": "PT1H"},
            "Subscriptions": [
              {
                "Name": "subscription.1",
                "Properties": {"MaxDeliveryCount": 3},
                "Rules": [
                  {
                    "Name": "only-red",
                    "Properties": {
                      "FilterType": "Correlation",
                      "CorrelationFilter": {"Subject": "red"}
                    }
                  }
                ]
              }
            ]
          }
        ]
      }
    ],
    "Logging": {"Type": "File"}
  }
}
"""


@pytest.mark.promise("X11")
@run
async def test_the_emulators_file_starts_the_bus(tmp_path: Path, place: Place) -> None:
    config = tmp_path / "Config.json"
    config.write_text(CONFIG)
    flags = ("--ephemeral", "--config", config, "--http-port", str(place.port))
    with served(*flags, "--log-level", "error"):
        async with place.client() as client:
            settings = (await client.queue("queue.1")).settings
            assert (settings.max_delivery_count, settings.default_time_to_live_ms) == (3, HOUR)
            await client.send("queue.1", msg("1", message_id="m"))
            assert (await client.send("queue.1", msg("2", message_id="m"))).duplicate_of == 1
            await send(client, "topic.1", "no", subject="blue")
            await send(client, "topic.1", "yes", subject="red")
            assert bodies(await get(client, "topic.1/subscriptions/subscription.1")) == ["yes"]


@pytest.mark.promise("P1", "X12")
@run
async def test_limits_are_those_of_the_settings(tmp_path: Path, place: Place) -> None:
    config = tmp_path / "small.toml"
    config.write_text("[quotas]\nentities = 3\npartitioned_entities = 1\n")
    flags = ("--ephemeral", "--config", config, "--http-port", str(place.port))
    with served(*flags, "--log-level", "error"):
        async with place.client() as client:
            await client.create_queue("p", enable_partitioning=True)
            with pytest.raises(QuotaExceeded):
                await client.create_queue("p2", enable_partitioning=True)
            await client.create_queue("q")
            await client.create_queue("r")
            with pytest.raises(QuotaExceeded):
                await client.create_queue("one-too-many")
            await client.delete_queue("r")
            await client.create_topic("t")
