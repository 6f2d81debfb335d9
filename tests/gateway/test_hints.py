"""Mistakes that are easily made get an answer that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from onibus import Bus, Filter, Message
from onibus.core.errors import InvalidArgument, InvalidOperation
from tests.bus_helpers import ManualClock, bodies, msg, run


@run
async def test_a_misspelled_setting(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        with pytest.raises(InvalidArgument, match="did you mean lock_duration_ms"):
            await bus.create_queue("q", lock_duration=5_000)
        assert bus.queues() == []


@run
async def test_a_duration_where_a_moment_is_meant(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        for wrong in (60_000, 1_700_000_000, None, "noon"):
            with pytest.raises(InvalidArgument, match="since 1970"):
                await bus.schedule("q", Message(), wrong)  # type: ignore[arg-type]
        assert bus.peek("q") == []


@run
async def test_an_empty_message_id(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q", requires_duplicate_detection=True)
        with pytest.raises(InvalidArgument, match="omit it"):
            await bus.send("q", Message(message_id=""))


@run
async def test_filters_that_contradict_themselves(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        with pytest.raises(InvalidArgument, match="omit one"):
            bus.peek("q", dead_letters=True, where=Filter(state="active"))
        with pytest.raises(InvalidArgument, match="set sql"):
            await bus.purge("q", Filter(sql_parameters={"a": 1}))


@run
async def test_the_wrong_kind_of_receiver(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await bus.create_queue("f", fifo=True)
        with pytest.raises(InvalidOperation, match="use fifo_receiver"):
            await bus.receiver("f").receive()
        with pytest.raises(InvalidOperation, match="use receiver"):
            await bus.fifo_receiver("q").receive()
        with pytest.raises(InvalidOperation, match="use receiver"):
            await bus.accept_session("q")


@run
async def test_completing_a_list_or_nothing(clock: ManualClock) -> None:
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("q")
        await bus.send_batch("q", [msg("1"), msg("2"), msg("3")])
        receiver = bus.receiver("q")
        received = await receiver.receive(3)
        await receiver.complete()
        await receiver.complete(received[:2], received[2])
        assert bodies(bus.peek("q")) == []


@run
async def test_a_bus_that_was_not_awaited(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="await"):
        _ = Bus.open(tmp_path).send


@pytest.mark.parametrize("stores", ["main", [], ["a", "a"], ["a/b"], ["namespace"], [5]])
def test_names_of_stores(tmp_path: Path, stores: list[str]) -> None:
    with pytest.raises(InvalidArgument):
        Bus.open(tmp_path, stores=stores)
    assert not list(tmp_path.iterdir())


@run
async def test_a_file_where_a_directory_is_meant(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument):
        await Bus.open(tmp_path / "file")
