"""Transactions by a coordinator link, as Qpid Proton's client speaks it (B5)."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Described, Message, Terminus, symbol, ulong
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, SenderOption

from onibus import Message as OurMessage
from onibus.client import Client
from onibus.protocols.amqp.service_bus.client import TRANSFER_DESTINATION
from tests.amqp.sdk_helpers import Name
from tests.server.processes import Served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_PATIENCE_S = 120

#: Outcomes besides `accepted`: their code, and their fields.
ABANDON, DEFER = (Delivery.MODIFIED, [True, False]), (Delivery.MODIFIED, [True, True])
DEAD_LETTER: Any = (Delivery.REJECTED, [])


class Via(SenderOption):
    """What is sent on the link goes on to another entity."""

    def __init__(self, destination: str) -> None:
        self._destination = destination

    def apply(self, sender: Any) -> None:
        sender.properties = {symbol(TRANSFER_DESTINATION): self._destination}


class Work(MessagingHandler, TransactionHandler):
    """Receives some messages, and in one transaction settles them and sends others.

    It ends by `commit`, by `abort`, or by `leave`: the connection is closed without either. The
    first messages that are received have these verdicts, the others are accepted.
    """

    def __init__(
        self,
        server: Served,
        source: str,
        targets: list[str],
        count: int,
        end: str,
        *,
        verdicts: Any = (),
        via: str = "",
    ) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self._server = server
        self._source = source
        self._targets = targets
        self._count = count
        self._ending = end
        self._verdicts = list(verdicts)
        #: what is sent to the targets goes to them by way of this entity
        self._via = via
        self._received: list[Delivery] = []
        self._transaction: Any = None
        self._taken = 0
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
        self._senders = [self._sender(one) for one in self._targets]
        self._receiver = event.container.create_receiver(self._connection, self._source)
        event.container.declare_transaction(
            self._connection, handler=self, settle_before_discharge=False
        )

    def _sender(self, target: str) -> Any:
        if not self._via:
            return self._container.create_sender(self._connection, target)
        return self._container.create_sender(
            self._connection, self._via, name=f"to {target}", options=Via(target)
        )

    def on_transaction_declared(self, event: Any) -> None:
        self._transaction = event.transaction
        self._receiver.flow(self._count)
        if not self._count:
            self._work()

    def on_message(self, event: Any) -> None:
        self._received.append(event.delivery)
        if self._verdicts:
            # The client itself has a word for `accepted` only.
            code, fields = self._verdicts.pop(0)
            outcome = Described(ulong(code), fields)
            event.delivery.local.data = [self._transaction.id, outcome]
            event.delivery.update(0x34)
        else:
            self._transaction.accept(event.delivery)
        if len(self._received) == self._count:
            self._work()

    def _work(self) -> None:
        for sender in self._senders:
            self._transaction.send(sender, Message(body=b"in a transaction", id=sender.name))
        if self._ending == "commit":
            self._transaction.commit()
        elif self._ending == "abort":
            self._transaction.abort()

    def on_settled(self, event: Any) -> None:
        """All that was sent is part of the transaction: who leaves does so now."""
        if event.link in self._senders:
            self._taken += 1
            if self._taken == len(self._senders) and self._ending == "leave":
                self._end("left")

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


def _run(server: Served, *args: Any, **more: Any) -> str:
    work = Work(server, *args, **more)
    Container(work).run()
    return work.outcome


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
    assert _run(server, queues[0], queues[1:], 3, "commit") == "committed"
    assert _counts(owner, queues) == [0, 1, 1]


@pytest.mark.promise("B5")
def test_a_transaction_that_is_rolled_back_changes_nothing(
    server: Served, owner: Client, queues: list[str]
) -> None:
    assert _run(server, queues[0], queues[1:], 3, "abort") == "aborted"
    assert _counts(owner, queues) == [3, 0, 0]


@pytest.mark.promise("B5")
def test_who_leaves_without_a_discharge_has_done_nothing(
    server: Served, owner: Client, queues: list[str]
) -> None:
    assert _run(server, queues[0], queues[1:], 3, "leave") == "left"
    assert _counts(owner, queues) == [3, 0, 0]


@pytest.mark.promise("B5")
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_every_outcome_is_part_of_a_transaction(
    server: Served, owner: Client, queues: list[str], end: str
) -> None:
    source = queues[0]
    owner.send(source, OurMessage(body=b"3"))
    done = _run(server, source, queues[1:], 4, end, verdicts=[ABANDON, DEFER, DEAD_LETTER])
    states = [(one.body, one.state, one.delivery_count) for one in owner.peek(source)]
    if end == "commit":
        assert done == "committed"
        assert states == [(b"0", "active", 1), (b"1", "deferred", 1)]
        [dead] = owner.peek(source, dead_letters=True)
        assert dead.body == b"2"
    else:
        assert done == "aborted"
        # Nothing is deferred, counted or buried; the locks run on.
        assert [state[0] for state in states] == [b"0", b"1", b"2", b"3"]
        assert {state[2] for state in states} == {0}
        assert owner.peek(source, dead_letters=True) == []
    assert _counts(owner, queues[1:]) == ([1, 1] if end == "commit" else [0, 0])


@pytest.mark.promise("B5")
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_what_is_sent_via_a_queue_goes_on_when_it_is_committed(
    server: Served, owner: Client, queues: list[str], end: str
) -> None:
    source, *targets = queues
    done = _run(server, source, targets, 1, end, via=source)
    assert done == ("committed" if end == "commit" else "aborted")
    assert _counts(owner, queues) == ([2, 1, 1] if end == "commit" else [3, 0, 0])


@pytest.mark.promise("B5", "P8")
def test_a_transaction_that_cannot_be_done_says_so(
    server: Served, owner: Client, queues: list[str], name: Name
) -> None:
    partitioned = name("partitioned")
    owner.create_queue(partitioned, enable_partitioning=True)
    # Messages to a partitioned queue have one key in a transaction: these have none.
    assert _run(server, queues[0], [queues[1], partitioned], 1, "commit") == "failed"
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
