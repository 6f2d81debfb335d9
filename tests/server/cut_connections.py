"""Cut many connections of every kind, and measure the memory that the server keeps.

    python -m tests.server.cut_connections            20,000 of each kind, one to two minutes
    python -m tests.server.cut_connections --count 4000 --after 1000

Each connection sends a part of an upload, waits for a response, and ends with a reset. The command
compares the resident size after all connections with that after the first `--after` of each kind.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.server import strangers
from tests.server.http_helpers import get, post
from tests.server.processes import Served, served
from tests.server.strangers import SECRET, cut
from tests.server.test_many_connections import resident_bytes

MB = 1 << 20
#: The allowed growth.
GROWTH_BYTES_MAX = 50 * MB
#: Connections that are open at once.
AT_ONCE = 100
#: About as much as the server reads before it authenticates a client.
PART_BYTES = 200_000


def parts_of_uploads(server: Served) -> dict[str, tuple[int, bytes]]:
    """Return a port and the bytes to send, by kind; the server responds to a part of them."""
    known = strangers.authorization()
    amqp_port = int(server.ready["amqp"].rpartition(":")[2])
    sqs_port = int(server.ready["sqs"].rpartition(":")[2])
    body = b"x" * PART_BYTES
    opened = strangers.amqp_open() + strangers.part_of_frame(PART_BYTES)
    listed = strangers.sqs_request(sqs_port, "ListQueues")
    upload = strangers.sqs_request(sqs_port, "SendMessage", QueueUrl="q", MessageBody=body.decode())
    return {
        "HTTP": (server.port, get("/health") + post(strangers.SEND, body, known)[:-1]),
        "SQS": (sqs_port, listed + upload[:-1]),
        "AMQP": (amqp_port, opened),
        "WebSocket": (server.port, strangers.UPGRADE + strangers.websocket_frame(opened)),
    }


def cut_many(port: int, sent: bytes, count: int) -> None:
    """Open connections, some at once; send, wait for a response, and cut them."""
    for start in range(0, count, AT_ONCE):
        socks = []
        for _ in range(min(AT_ONCE, count - start)):
            sock = socket.create_connection(("127.0.0.1", port), timeout=60)
            sock.sendall(sent)
            socks.append(sock)
        for sock in socks:
            assert sock.recv(65_536)
            cut(sock)


def measured(server: Served, count: int, after: int) -> Iterator[tuple[str, int, int, float]]:
    """Yield the kind, the resident bytes after the first and after all, and the seconds."""
    for name, (port, sent) in parts_of_uploads(server).items():
        begun = time.monotonic()
        cut_many(port, sent, after)
        first = resident_bytes(server.process.pid)
        cut_many(port, sent, count - after)
        yield name, first, resident_bytes(server.process.pid), time.monotonic() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--after", type=int, default=2_000)
    given = parser.parse_args()
    good = True
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(Path(directory)) as server,
    ):
        for name, first, last, seconds in measured(server, given.count, given.after):
            good = good and last - first < GROWTH_BYTES_MAX
            sizes = f"{first / MB:.0f} MB after {given.after}, {last / MB:.0f} MB after all"
            print(f"{name}: {given.count} connections, {sizes}, {seconds:.1f} s", flush=True)
    print("within" if good else "NOT within", f"{GROWTH_BYTES_MAX // MB} MB")
    return 0 if good else 1


def serving(directory: Path) -> AbstractContextManager[Served]:
    """Run a server with a queue and a key."""
    config = directory / "onibus.toml"
    config.write_text("[queues.q]\n")
    how = ("--ephemeral", "--config", config, "--log-level", "error")
    return served(*how, ONIBUS_ROOT_KEY=SECRET)


if __name__ == "__main__":
    sys.exit(main())
