"""Transactions by a coordinator link, as Qpid Proton's client speaks it (B5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from proton import Delivery, Message, Terminus
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

from onibus import Message as OurMessage
from onibus.client import Client
from tests.amqp.sdk_helpers import Name
from tests.server.processes import Served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_PATIENCE_S = 120


class Work(MessagingHandler, TransactionHandler):
    """Receives some messages, and in one transaction settles them and sends others."""

    def __init__(
        self, server: Served, source: str, targets: list[str], count: int, commits: bool
    ) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self._server = server
        self._source = source
        self._targets = targets
        self._count = count
        self._commits = commits
        self._received: list[Delivery] = []
        self._transaction: Any = None
        self.outcome = ""
        self.errors: list[str] = []

    def on_start(self, event: Any) -> None:
        self._container = event.container
        address = self._server.ready["amqp"]
        self._connection = event.container.connect(
            address, user="RootManageSharedAccessKey", password="SAS_KEY_VALUE", reconnect=False,
            allowed_mechs="PLAIN", sasl_enabled=True,
        )  # fmt: skip
        event.container.schedule(_PATIENCE_S, _Late(self))
        self._senders = [
            event.container.create_sender(self._connection, one) for one in self._targets
        ]
        self._receiver = event.container.create_receiver(self._connection, self._source)
        event.container.declare_transaction(
            self._connection, handler=self, settle_before_discharge=False
        )

    def on_transaction_declared(self, event: Any) -> None:
        self._transaction = event.transaction
        self._receiver.flow(self._count)
        if not self._count:
            self._work()

    def on_message(self, event: Any) -> None:
        self._received.append(event.delivery)
        self._transaction.accept(event.delivery)
        if len(self._received) == self._count:
            self._work()

    def _work(self) -> None:
        for sender in self._senders:
            self._transaction.send(sender, Message(body=b"in a transaction", id=sender.name))
        if self._commits:
            self._transaction.commit()
        else:
            self._transaction.abort()

    def on_transaction_committed(self, event: Any) -> None:
        self._end("committed")

    def on_transaction_aborted(self, event: Any) -> None:
        self._end("aborted")

    def on_transaction_commit_failed(self, event: Any) -> None:
        self._end("failed")

    def on_transaction_declare_failed(self, event: Any) -> None:
        self._end("not declared")

    def on_transport_error(self, event: Any) -> None:
        self._end(f"no connection: {event.transport.condition}")

    def on_link_error(self, event: Any) -> None:
        self._end(f"no link: {event.link.remote_condition}")

    def _end(self, outcome: str) -> None:
        self.outcome = self.outcome or outcome
        self._connection.close()
        self._container.stop()


class _Late:
    def __init__(self, work: Work) -> None:
        self._work = work

    def on_timer_task(self, event: Any) -> None:
        self._work._end("too late")


def _run(server: Served, *args: Any) -> str:
    work = Work(server, *args)
    Container(work).run()
    return work.outcome


Made = Callable[..., list[str]]


@pytest.fixture
def queues(owner: Client, name: Name) -> list[str]:
    """A queue with three messages, and two empty ones."""
    made = [name("from"), name("to"), name("to")]
    for one in made:
        owner.create_queue(one)
    for number in range(3):
        owner.send(made[0], OurMessage(body=b"%d" % number))
    return made


def _counts(owner: Client, queues: list[str]) -> list[int]:
    return [owner.queue(one).active_count for one in queues]


@pytest.mark.promise("B5")
def test_a_transaction_sends_and_settles_together(
    server: Served, owner: Client, queues: list[str]
) -> None:
    assert _run(server, queues[0], queues[1:], 3, True) == "committed"
    assert _counts(owner, queues) == [0, 1, 1]


@pytest.mark.promise("B5")
def test_a_transaction_that_is_rolled_back_changes_nothing(
    server: Served, owner: Client, queues: list[str]
) -> None:
    assert _run(server, queues[0], queues[1:], 3, False) == "aborted"
    assert _counts(owner, queues) == [3, 0, 0]


@pytest.mark.promise("B5", "P8")
def test_a_transaction_that_cannot_be_done_says_so(
    server: Served, owner: Client, queues: list[str], name: Name
) -> None:
    partitioned = name("partitioned")
    owner.create_queue(partitioned, enable_partitioning=True)
    # Messages to a partitioned queue have one key in a transaction: these have none.
    assert _run(server, queues[0], [queues[1], partitioned], 1, True) == "failed"
    assert _counts(owner, queues) == [3, 0, 0]


def test_termini_of_proton_are_answered(server: Served, owner: Client, name: Name) -> None:
    """Dynamic nodes are none of ours: the link is refused, and says why."""

    class Dynamic(MessagingHandler):
        told = ""

        def on_start(self, event: Any) -> None:
            self._container = event.container
            self._connection = event.container.connect(server.ready["amqp"], reconnect=False)
            event.container.create_receiver(self._connection, None, dynamic=True)

        def on_link_error(self, event: Any) -> None:
            self.told = event.link.remote_condition.name
            assert event.link.remote_source.type in (Terminus.UNSPECIFIED, Terminus.SOURCE)
            self._connection.close()

    handler = Dynamic()
    Container(handler).run()
    assert handler.told == "amqp:not-found"
