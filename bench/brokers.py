"""Other brokers from Debian's packages, as peers: each is started in a directory and stopped after.

Each listens on this machine only, on a port that is free. Where one is not installed, or is too old
for what is asked of it, `Missing` says so, and the table does too.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE_S = 60
#: Folders of Debian programs that are not on every user's path.
_PLACES = ("/usr/sbin", "/usr/local/sbin")
_RABBITMQ = "/usr/lib/rabbitmq/lib"
#: The first nats-server that can sync each message before it is acknowledged.
_NATS_SYNCS = (2, 10)


class Missing(Exception):
    """A peer cannot be measured here; says why."""


def program(name: str) -> str:
    """Return the path of a program."""
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(_PLACES))
    if found is None:
        raise Missing(f"{name} is not installed")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.1)
    raise Missing(f"{process.args!r} did not start")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def rabbitmq(folder: Path) -> Iterator[tuple[int, int]]:
    """RabbitMQ; its process and its port for AMQP 0.9.1.

    Not by the wrapper on the path, which becomes another user and uses the machine's own node. Its
    port mapper is started here too: otherwise the node starts one that outlives it.
    """
    folder.mkdir()
    places = sorted(Path(_RABBITMQ).glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    if not places:
        raise Missing("rabbitmq-server is not installed")
    port, mapper_port = free_port(), free_port()
    variables = {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(mapper_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
    }
    mapper = subprocess.Popen([program("epmd"), "-port", str(mapper_port)], env=variables)
    try:
        process = subprocess.Popen(
            [places[-1]], env=os.environ | variables, stdout=subprocess.DEVNULL
        )
        try:
            _await_port(port, process)
            yield process.pid, port
        finally:
            _stop(process)
    finally:
        _stop(mapper)


@contextmanager
def nats(folder: Path) -> Iterator[tuple[int, int]]:
    """NATS with JetStream, which syncs each message; its process and its port."""
    folder.mkdir()
    found = program("nats-server")
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"v(\d+)\.(\d+)", told)
    if version is None or (int(version[1]), int(version[2])) < _NATS_SYNCS:
        raise Missing(f"{told.strip()} cannot sync always: 2.10 can, Debian 13 has it")
    port = free_port()
    settings = folder / "nats.conf"
    settings.write_text(
        # The load does not answer pings.
        f'host: "127.0.0.1"\nport: {port}\nping_interval: "60m"\n'
        f'jetstream {{ store_dir: "{folder}/data", sync_interval: always }}\n'
    )
    process = subprocess.Popen([found, "-c", str(settings)], stderr=subprocess.DEVNULL)
    try:
        _await_port(port, process)
        yield process.pid, port
    finally:
        _stop(process)
