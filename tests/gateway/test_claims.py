"""Claims (R5, R7, R8): messages set aside for a named reader, until committed or given back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from onibus import Bus, Filter, ReceivedMessage
from onibus.core.errors import (
    ClaimNotFound,
    EntityDisabled,
    EntityNotFound,
    EntityReplaced,
    InvalidArgument,
    InvalidOperation,
    MessageNotFound,
)
from onibus.core.invariants import violations
from onibus.core.records import CLAIMS, HOLDS
from onibus.directory import claim_reading
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    SECOND,
    Disks,
    ManualClock,
    bodies,
    crash,
    get,
    msg,
    numbers,
    partition_at,
    pass_ms,
    run,
    send,
    settle,
)
from tests.gateway.claim_helpers import read, sound, take


@pytest.mark.promise("R5")
@run
async def test_a_claim_gives_the_same_messages_each_time(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        sent = await send(bus, "q", "1", "2", "3", "4")
        claim = await bus.claim("q", "r", 3)
        assert claim is not None
        assert (claim.entity, claim.reader, claim.number, claim.count) == ("q", "r", 1, 3)
        assert (claim.partitions, claim.read) == (((0, 3),), False)
        assert claim.lease_until_ms == claim.created_ms + MINUTE
        assert bodies(await get(bus, "q")) == ["4"], "the rest is nobody's"
        first = await bus.read_claim("q", "r", 1)
        assert numbers(first) == [one.sequence_number for one in sent[:3]]
        assert [message.token for message in first] == [None] * 3
        assert await bus.read_claim("q", "r", 1) == first
        assert await bus.claim("q", "r", 3) is None
        assert bus.queue("q").held_count == 4
        sound(bus)


@pytest.mark.promise("R5")
@pytest.mark.parametrize("how", ["stop", "crash"])
@run
async def test_a_claim_outlives_stops(tmp_path: Path, clock: ManualClock, how: str) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", "3")
        await take(bus, 2)
        before = await bus.read_claim("q", "r", 1)
        await take(bus, 1)
        if how == "crash":
            crash(bus)
    async with Bus.open(tmp_path, clock=clock) as bus:
        assert await bus.read_claim("q", "r", 1) == before
        assert await get(bus, "q") == []
        await bus.commit_claim("q", "r", 1)
        assert await read(bus, 2) == ["3"], "claimed, not read, and kept"
        await bus.release_claim("q", "r", 2)
        assert await take(bus) == 3, "numbers go on"
        sound(bus)


@pytest.mark.promise("R5")
@run
async def test_committing_completes_once_and_again_is_harmless(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", "3")
        await take(bus, 2)
        await bus.commit_claim("q", "r", 1)
        assert bodies(bus.peek("q")) == ["3"]
        await bus.commit_claim("q", "r", 1)
        with pytest.raises(ClaimNotFound):
            await bus.read_claim("q", "r", 1)
        with pytest.raises(ClaimNotFound):
            await bus.release_claim("q", "r", 1)
        crash(bus)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.commit_claim("q", "r", 1)
        assert bodies(bus.peek("q")) == ["3"]
        assert bus.claims("q") == []
        sound(bus)


@pytest.mark.promise("R5")
@run
async def test_what_was_released_or_never_was_cannot_be_committed(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", "3")
        for _ in range(3):
            await take(bus, 1)
        await bus.commit_claim("q", "r", 3)
        await bus.release_claim("q", "r", 2)
        await bus.commit_claim("q", "r", 1)
        for number, reader in ((2, "r"), (4, "r"), (1, "other")):
            for call in (bus.commit_claim, bus.release_claim, bus.read_claim):
                with pytest.raises(ClaimNotFound):
                    await call("q", reader, number)
        await bus.commit_claim("q", "r", 3)
        assert bodies(bus.peek("q")) == ["2"]


@pytest.mark.promise("R5")
@run
async def test_some_of_a_claim_may_be_named_as_dead_letters(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", "3", "4")
        number = await take(bus, 3)
        one, two, _ = await bus.read_claim("q", "r", number)
        stranger = bus.peek("q")[-1].sequence_number
        for wrong in (stranger, 77):
            with pytest.raises(MessageNotFound):
                await bus.commit_claim("q", "r", number, dead_letters={wrong: (None, None)})
        assert len(await bus.read_claim("q", "r", number)) == 3, "nothing was changed"
        letters = {one.sequence_number: ("bad", "no total"), two.sequence_number: (None, None)}
        await bus.commit_claim("q", "r", number, dead_letters=letters)
        dead = bus.peek("q", dead_letters=True)
        assert [(m.body, m.dead_letter_reason, m.dead_letter_description) for m in dead] == [
            (b"1", "bad", "no total"),
            (b"2", None, None),
        ]
        assert bodies(bus.peek("q")) == ["4"]
        sound(bus)


@pytest.mark.promise("R5")
@run
async def test_releasing_counts_no_delivery_and_keeps_the_order(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", max_delivery_count=1)
        await send(bus, "q", "1", "2", "3")
        for _ in range(3):
            number = await take(bus, 2)
            await bus.read_claim("q", "r", number)
            await bus.release_claim("q", "r", number)
        received = await get(bus, "q")
        assert bodies(received) == ["1", "2", "3"]
        assert [message.delivery_count for message in received] == [0, 0, 0]
        sound(bus)


@pytest.mark.promise("R5")
@run
async def test_whoever_waits_gets_what_is_given_back(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1")
        number = await take(bus)
        waiting = asyncio.create_task(bus.receiver("q").receive(1, wait_ms=HOUR))
        await asyncio.sleep(0)
        await bus.release_claim("q", "r", number)
        assert bodies(await waiting) == ["1"]


@pytest.mark.promise("R7")
@pytest.mark.parametrize("restart", [False, True])
@run
async def test_a_claim_never_read_goes_back_after_its_lease(
    tmp_path: Path, clock: ManualClock, restart: bool
) -> None:
    bus = await Bus.open(tmp_path, clock=clock)
    await bus.create_queue("q", max_delivery_count=1)
    await send(bus, "q", "1", "2")
    await take(bus, lease_ms=10 * SECOND)
    if restart:
        await bus.close()
        bus = await Bus.open(tmp_path, clock=clock)
    await pass_ms(bus, clock, 10 * SECOND - 1)
    assert await get(bus, "q") == []
    await pass_ms(bus, clock, 1)
    assert bus.claims("q") == []
    for call in (bus.read_claim, bus.commit_claim, bus.release_claim):
        with pytest.raises(ClaimNotFound):
            await call("q", "r", 1)
    received = await get(bus, "q")
    assert [(m.body, m.delivery_count) for m in received] == [(b"1", 0), (b"2", 0)]
    sound(bus)
    await bus.close()


@pytest.mark.promise("R7")
@run
async def test_a_lease_that_ran_out_is_noticed_before_its_timer(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1")
        number = await take(bus)
        clock.advance(MINUTE)
        with pytest.raises(ClaimNotFound, match="lease"):
            await bus.read_claim("q", "r", number)
        await settle(bus)
        assert bodies(await get(bus, "q")) == ["1"]


@pytest.mark.promise("R7")
@run
async def test_a_claim_that_was_read_stays(tmp_path: Path, clock: ManualClock) -> None:
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1")
        number = await take(bus)
        await bus.read_claim("q", "r", number)
        await pass_ms(bus, clock, 100 * HOUR)
        assert bus.claims("q")[0].lease_until_ms is None
        crash(bus)
    async with Bus.open(tmp_path, clock=clock) as bus:
        await pass_ms(bus, clock, 100 * HOUR)
        assert await get(bus, "q") == []
        assert await read(bus, number) == ["1"]
        sound(bus)


@pytest.mark.promise("R8")
@run
async def test_claims_are_listed(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", "3", "4")
        await take(bus, 1, "b")
        await pass_ms(bus, clock, SECOND)
        await take(bus, 2, "a")
        await bus.read_claim("q", "a", 1)
        await take(bus, 1, "b")
        listed = [(c.reader, c.number, c.count, c.age_ms, c.read) for c in bus.claims("q")]
        assert listed == [("a", 1, 2, 0, True), ("b", 1, 1, SECOND, False), ("b", 2, 1, 0, False)]
        await bus.commit_claim("q", "b", 1)
        assert [(c.reader, c.number) for c in bus.claims("q")] == [("a", 1), ("b", 2)]


@pytest.mark.promise("R5")
@run
async def test_readers_get_different_messages_and_number_their_own(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", *"123456")
        made = await asyncio.gather(bus.claim("q", "a", 3), bus.claim("q", "b", 3))
        assert [claim and claim.number for claim in made] == [1, 1]
        assert sorted(await read(bus, 1, "a") + await read(bus, 1, "b")) == list("123456")
        with pytest.raises(ClaimNotFound):
            await bus.read_claim("q", "a", 2)


@run
async def test_a_reader_claims_one_at_a_time(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2")
        made = await asyncio.gather(
            bus.claim("q", "r", 1), bus.claim("q", "r", 1), return_exceptions=True
        )
        assert isinstance(made[1], InvalidOperation)
        assert await take(bus, 1) == 2


@pytest.mark.promise("R5", "X2")
@run
async def test_purge_skips_what_is_held(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2", "3")
        number = await take(bus, 2)
        assert await bus.purge("q", Filter(state="active")) == 1
        assert await read(bus, number) == ["1", "2"]
        await bus.release_claim("q", "r", number)
        assert await bus.purge("q") == 2
        sound(bus)


@pytest.mark.promise("R5", "B2")
@pytest.mark.parametrize("to_dead_letters", [False, True])
@run
async def test_claimed_messages_do_not_expire(clock: ManualClock, to_dead_letters: bool) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", dead_letter_on_expiration=to_dead_letters)
        await send(bus, "q", "1", "2", time_to_live_ms=MINUTE)
        kept, given_back = await take(bus, 1), await take(bus, 1)
        assert await read(bus, kept) + await read(bus, given_back) == ["1", "2"]
        await pass_ms(bus, clock, HOUR)
        assert await read(bus, given_back) == ["2"]
        await bus.commit_claim("q", "r", kept)
        await bus.release_claim("q", "r", given_back)
        assert await get(bus, "q") == []
        dead = bus.peek("q", dead_letters=True)
        assert bodies(dead) == (["2"] if to_dead_letters else [])
        sound(bus)


@pytest.mark.promise("R5", "B2")
@run
async def test_what_has_expired_is_not_claimed(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", dead_letter_on_expiration=True)
        await send(bus, "q", "old", time_to_live_ms=MINUTE)
        await send(bus, "q", "young")
        clock.advance(MINUTE)
        assert await read(bus, await take(bus)) == ["young"]
        assert bodies(bus.peek("q", dead_letters=True)) == ["old"]


@pytest.mark.promise("R5")
@run
async def test_a_claim_keeps_within_its_bytes(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", *["x" * 1_000] * 3, "y" * 5_000, "z")
        assert await read(bus, await take(bus, max_bytes=2_500)) == ["x" * 1_000] * 2
        assert await read(bus, await take(bus, max_bytes=2_500)) == ["x" * 1_000]
        assert await read(bus, await take(bus, max_bytes=2_500)) == ["y" * 5_000], "one at least"
        sound(bus)
        await bus.release_claim("q", "r", 3)
        assert await read(bus, await take(bus)) == ["y" * 5_000, "z"]


@run
async def test_only_active_messages_are_claimed(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "locked", "deferred", "delayed", "dead", "active")
        locked, deferred, delayed, dead = await get(bus, "q", 4)
        receiver = bus.receiver("q")
        await receiver.defer(deferred)
        await receiver.abandon(delayed, delay_ms=HOUR)
        await receiver.dead_letter(dead)
        await bus.schedule("q", msg("scheduled"), clock.wall() + HOUR)
        number = await take(bus)
        assert await read(bus, number) == ["active"]
        await receiver.complete(locked)
        await bus.commit_claim("q", "r", number)
        assert [m.state for m in bus.peek("q")] == ["deferred", "delayed", "scheduled"]
        sound(bus)


# Wrong calls, and entities that go


@run
async def test_bad_claims_are_refused(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1")
        call: Any = bus.claim
        for arguments in (("", 1), (7, 1), ("x" * 129, 1), ("\ud800", 1), ("r", 0), ("r", True),
                          ("r", "1"), ("r", 100_001)):  # fmt: skip
            with pytest.raises(InvalidArgument):
                await call("q", *arguments)
        for how in ({"lease_ms": 0}, {"lease_ms": None}, {"max_bytes": 0}, {"max_bytes": "1"}):
            with pytest.raises(InvalidArgument):
                await call("q", "r", 1, **how)
        with pytest.raises(EntityNotFound):
            await call("nowhere", "r", 1)
        number = await take(bus)
        commit: Any = bus.commit_claim
        others: list[Any] = [bus.release_claim, bus.read_claim]
        for letters in ([1], {"1": ("a", "b")}, {1: "ab"}, {1: ("a",)}, {1: (2, None)},
                        {1: ("x" * 4_097, None)}):  # fmt: skip
            with pytest.raises(InvalidArgument):
                await commit("q", "r", number, dead_letters=letters)
        for wrong in (0, True, "1", None):
            for method in (commit, *others):
                with pytest.raises(InvalidArgument):
                    await method("q", "r", wrong)
        for partition in (1, -1, "0"):
            with pytest.raises(InvalidArgument):
                await others[1]("q", "r", number, partition=partition)
        assert not bus.claims("q")[0].read, "nothing of that was a reading"
        sound(bus)


@run
async def test_a_paused_queue_gives_no_claims(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1", "2")
        number = await take(bus, 1)
        await bus.change_queue("q", status="receive-disabled")
        with pytest.raises(EntityDisabled):
            await bus.claim("q", "r", 1)
        assert await read(bus, number) == ["1"], "what it gave before it does not take away"
        await bus.commit_claim("q", "r", number)


@pytest.mark.promise("R8")
@pytest.mark.parametrize("restart", [False, True])
@run
async def test_an_entity_made_again_knows_no_claims_of_the_one_before(
    clock: ManualClock, restart: bool
) -> None:
    disks = Disks()
    bus = await disks.bus(clock)
    await bus.create_queue("q")
    await send(bus, "q", "old")
    claim = await bus.claim("q", "r", 1)
    assert claim is not None
    await bus.delete_queue("q")
    if restart:
        await bus.close()
        bus = await disks.bus(clock)
    await bus.create_queue("q")
    await send(bus, "q", "new")
    assert bus.claims("q") == []
    with pytest.raises(ClaimNotFound):
        await bus.read_claim("q", "r", 1)
    assert await take(bus) == 1
    for call in (bus.read_claim, bus.commit_claim, bus.release_claim):
        with pytest.raises(EntityReplaced):
            await call("q", "r", 1, incarnation=claim.incarnation)
    assert await read(bus, 1) == ["new"]
    await bus.delete_queue("q")
    await bus.close()
    assert claim_rows(disks) == 0
    assert not disks.open["main"].tables[HOLDS]


@pytest.mark.parametrize("slices", [1, 3])
@run
async def test_a_subscription_deleted_while_it_is_claimed(clock: ManualClock, slices: int) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_topic("t")
        name = await bus.create_subscription("t", "s")
        await bus.send_batch("t", [msg("x")] * (slices * 1_000))
        deleting = asyncio.create_task(bus.delete_subscription(name))
        await asyncio.sleep(0)
        claiming = asyncio.create_task(bus.claim(name, "r", slices * 1_000))
        # The first slice comes before the news that the deletion is on the disk.
        time.sleep(0.05)
        await asyncio.gather(claiming, deleting, return_exceptions=True)
        assert deleting.exception() is None
        assert isinstance(claiming.exception(), EntityNotFound)
        assert bus.alarms == []
        assert violations(partition_at(bus, "t")) == []
    assert claim_rows(disks) == 0


@run
async def test_rows_written_after_a_deletion_go_at_the_next_start(clock: ManualClock) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "1")
        number = await take(bus)
        deleting = asyncio.create_task(bus.delete_queue("q"))
        await asyncio.sleep(0)
        with pytest.raises(ClaimNotFound):
            await bus.read_claim("q", "r", number)
        await deleting
    assert claim_rows(disks) == 1
    async with disks.bus(clock):
        pass
    assert claim_rows(disks) == 0


def claim_rows(disks: Disks) -> int:
    return len(disks.open["namespace"].tables[CLAIMS])


@run
async def test_large_messages_are_read_in_slices(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_reading, "SLICE_BYTES", 2_500)
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        texts = [f"{number}" * 1_000 for number in range(8)]
        await send(bus, "q", *texts)
        claim = await bus.claim("q", "r", 10)
        assert claim is not None
        pages: list[list[ReceivedMessage]] = await bus.ask(
            lambda reply: claim_reading.read(
                bus.broker.claims, "q", "r", claim.number, None, None, lambda _, page: page, reply
            )
        )
        assert [bodies(page) for page in pages] == [texts[at : at + 2] for at in range(0, 8, 2)]
        assert bodies(await bus.read_claim("q", "r", claim.number)) == texts
