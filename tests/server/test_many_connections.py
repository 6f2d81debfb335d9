"""As many connections as the machine lets one process have, up to 10,000: others are served."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import httpx
import pytest

from tests.bus_helpers import PATIENCE_S, run
from tests.server.process_helpers import server_process

#: What an idle connection may cost the server.
BYTES_EACH_MAX = 20_000


def allowed() -> int:
    """Return how many connections this process may have, up to 10,000, and let it have them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 12_000 if hard == resource.RLIM_INFINITY else min(12_000, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return min(10_000, wanted - 500)


def resident_bytes(pid: int) -> int:
    """Return how much memory a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def connect(port: int, what: bytes) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(what)
    return writer


@pytest.mark.promise("X12")
def test_ten_thousand_connections_keep_nobody_from_being_served(tmp_path: Path) -> None:
    with server_process(tmp_path / "log", "--ephemeral", "--insecure") as (address, pid):
        crowd(address, pid, allowed())


@run
async def crowd(address: str, pid: int, count: int) -> None:
    port = int(address.rpartition(":")[2])
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=PATIENCE_S) as client:
        assert (await client.put("/v1/queues/q", json={})).status_code == 201
        before = resident_bytes(pid)
        writers: list[asyncio.StreamWriter] = []
        try:
            # Half of them are silent, half have begun a request that they do not finish.
            for start in range(0, count, 250):
                some = range(start, min(start + 250, count))
                words = (b"" if number % 2 else b"POST /v1/entities/q/mess" for number in some)
                writers += await asyncio.gather(*(connect(port, word) for word in words))
            for number in range(20):
                sent = await client.post("/v1/entities/q/messages", json={"body": "x"})
                assert sent.json() == {"sequence_number": number + 1}
            fresh = httpx.AsyncClient(base_url=address, trust_env=False, timeout=PATIENCE_S)
            assert (await fresh.get("/v1/queues")).status_code == 200
            await fresh.aclose()
            assert resident_bytes(pid) - before < count * BYTES_EACH_MAX
        finally:
            for writer in writers:
                writer.close()
