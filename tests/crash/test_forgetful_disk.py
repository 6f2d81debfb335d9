"""Power cuts for a whole server: its disk is a FUSE file system that forgets unsynced writes.

These tests need root and /dev/fuse, and are skipped elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from onibus import Message
from onibus.core.errors import OnibusError
from tests.crash.crowd import PATIENT
from tests.crash.forgetful_disk import ForgetfulDisk
from tests.crash.kill_server import killed
from tests.crash.lives import DidNotStart, Lives

#: Longer runs: `make forget`.
KILLS = 6
PATIENCE_S = 1_200
MESSAGES = 20
#: The store keeps such a message in a separate file.
LARGE = bytes(600 << 10)
T = TypeVar("T")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ForgetfulDisk]:
    made = ForgetfulDisk(tmp_path / "disk")
    try:
        made.__enter__()
    except OSError as error:
        pytest.skip(f"no FUSE file system can be mounted here: {error.strerror}")
    yield made
    made.__exit__()


async def lost_in_a_cut(root: Path, disk: ForgetfulDisk, mutant: str = "") -> str:
    """Cut the power after the first life of a server; return how what is left is wrong."""
    async with Lives(root, Random(1), disk.path, mutant) as lives:
        place = lives.place
        async with lives.serving(), place.client() as client:
            await client.create_queue("q")
            for at in range(MESSAGES):
                await client.send("q", Message(body=LARGE if at % 5 == 4 else b"%d" % at))
            async with client.receiver("q") as receiver:
                for got in await receiver.receive(MESSAGES // 2):
                    await receiver.complete(got)

        assert disk.cut() > 0, "nothing was unsynced: the cut proves nothing"
        try:
            async with lives.serving(), place.client() as client:
                found = [one async for one in client.peek_all("q")]
                sent = await client.send("q", Message(body=b"next"))
        except (OnibusError, DidNotStart) as error:
            return str(error)
    numbers = [one.sequence_number for one in found] + [sent.sequence_number]
    expected = list(range(MESSAGES // 2 + 1, MESSAGES + 2))
    return "" if numbers == expected else f"{numbers} instead of {expected}"


def within_time(work: Coroutine[None, None, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


@pytest.mark.promise("B8", "S3")
def test_an_acknowledged_change_survives_the_first_power_cut(
    tmp_path: Path, disk: ForgetfulDisk
) -> None:
    assert within_time(lost_in_a_cut(tmp_path, disk)) == ""


@pytest.mark.parametrize("mutant", ["without_synced_commits", "without_synced_names"])
def test_control_without_syncs_is_caught(tmp_path: Path, disk: ForgetfulDisk, mutant: str) -> None:
    assert within_time(lost_in_a_cut(tmp_path, disk, mutant))


@pytest.mark.promise("B8", "D1", "S2", "S3", "B5", "B6", "X9", "R5")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_power_cuts_of_a_busy_server_leave_no_anomaly(tmp_path: Path, disk: ForgetfulDisk) -> None:
    crowd, _ = within_time(killed(tmp_path, 10, KILLS, disk))
    seen = crowd.check()
    assert not seen.anomalies, seen.anomalies[:10]
    assert disk.forgotten, "nothing was unsynced: the cuts prove nothing"


@pytest.mark.promise("B8", "S3")
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_writes_that_fail_and_then_a_power_cut(
    tmp_path: Path, disk: ForgetfulDisk, error: str
) -> None:
    async def survivors() -> list[tuple[int, bytes]]:
        async with Lives(tmp_path, Random(1), disk.path) as lives:
            place = lives.place
            async with lives.serving(), place.client() as once, place.client(PATIENT) as patient:
                await once.create_queue("q")
                await once.send("q", Message(body=b"before"))
                disk.fail(getattr(errno, error))
                with pytest.raises(OnibusError):
                    await once.send("q", Message(body=b"failed"))
                disk.fail(0)
                await patient.send("q", Message(body=b"after"))
            disk.cut()
            async with lives.serving(), place.client() as client:
                return [(one.sequence_number, one.body) async for one in client.peek_all("q")]

    assert within_time(survivors()) == [(1, b"before"), (2, b"after")]
