"""Words for what tests do often with clients of Service Bus."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.source_tree import ROOT

Name = Callable[[str], str]

#: for Node, with their packages
SCRIPTS = ROOT / "tests" / "amqp" / "javascript"


@contextmanager
def closing_sockets() -> Iterator[None]:
    """Close what is opened inside and left open: these clients forget broken connections.

    The interpreter would complain of them in whatever test it finds them.
    """
    before = set(map(id, _open_sockets()))
    try:
        yield
    finally:
        for one in _open_sockets():
            if id(one) not in before:
                one.close()
        gc.collect()


def _open_sockets() -> list[socket.socket]:
    found = [one for one in gc.get_objects() if isinstance(one, socket.socket)]
    return [one for one in found if one.fileno() != -1]


def receive(receiver: Any, count: int) -> list[Any]:
    """Receive so many messages: this client returns what came within a fifth of a second."""
    found: list[Any] = []
    while len(found) < count:
        more = receiver.receive_messages(count - len(found), max_wait_time=10)
        assert more, f"{len(found)} of {count} came"
        found += more
    return found
