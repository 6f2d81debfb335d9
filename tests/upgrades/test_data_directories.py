"""A data directory of every earlier version opens, shows what it had, and goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onibus import Bus, Message
from tests.bus_helpers import ManualClock, run
from tests.upgrades.contents import COLUMNS_TASK, STORES, listed
from tests.upgrades.earlier import FORGOT_ATTEMPTS, VERSIONS, expected, unpack


def as_known(shown: Any, known: Any) -> Any:
    """Leave out fields that the earlier version did not show, and that have no value here."""
    if isinstance(shown, dict) and isinstance(known, dict):
        return {
            key: as_known(value, known.get(key))
            for key, value in shown.items()
            if key in known or value not in (None, False)
        }
    if isinstance(shown, list) and isinstance(known, list) and len(shown) == len(known):
        return [as_known(*pair) for pair in zip(shown, known, strict=True)]
    return shown


def test_the_first_version_is_here() -> None:
    assert "0.1.0" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_is_still_there(version: str, tmp_path: Path) -> None:
    @run
    async def look() -> None:
        wanted = expected(version)
        data = unpack(version, "data", tmp_path)
        for _ in range(2):
            clock = ManualClock(wall=wanted["made_ms"])
            async with Bus.open(data, stores=STORES, clock=clock) as bus:
                shown = await listed(bus)
                assert bus.alarms == []
            assert shown.keys() == wanted["entities"].keys()
            for name, kept in wanted["entities"].items():
                assert as_known(shown[name], kept) == kept, name

    look()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.promise("D1", "S3", "L2", "B1", "B4", "F9", "R3", "R6")
def test_work_continues(version: str, tmp_path: Path) -> None:
    @run
    async def work() -> None:
        wanted = expected(version)["entities"]
        data = unpack(version, "data", tmp_path)
        clock = ManualClock(wall=expected(version)["made_ms"])
        async with Bus.open(data, stores=STORES, clock=clock) as bus:
            assert (await bus.send("orders", Message(message_id="o-3"))).duplicate_of is not None
            before = max(row["sequence_number"] for row in wanted["plain"]["log"])
            assert (await bus.send("plain", Message())).sequence_number == before + 1

            plain = bus.receiver("plain")
            deferred = [m for m in wanted["plain"]["messages"] if m["state"] == "deferred"]
            [message] = await plain.receive_deferred([deferred[0]["sequence_number"]])
            await plain.complete(message)
            [scheduled] = [m for m in wanted["plain"]["messages"] if m["state"] == "scheduled"]
            await bus.cancel_scheduled("plain", [scheduled["sequence_number"]])

            session = await bus.accept_session("sessions", "s-0")
            assert await session.get_state() == b"half-way"

            # What the earlier version had in flight is locked for as long as it promised.
            fifo = bus.fifo_receiver("fifo.fifo")
            [held] = await fifo.receive(1, attempt_id="attempt-1")
            assert held.body == (b"entry 1" if version in FORGOT_ATTEMPTS else b"entry 0")

            [claim] = bus.claims("bulk")
            await bus.commit_claim("bulk", claim.reader, claim.number)
            staged = {one.task: one.count for one in bus.staged("bulk")}
            published = await bus.publish(
                "bulk",
                producer="job",
                batch=1,
                attempts=[(task, 0) for task in staged],
                checkpoint="c-1",
            )
            assert staged in ({0: 1}, {0: 1, COLUMNS_TASK: 80})
            assert published.accepted == sum(staged.values())
            bodies = [one.body for one in await bus.receiver("bulk").receive(200)]
            assert bodies[-published.accepted :] == [
                b"staged",
                *(b"column %d" % at for at in range(published.accepted - 1)),
            ]

            clock.advance(600_000)
            bodies = [one.body for one in await plain.receive(30)]
            assert b"plain 5" in bodies, "its lock has expired"
            assert len(bodies) == 18

    work()
