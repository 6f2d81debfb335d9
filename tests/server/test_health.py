"""Whether the server is well, asked over HTTP without credentials."""

from __future__ import annotations

import pytest

from onibus import Bus
from onibus.core.errors import Damaged, StoreFailed
from onibus.security.keys import Keyring
from onibus.server.notify import notify
from tests.bus_helpers import Disks, ManualClock, pass_ms, pull, reopen_store, run, send
from tests.server.web import ask, serving


@run
async def test_a_server_that_is_well_says_so_to_anybody() -> None:
    async with Bus.ephemeral() as bus, serving(bus, Keyring()) as server:
        health = await ask(server, "GET", "/health")
        ready = await ask(server, "GET", "/readyz")
        assert (await ask(server, "GET", "/livez")).status_code == 200
        assert (await ask(server, "GET", "/v1/queues")).status_code == 401
    assert health.status_code == 200
    # Tools compare this text: it is the emulator's.
    assert health.content == b'{"status":"healthy","message":"Service is healthy."}'
    assert health.headers["content-type"] == "application/json"
    assert (ready.status_code, ready.content) == (200, b'{"ready":true}')


@run
async def test_a_store_that_is_down_is_told_and_not_named() -> None:
    clock = ManualClock()
    async with Disks().bus(clock, "one", "two") as bus, serving(bus) as server:
        pull(bus, "one")
        ready = await ask(server, "GET", "/readyz")
        assert (ready.status_code, ready.content) == (503, b'{"ready":false}')
        # The other one takes messages.
        assert (await ask(server, "GET", "/health")).status_code == 200
        pull(bus, "two")
        health = await ask(server, "GET", "/health")
        assert health.status_code == 503
        told = "Service not available. Please try after some time."
        assert health.json() == {"status": "unhealthy", "message": told}
        assert (await ask(server, "GET", "/livez")).status_code == 200
        await pass_ms(bus, clock, 2_000)
        assert (await ask(server, "GET", "/readyz")).status_code == 200


@run
async def test_the_namespace_and_single_partitions_count_too() -> None:
    async with Disks().bus(ManualClock()) as bus, serving(bus) as server:
        await bus.create_queue("q")
        await bus.create_queue("other")
        await send(bus, "q", "x")
        partition = bus.broker.find("q").partitions[0]
        partition.store.partition_failed(partition, Damaged("a flipped bit"))
        ready = await ask(server, "GET", "/readyz")
        assert (ready.status_code, ready.content) == (503, b'{"ready":false}')
        # A deleted entity has no partitions that could be down.
        await bus.delete_queue("other")
        assert (await ask(server, "GET", "/readyz")).status_code == 503
        bus.broker.store_failed(partition.store, StoreFailed("pulled"))
        await reopen_store(bus, partition.store.name)
        assert (await ask(server, "GET", "/readyz")).status_code == 200
        bus.broker.namespace._down(StoreFailed("pulled"))
        assert (await ask(server, "GET", "/readyz")).status_code == 503


@run
async def test_a_probe_tells_strangers_nothing_else() -> None:
    clock = ManualClock()
    async with Disks().bus(clock, "secret-disk") as bus, serving(bus, Keyring()) as server:
        await bus.create_queue("secret-project")
        for pulled in (False, True):
            if pulled:
                pull(bus, "secret-disk")
            for path in ("/health", "/livez", "/readyz"):
                answer = await ask(server, "GET", path, headers={"host": "10.0.0.1:5300"})
                assert answer.status_code == (503 if pulled and path != "/livez" else 200)
                assert b"secret" not in answer.content
                assert len(answer.content) < 100
                assert set(answer.headers) <= {"content-type", "content-length", "date", *CLOSING}


CLOSING = {"connection"}


@run
async def test_systemd_is_told(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    path = tmp_path_factory.mktemp("n") / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(path))
        inbox.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        async with Bus.ephemeral() as bus, serving(bus):
            assert inbox.recv(100) == b"READY=1"
        assert inbox.recv(100) == b"STOPPING=1"
    assert notify("READY=1") is False
    monkeypatch.delenv("NOTIFY_SOCKET")
    assert notify("READY=1") is False
