"""Sessions, topics and rules through azure-servicebus, and messages that cross protocols."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from onibus import Message, Rule, SqlAction, SqlFilter
from onibus.client import Client
from tests.amqp.sdk_helpers import Name, receive
from tests.server.processes import Served


@pytest.mark.promise("B4", "P12")
@pytest.mark.parametrize("partitioned", [False, True])
def test_sessions(azure: ServiceBusClient, owner: Client, name: Name, partitioned: bool) -> None:
    queue = name("steps")
    owner.create_queue(queue, requires_session=True, enable_partitioning=partitioned)
    with azure.get_queue_sender(queue) as sender:
        for number in range(6):
            session = "ab"[number % 2]
            sender.send_messages(ServiceBusMessage(f"{number}", session_id=session))
        with pytest.raises(ServiceBusError, match="session_id"):
            sender.send_messages(ServiceBusMessage("without"))
    with azure.get_queue_receiver(queue, session_id="a") as receiver:
        assert receiver.session.session_id == "a"
        first, second, third = receive(receiver, 3)
        assert [str(one) for one in (first, second, third)] == ["0", "2", "4"]
        assert first.session_id == "a"
        assert receiver.session.get_state() is None
        receiver.session.set_state(b"step 1")
        assert receiver.session.get_state() == b"step 1"
        until = receiver.session.locked_until_utc
        assert until is not None
        assert receiver.session.renew_lock() > until
        receiver.complete_message(first)
        receiver.defer_message(second)
        [deferred] = receiver.receive_deferred_messages([second.sequence_number])
        receiver.complete_message(deferred)
        with (
            pytest.raises(SessionCannotBeLockedError),
            azure.get_queue_receiver(queue, session_id="a") as other,
        ):
            other.receive_messages(1, max_wait_time=1)
        with azure.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION) as other:
            assert other.session.session_id == "b"
            for message in receive(other, 3):
                other.complete_message(message)
    # Closing gave the session back, and what it held, without counting a delivery.
    with azure.get_queue_receiver(queue, session_id="a") as receiver:
        [third] = receive(receiver, 1)
        assert [str(third), third.delivery_count] == ["4", 0]
        receiver.complete_message(third)
    with (
        pytest.raises(OperationTimeoutError),
        azure.get_queue_receiver(
            queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1
        ) as receiver,
    ):
        receiver.receive_messages(1, max_wait_time=1)
    with pytest.raises(ServiceBusError, match="sessions"), azure.get_queue_receiver(queue) as plain:
        plain.receive_messages(1, max_wait_time=1)


@pytest.mark.promise("B4", "B1")
def test_a_session_lock_that_runs_out_is_lost(
    azure: ServiceBusClient, owner: Client, name: Name
) -> None:
    queue = name("steps")
    owner.create_queue(queue, requires_session=True, lock_duration_ms=5_000)
    owner.send(queue, Message(body=b"x", session_id="s"))
    with azure.get_queue_receiver(queue, session_id="s") as receiver:
        [message] = receive(receiver, 1)
        time.sleep(5.3)
        with pytest.raises(SessionLockLostError):
            receiver.complete_message(message)
    with azure.get_queue_receiver(
        queue, session_id="s", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
    ) as receiver:
        [message] = receive(receiver, 1)
        assert message.delivery_count == 1


@pytest.mark.promise("B3", "D6", "S2")
def test_topics_rules_and_actions(azure: ServiceBusClient, owner: Client, name: Name) -> None:
    topic = name("events")
    owner.create_topic(topic, requires_duplicate_detection=True)
    owner.create_subscription(topic, "all")
    large = Rule("large", SqlFilter("amount > 100"), SqlAction("SET kind = 'large'; REMOVE note"))
    owner.create_subscription(topic, "large", rules=[large])
    with azure.get_topic_sender(topic) as sender:
        for amount in (50, 500):
            sender.send_messages(
                ServiceBusMessage(
                    f"{amount}",
                    message_id=f"m-{amount}",
                    application_properties={"amount": amount, "note": "n", "id": uuid4()},
                )
            )
        sender.send_messages(ServiceBusMessage("again", message_id="m-50"))
    with azure.get_subscription_receiver(topic, "all") as receiver:
        messages = receive(receiver, 2)
        assert [str(one) for one in messages] == ["50", "500"]
        assert isinstance(messages[0].application_properties[b"id"], UUID)
        receiver.dead_letter_message(messages[0], reason="no")
        receiver.complete_message(messages[1])
    with azure.get_subscription_receiver(topic, "large") as receiver:
        [message] = receive(receiver, 1)
        properties = message.application_properties
        # What the action did not touch has the type in which it was sent.
        assert isinstance(properties.pop(b"id"), UUID)
        assert properties == {b"amount": 500, b"kind": b"large", b"RuleName": b"large"}
        assert message.sequence_number == messages[1].sequence_number
        receiver.complete_message(message)
    with azure.get_subscription_receiver(
        topic, "all", sub_queue=ServiceBusSubQueue.DEAD_LETTER
    ) as receiver:
        [message] = receive(receiver, 1)
        assert [str(message), message.dead_letter_reason] == ["50", "no"]


@pytest.mark.promise("B4", "X8")
def test_sessions_are_listed(azure: ServiceBusClient, owner: Client, name: Name) -> None:
    queue, topic = name("sessions"), name("topic")
    owner.create_queue(queue, requires_session=True, enable_partitioning=True)
    owner.create_topic(topic)
    owner.create_subscription(topic, "s", requires_session=True)
    assert list(azure.list_queue_sessions(queue)) == []
    # Clients ask for a hundred at a time.
    wanted = [f"s-{n:03}" for n in range(230)]
    owner.send_batch(queue, [Message(body=b"x", session_id=one) for one in wanted])
    owner.send(topic, Message(body=b"x", session_id="of the topic"))
    with azure.get_queue_receiver(queue, session_id="empty, with a state") as receiver:
        receiver.session.set_state(b"kept")
    with azure.get_queue_receiver(queue, session_id="empty, and held"):
        found = list(azure.list_queue_sessions(queue))
    assert sorted(found) == ["empty, with a state", *wanted]
    assert list(azure.list_subscription_sessions(topic, "s")) == ["of the topic"]
    yesterday = datetime.now(UTC) - timedelta(days=1)
    changed = azure.list_queue_sessions(queue, state_updated_after=yesterday)
    assert list(changed) == ["empty, with a state"]


@pytest.mark.promise("B6", "P9")
def test_forwarded_messages_keep_what_was_sent(
    azure: ServiceBusClient, owner: Client, name: Name
) -> None:
    last, first = name("last"), name("first")
    owner.create_queue(last)
    owner.create_queue(first, forward_to=last)
    sent = AmqpAnnotatedMessage(
        value_body={"a": [1, 2]},
        header=AmqpMessageHeader(priority=7, durable=True),
        properties=AmqpMessageProperties(message_id="m", user_id=b"me", content_encoding="gzip"),
        application_properties={"id": UUID(int=7), "n": 1},
        annotations={"x-mine": "kept"},
        footer={"sum": 42},
    )
    with azure.get_queue_sender(first) as sender, azure.get_queue_receiver(last) as receiver:
        sender.send_messages(sent)
        sender.send_messages(AmqpAnnotatedMessage(data_body=[b"two", b"parts"]))
        one, other = receive(receiver, 2)
        raw = one.raw_amqp_message
        assert raw.body == {b"a": [1, 2]}
        assert [raw.header.priority, raw.header.durable] == [7, True]
        assert [raw.properties.user_id, raw.properties.content_encoding] == [b"me", b"gzip"]
        assert raw.application_properties == {b"id": UUID(int=7), b"n": 1}
        assert raw.annotations[b"x-mine"] == b"kept"
        assert raw.footer == {b"sum": 42}
        assert one.enqueued_sequence_number == 1
        assert list(other.body) == [b"two", b"parts"]
        receiver.complete_message(one)
        receiver.abandon_message(other)
    assert owner.peek(last)[0].message.format == "amqp"


@pytest.mark.promise("B6", "P9", "S2")
def test_dead_letters_that_go_on_tell_where_they_come_from(
    azure: ServiceBusClient, owner: Client, name: Name
) -> None:
    morgue, queue = name("morgue"), name("orders")
    owner.create_queue(morgue, enable_partitioning=True)
    owner.create_queue(queue, forward_dead_letters_to=morgue)
    with azure.get_queue_sender(queue) as sender, azure.get_queue_receiver(queue) as receiver:
        # The key chooses a partition of the destination that is not the first.
        sent = [ServiceBusMessage(b"x", partition_key=str(n), message_id=f"{n}") for n in range(4)]
        sender.send_messages(sent)
        for one in receive(receiver, 4):
            assert one.dead_letter_source is None
            receiver.dead_letter_message(one, reason="no", error_description="not at all")
    with azure.get_queue_receiver(morgue) as receiver:
        found = receive(receiver, 4)
        for one in found:
            assert one.dead_letter_source == queue
            assert (one.dead_letter_reason, one.dead_letter_error_description) == (
                "no",
                "not at all",
            )
            partition = one.raw_amqp_message.annotations.get(b"x-opt-partition-id", 0)
            assert partition == one.sequence_number >> 48
            receiver.complete_message(one)
    assert {one.sequence_number >> 48 for one in found} != {0}


def test_messages_cross_from_one_protocol_to_the_other(
    azure: ServiceBusClient, owner: Client, name: Name
) -> None:
    queue = name("orders")
    owner.create_queue(queue)
    with azure.get_queue_sender(queue) as sender, azure.get_queue_receiver(queue) as receiver:
        sender.send_messages(
            ServiceBusMessage(
                b"3 apples",
                message_id="m",
                partition_key="p",
                session_id="p",
                subject="fruit",
                application_properties={"n": 1, "id": UUID(int=5)},
                time_to_live=timedelta(hours=1),
            )
        )
        [peeked] = owner.peek(queue)
        assert peeked.body == b"3 apples"
        assert peeked.message.properties == {"n": 1, "id": str(UUID(int=5))}
        assert (peeked.message.session_id, peeked.message.partition_key) == ("p", "p")
        assert (peeked.message.subject, peeked.message.time_to_live_ms) == ("fruit", 3_600_000)
        [message] = receive(receiver, 1)
        assert message.time_to_live == timedelta(hours=1)
        assert message.expires_at_utc == message.enqueued_time_utc + timedelta(hours=1)
        receiver.complete_message(message)
        owner.send(
            queue,
            Message(
                body=b"\xff",
                message_id="h",
                subject="s",
                reply_to_session_id="r",
                properties={"a": 1, "big": 2**40, "t": "x", "f": 0.5, "b": b"\x00", "none": None},
            ),
        )
        [message] = receive(receiver, 1)
        assert b"".join(message.body) == b"\xff"
        assert [message.message_id, message.subject, message.reply_to_session_id] == ["h", "s", "r"]
        assert message.application_properties == {
            **{b"a": 1, b"big": 2**40, b"t": b"x", b"f": 0.5, b"b": b"\x00", b"none": None}
        }
        receiver.abandon_message(message)


@contextmanager
def _client(server: Served, key_name: str, key: str) -> Iterator[ServiceBusClient]:
    text = f"{server.service_bus.split('SharedAccessKeyName')[0]}SharedAccessKeyName={key_name}"
    text += f";SharedAccessKey={key};UseDevelopmentEmulator=true"
    with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
        yield client


def test_rights_are_asked_for_by_every_link_and_request(
    server: Served, owner: Client, name: Name
) -> None:
    queue, other = name("orders"), name("orders")
    owner.create_queue(queue)
    owner.create_queue(other)
    secret = owner.create_key("sends", ["Send"], entity=queue).primary
    with _client(server, "sends", secret) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("x"))
        # A token that this key makes for another queue is none at all.
        with pytest.raises(ServiceBusAuthenticationError), client.get_queue_sender(other) as sender:
            sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusAuthorizationError), client.get_queue_receiver(queue) as one:
            one.receive_messages(1, max_wait_time=1)
    with (
        _client(server, "sends", "another key of some length") as client,
        pytest.raises(ServiceBusAuthenticationError),
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
    assert owner.queue(queue).active_count == 1
