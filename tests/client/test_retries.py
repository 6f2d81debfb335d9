"""Asking again: safe where it is done, and told where it is not known what became of it."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from pathlib import Path

import pytest

from onibus import Message
from onibus.client import Client, Retry, Unreachable
from onibus.core.errors import (
    EntityNotFound,
    InvalidOperation,
    LockLost,
    NoSession,
    OnibusError,
    Unknown,
)
from tests.client.server_helpers import ServerProcess, ServerThread
from tests.cutting_proxy import CuttingProxy
from tests.server.processes import PATIENCE_S, wait_for

QUICK = Retry(attempts=3, first_ms=10, longest_ms=20)


def through(server: ServerThread, proxy: CuttingProxy) -> Client:
    text = server.connection_string.replace(str(server.port), str(proxy.port))
    return Client.connect(text.replace("localhost", "127.0.0.1"), retry=QUICK)


@pytest.mark.promise("D1", "D11")
def test_a_send_whose_answer_was_lost_is_stored_once(server: ServerThread) -> None:
    with server.client() as client, CuttingProxy(server.port, [0, 0]) as proxy:
        client.create_queue("q", requires_duplicate_detection=True)
        with through(server, proxy) as cut:
            sent = cut.send("q", Message(body=b"x"))
        assert proxy.requests == 3
        assert sent.duplicate_of is None
        [stored] = client.peek("q")
        assert stored.sequence_number == sent.sequence_number
        assert client.queue("q").duplicates_dropped == 2


def test_a_send_without_an_id_is_not_repeated(server: ServerThread) -> None:
    with server.client() as client, CuttingProxy(server.port, [0]) as proxy:
        client.create_queue("q")
        with through(server, proxy) as cut, pytest.raises(Unknown):
            cut.send("q", Message(body=b"x"), make_id=False)
        assert (proxy.requests, len(client.peek("q"))) == (1, 1)


def test_what_may_have_been_done_is_told_as_unknown(server: ServerThread) -> None:
    with server.client() as client:
        client.create_queue("q")
        client.send("q", Message(body=b"x"))
        with client.receiver("q") as receiver:
            [message] = receiver.receive()
        with CuttingProxy(server.port, [0]) as proxy, through(server, proxy) as cut:
            # It is completed, asked again, and refused, because its lock is spent.
            with pytest.raises(Unknown, match="check whether") as told:
                cut.receiver("q").complete(message)
            assert isinstance(told.value.__cause__, LockLost)
            assert proxy.requests == 2
        assert client.peek("q") == []


def test_purging_and_deleting_receives_are_asked_once(server: ServerThread) -> None:
    with server.client() as client:
        client.create_queue("q")
        client.send("q", Message(body=b"x"))
        for ask in (
            lambda cut: cut.purge("q"),
            lambda cut: cut.receiver("q", delete=True).receive(),
            lambda cut: cut.claim("q", "job", 10),
        ):
            with CuttingProxy(server.port, [0]) as proxy, through(server, proxy) as cut:
                with pytest.raises(Unknown):
                    ask(cut)
                assert proxy.requests == 1


@pytest.mark.promise("B4", "L2")
def test_a_session_stays_in_order_though_an_answer_was_lost(server: ServerThread) -> None:
    """What was given out and never heard of is held: going on would pass it over."""
    with server.client() as client:
        client.create_queue("q", requires_session=True)
        for n in range(4):
            client.send("q", Message(body=b"%d" % n, session_id="s"))
        with CuttingProxy(server.port, []) as proxy, through(server, proxy) as cut:
            session = cut.accept_session("q", "s", renew_ms=0)
            proxy.cut_next()
            with pytest.raises(Unknown):
                session.receive(2)
            with pytest.raises(InvalidOperation, match="accept the session again"):
                session.receive(2)
            session.close()
            with cut.accept_session("q", "s", renew_ms=0) as again:
                received = again.receive(4)
        assert [one.body for one in received] == [b"0", b"1", b"2", b"3"]
        assert [one.delivery_count for one in received] == [0] * 4


def test_looking_is_asked_again_and_refused_plainly(server: ServerThread) -> None:
    with CuttingProxy(server.port, [0]) as proxy, through(server, proxy) as cut:
        with pytest.raises(EntityNotFound):
            cut.queue("nothing")
        assert proxy.requests == 2


def test_an_answer_is_no_trouble_that_passes(server: ServerThread) -> None:
    with server.client() as client:
        client.create_queue("q", requires_session=True)
    with CuttingProxy(server.port, []) as proxy, through(server, proxy) as client:
        with pytest.raises(NoSession):
            client.accept_session("q")
        assert proxy.requests == 1


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with Client.connect(f"http://127.0.0.1:{port}", retry=QUICK) as client:
        with pytest.raises(Unreachable) as told:
            client.send("q", Message(body=b"x"))
        assert told.value.retryable


class Senders(threading.Thread):
    """Sends numbered messages one by one, whatever happens to the server meanwhile."""

    def __init__(self, server: ServerProcess, name: str, count: int) -> None:
        super().__init__(name=name)
        self._server = server
        self._count = count
        self.numbers: list[int] = []
        self.errors: list[OnibusError] = []

    def run(self) -> None:
        retry = Retry(attempts=1_000, first_ms=50, longest_ms=500)
        with Client.connect(self._server.connection_string, retry=retry) as client:
            for at in range(self._count):
                try:
                    sent = client.send("q", Message(body=f"{self.name}/{at}".encode()))
                    self.numbers.append(sent.sequence_number)
                except OnibusError as error:
                    self.errors.append(error)


@pytest.mark.promise("D1", "S3")
def test_a_killed_server_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        with Client.connect(server.connection_string) as client:
            client.create_queue("q", requires_duplicate_detection=True)
        senders = [Senders(server, f"s{at}", 150) for at in range(4)]
        for sender in senders:
            sender.start()
        for share in (100, 300):
            wait_for(lambda wanted=share: sum(len(one.numbers) for one in senders) >= wanted)
            server.kill()
            server.start()
        for sender in senders:
            sender.join(PATIENCE_S)
        assert [sender.errors for sender in senders] == [[]] * 4
        with Client.connect(server.connection_string) as client:
            stored = list(client.peek_all("q"))
        bodies = Counter(message.body for message in stored)
        assert bodies == Counter(f"s{one}/{at}".encode() for one in range(4) for at in range(150))
        # Each sender was told the number under which its message is stored.
        told = sorted(number for sender in senders for number in sender.numbers)
        assert told == [message.sequence_number for message in stored]
        for sender in senders:
            assert sender.numbers == sorted(sender.numbers)


@pytest.mark.promise("B8")
def test_receiving_goes_on_after_the_server_was_killed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        retry = Retry(attempts=1_000, first_ms=50, longest_ms=500)
        with Client.connect(server.connection_string, retry=retry) as client:
            client.create_queue("q", lock_duration_ms=5_000)
            client.send_batch("q", [Message(body=b"%d" % at) for at in range(40)])
            seen: set[bytes] = set()
            with client.receiver("q") as receiver:
                for count, message in enumerate(receiver, start=1):
                    if count == 15:
                        server.kill()
                        server.start()
                    seen.add(message.body)
                    try:
                        receiver.complete(message)
                    except (LockLost, Unknown):
                        # An unclean stop may end a lock early: the message comes again.
                        continue
                    if len(seen) == 40 and client.queue("q").active_count == 0:
                        break
            assert seen == {b"%d" % at for at in range(40)}
