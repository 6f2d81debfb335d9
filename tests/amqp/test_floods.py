"""Peers that keep a server busy, or do nothing at all: others are served meanwhile.

The server is a process, the peers are threads that say the same again and again, as fast as it is
read, and read what they are told.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from onibus.client import Client
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.connection import CHANNEL_MAX
from onibus.protocols.amqp.frames import EMPTY_FRAME, PROTOCOL_HEADER, SASL_HEADER, frame
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from onibus.security.sas import make_token
from tests.amqp.raw_client import RawClient, attach, message, transfer
from tests.amqp.sdk_helpers import Name
from tests.server.processes import Served

#: What somebody who sends one message after the other waits for at most, on a machine with much to
#: do. Without others it is a few milliseconds.
_PATIENCE_S = 60
_ROUNDS = 5
_FLOODS_AT_ONCE = 2

_BEGIN = say.performative(say.BEGIN, [to.NULL, to.uint(0), to.uint(9), to.uint(9)])
_SENDER, _NOWHERE = attach(7, say.SENDER, "me", "q"), attach(8, say.SENDER, "me", "nowhere")


def _said(*performatives: bytes, channel: int = 0) -> bytes:
    return b"".join(frame(channel, one) for one in performatives)


def _channels() -> bytes:
    return b"".join(
        _said(_BEGIN, say.end(None), channel=channel) for channel in range(1, CHANNEL_MAX, 50)
    )


#: Said again and again; each is allowed, and none of it ends.
_FLOODS = {
    "channels": _channels(),
    "handles": _said(*([_SENDER, say.detach(7, None)] * 20)),
    "links that are refused": _said(*([_NOWHERE, say.detach(8, None)] * 20)),
    "flows": _said(*[say.flow(0, 9, 0, (0, 0, 5, False))] * 200),
    "dispositions of nothing": _said(
        *[say.disposition(say.RECEIVER, 0, (1 << 31) - 1, say.accepted())] * 200
    ),
    "nothing at all": EMPTY_FRAME * 2_000,
    "a transfer that never ends": _said(transfer(0, 1, bytes(60_000), more=True)),
    "messages that are none": _said(*[transfer(0, 1, b"no message")] * 100),
}


def _port(server: Served) -> int:
    return int(server.ready["amqp"].rpartition(":")[2])


def _known(server: Served) -> RawClient:
    """Return a connection that may do everything, with a session."""
    client = RawClient(_port(server))
    client.open()
    client.begin()
    token = make_token("sb://x/", ROOT_NAME, DEVELOPMENT_KEY, int(time.time()) + 600)
    assert client.put_token("sb://x/", token) == 202
    return client


class Flood:
    """A peer that says the same again and again."""

    def __init__(self, server: Served, queue: str, said: bytes) -> None:
        self._client = _known(server)
        self._client.attach(0, say.SENDER, "me", queue)
        self._said = said
        self.count = 0
        self._threads = [threading.Thread(target=one) for one in (self._say, self._hear)]

    def begin(self) -> None:
        for one in self._threads:
            one.start()

    def _say(self) -> None:
        with suppress(OSError):
            while True:
                self._client.socket.sendall(self._said)
                self.count += 1

    def _hear(self) -> None:
        with suppress(OSError):
            while self._client.socket.recv(1 << 20):
                pass

    def end(self) -> None:
        with suppress(OSError):
            self._client.socket.shutdown(socket.SHUT_RDWR)
        for one in self._threads:
            one.join()
        self._client.close()


@contextmanager
def _flooded(server: Served, queue: str, said: bytes) -> Iterator[list[Flood]]:
    floods = [Flood(server, queue, said) for _ in range(_FLOODS_AT_ONCE)]
    for one in floods:
        one.begin()
    try:
        yield floods
    finally:
        for one in floods:
            one.end()


def _is_served(server: Served, queue: str, rounds: int = _ROUNDS) -> None:
    """Send one message after the other, each in time."""
    with _known(server) as client:
        client.attach(0, say.SENDER, "me", queue)
        for number in range(rounds):
            begun = time.monotonic()
            client.say(transfer(0, number, message(b"x")))
            assert client.expect(say.DISPOSITION)[1][4].descriptor == say.ACCEPTED
            assert time.monotonic() - begun < _PATIENCE_S


@pytest.mark.parametrize("word", _FLOODS)
def test_others_are_served_while_some_flood(
    server: Served, owner: Client, name: Name, word: str
) -> None:
    queue = name("floods")
    owner.create_queue(queue)
    with _flooded(server, queue, _FLOODS[word]) as floods:
        _is_served(server, queue)
        assert all(one.count for one in floods), "there was a flood"
    assert owner.queue(queue).active_count == _ROUNDS


def test_others_are_served_while_some_do_nothing(server: Served, owner: Client, name: Name) -> None:
    """They have connected and no more, or stop in the middle of something, or go on slowly."""
    queue = name("idle")
    owner.create_queue(queue)
    opened = say.performative(say.OPEN, [to.string("idle")])
    halves = [b"", SASL_HEADER[:5], SASL_HEADER, PROTOCOL_HEADER + frame(0, opened)[:-1]]
    halves.append(PROTOCOL_HEADER + frame(0, opened) + frame(0, _BEGIN)[:9])
    with ExitStack() as idle:
        silent = []
        for half in halves * 20:
            one = idle.enter_context(socket.create_connection(("127.0.0.1", _port(server))))
            one.sendall(half)
            silent.append(one)
        for number in range(4):
            _is_served(server, queue, rounds=5)
            for one in silent[::5]:
                # A byte now and then, of a header.
                one.sendall(SASL_HEADER[number : number + 1])
    assert owner.queue(queue).active_count == 20
