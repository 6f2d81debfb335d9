"""Real servers for tests of clients: in a thread of this process, or a process of its own."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from onibus import Bus
from onibus.client import AsyncClient, Client, Retry
from onibus.client.blocking.sessions import SessionReceiver
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME, Keyring
from onibus.server.server import Server
from tests.server.processes import PATIENCE_S
from tests.source_tree import ROOT


class ServerThread:
    """A server in memory, with real sockets and a movable clock, on its own thread."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._key = ""
        self.port = 0

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with Bus.ephemeral() as bus:
            keys = KeptKeys(bus, Keyring())
            await keys.make_root()
            assert keys.root is not None
            self._key = keys.root.primary
            async with Server(bus, keys, http_port=0, test_mode=True) as server:
                self.port = server.http_port
                self._ready.set()
                await self._end.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)

    @property
    def connection_string(self) -> str:
        return development_string(self.port, self._key)

    def client(self, retry: Retry | None = None) -> Client:
        return Client.connect(self.connection_string, retry=retry)

    def async_client(self) -> AsyncClient:
        return AsyncClient.connect(self.connection_string)


class Awaited:
    """A blocking client, or something it gave, used as if it were the asyncio one.

    So the same tests hold both to the same.
    """

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._plain, name)
        if not callable(found):
            return found
        if name in ("receiver", "fifo_receiver", "transaction"):
            return lambda *args, **given: Awaited(found(*_plain(args), **given))
        if inspect.isgeneratorfunction(found):
            return lambda *args, **given: walk(found(*args, **given))

        async def call(*args: Any, **given: Any) -> Any:
            result = await asyncio.to_thread(found, *_plain(args), **given)
            return Awaited(result) if isinstance(result, SessionReceiver) else result

        return call

    def __aiter__(self) -> AsyncIterator[Any]:
        return walk(iter(self._plain))

    async def __aenter__(self) -> Self:
        self._plain.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self._plain.__exit__, *error)


def _plain(args: tuple[Any, ...]) -> list[Any]:
    return [one._plain if isinstance(one, Awaited) else one for one in args]


async def walk(items: Iterator[Any]) -> AsyncIterator[Any]:
    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item


class ServerProcess:
    """A server with its data in a directory, which can be killed and started again."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        #: what clients of Service Bus are given
        self.service_bus = ""

    def start(self) -> None:
        """Start it, on the port of HTTP that it had before if it had one."""
        command = [sys.executable, "-m", "onibus", "serve", "--development", "--json"]
        command += ["--data", str(self._data), "--http-port", str(self.port)]
        command += ["--amqp-port", "0", "--sqs-port", "0"]
        command += ["--log-level", "error"]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": "."},
        )
        assert self._process.stdout is not None
        ready = json.loads(self._process.stdout.readline())
        self.port = int(ready["http"].rpartition(":")[2])
        self.service_bus = ready["service_bus"]

    def pause(self) -> None:
        """Stop it without ending it: clients get no answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Stop it as a power failure would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def connection_string(self) -> str:
        return development_string(self.port)


def development_string(port: int, key: str = DEVELOPMENT_KEY) -> str:
    """Return the emulator's connection string, for a server on this machine."""
    return (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName={ROOT_NAME};"
        f"SharedAccessKey={key};UseDevelopmentEmulator=true;"
    )
