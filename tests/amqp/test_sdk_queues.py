"""Queues through azure-servicebus: sending, receiving, settling, later, never twice."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from onibus import Message
from onibus.client import Client
from tests.amqp.sdk_helpers import Name, receive


@pytest.mark.promise("B1", "D1", "D2", "S1", "S2")
def test_send_receive_settle_and_drop_duplicates(
    azure: ServiceBusClient, owner: Client, name: Name
) -> None:
    queue = name("orders")
    owner.create_queue(queue, requires_duplicate_detection=True)
    sender = azure.get_queue_sender(queue)
    receiver = azure.get_queue_receiver(queue)
    with sender, receiver:
        sender.send_messages(
            ServiceBusMessage(
                b"3 apples",
                message_id="m-1",
                subject="fruit",
                correlation_id="c",
                content_type="text/plain",
                to="you",
                reply_to="me",
                application_properties={"count": 3, "price": 0.5, "fresh": True, "kind": "apple"},
            )
        )
        sender.send_messages(ServiceBusMessage(b"something else", message_id="m-1"))
        batch = sender.create_message_batch()
        for number in range(3):
            batch.add_message(ServiceBusMessage(f"b{number}", message_id=f"b-{number}"))
        batch.add_message(ServiceBusMessage("again", message_id="b-0"))
        sender.send_messages(batch)
        assert len(owner.duplicates(queue)) == 2
        first, *others = receive(receiver, 4)
        assert b"".join(first.body) == b"3 apples"
        assert [first.message_id, first.subject, first.correlation_id] == ["m-1", "fruit", "c"]
        assert [first.content_type, first.to, first.reply_to] == ["text/plain", "you", "me"]
        assert first.application_properties == {
            **{b"count": 3, b"price": 0.5, b"fresh": True, b"kind": b"apple"}
        }
        assert [first.sequence_number, first.delivery_count] == [1, 0]
        assert isinstance(first.lock_token, UUID)
        receiver.complete_message(first)
        assert [one.message_id for one in others] == ["b-0", "b-1", "b-2"]
        assert [one.sequence_number for one in others] == [2, 3, 4]
        receiver.abandon_message(others[0])
        receiver.defer_message(others[1])
        receiver.dead_letter_message(others[2], reason="rotten", error_description="it smells")
        [again] = receive(receiver, 1)
        assert [again.message_id, again.delivery_count] == ["b-0", 1]
        receiver.complete_message(again)
    counts = owner.queue(queue)
    assert (counts.active_count, counts.deferred_count, counts.dead_lettered_count) == (0, 1, 1)


@pytest.mark.promise("L1", "L2", "L3", "B2")
def test_deferred_messages_and_dead_letters(
    azure: ServiceBusClient, owner: Client, name: Name
) -> None:
    queue = name("orders")
    owner.create_queue(queue)
    for number in range(3):
        owner.send(queue, Message(body=b"x", message_id=f"m-{number}"))
    with azure.get_queue_receiver(queue) as receiver:
        first, second, third = receive(receiver, 3)
        receiver.defer_message(first)
        receiver.dead_letter_message(second, reason="why", error_description="because")
        receiver.complete_message(third)
        states = [one.state for one in receiver.peek_messages(10, sequence_number=1)]
        assert states == [ServiceBusMessageState.DEFERRED]
        [deferred] = receiver.receive_deferred_messages([first.sequence_number])
        assert deferred.message_id == "m-0"
        receiver.renew_message_lock(deferred)
        receiver.abandon_message(deferred)
        [deferred] = receiver.receive_deferred_messages(first.sequence_number)
        assert deferred.delivery_count == 2
        receiver.complete_message(deferred)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages([first.sequence_number])
    with azure.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
        [peeked] = dead.peek_messages(10)
        [message] = receive(dead, 1)
        assert peeked.sequence_number == message.sequence_number
        assert [message.dead_letter_reason, message.dead_letter_error_description] == [
            *("why", "because")
        ]
        dead.complete_message(message)
    with azure.get_queue_receiver(
        queue, sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER
    ) as transfer:
        assert transfer.receive_messages(1, max_wait_time=1) == []
    assert owner.queue(queue).dead_lettered_count == 0


@pytest.mark.promise("S5", "S6", "S7", "D8")
def test_scheduled_messages(azure: ServiceBusClient, owner: Client, name: Name) -> None:
    queue = name("orders")
    owner.create_queue(queue, requires_duplicate_detection=True)
    later = datetime.now(UTC) + timedelta(hours=1)
    with azure.get_queue_sender(queue) as sender, azure.get_queue_receiver(queue) as receiver:
        numbers = sender.schedule_messages(
            [ServiceBusMessage("later", message_id=f"l-{one}") for one in range(3)], later
        )
        assert sender.schedule_messages(ServiceBusMessage("x", message_id="l-0"), later) == [
            numbers[0]
        ]
        assert [one.state for one in receiver.peek_messages(9)] == [
            ServiceBusMessageState.SCHEDULED
        ] * 3
        sender.cancel_scheduled_messages(numbers[:2])
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(numbers[:2])
        # Enough for this client to ask for it before it is due.
        due = datetime.now(UTC) + timedelta(seconds=4)
        [soon] = sender.schedule_messages(ServiceBusMessage("soon"), due)
        by_annotation = ServiceBusMessage("by annotation", scheduled_enqueue_time_utc=later)
        sender.send_messages(by_annotation)
        [message] = receive(receiver, 1)
        assert str(message) == "soon"
        assert message.sequence_number > soon
        assert message.enqueued_time_utc >= due.replace(microsecond=0)
        receiver.complete_message(message)
    assert owner.queue(queue).scheduled_count == 2


@pytest.mark.promise("B1")
def test_receive_and_delete_takes_for_good(
    azure: ServiceBusClient, owner: Client, name: Name
) -> None:
    queue = name("orders")
    owner.create_queue(queue)
    for number in range(5):
        owner.send(queue, Message(body=str(number).encode()))
    with azure.get_queue_receiver(
        queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=10
    ) as receiver:
        assert [str(one) for one in receive(receiver, 5)] == ["0", "1", "2", "3", "4"]
    assert owner.queue(queue).active_count == 0


@pytest.mark.promise("B1")
def test_locks_are_renewed_and_lost(azure: ServiceBusClient, owner: Client, name: Name) -> None:
    queue = name("orders")
    owner.create_queue(queue, lock_duration_ms=5_000)
    owner.send(queue, Message(body=b"x"))
    with azure.get_queue_receiver(queue) as receiver:
        # Opens the link for requests, which takes a while: the lock must not run out over it.
        receiver.peek_messages(1)
        [message] = receive(receiver, 1)
        until = message.locked_until_utc
        # Times are whole milliseconds, and a renewal takes less than one.
        time.sleep(0.01)
        assert receiver.renew_message_lock(message) > until
        time.sleep(5.2)
        with pytest.raises(MessageLockLostError):
            receiver.renew_message_lock(message)
        # The client itself refuses to settle what it believes to be lost: it is made to try.
        message._raw_amqp_message.annotations[b"x-opt-locked-until"] = int(
            (time.time() + 60) * 1_000
        )
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        [again] = receive(receiver, 1)
        assert again.delivery_count == 1
        receiver.complete_message(again)


@pytest.mark.promise("P3", "P4", "P7", "P12", "P13", "D3")
def test_partitioned_queues(azure: ServiceBusClient, owner: Client, name: Name) -> None:
    queue = name("orders")
    owner.create_queue(queue, enable_partitioning=True, requires_duplicate_detection=True)
    with azure.get_queue_sender(queue) as sender, azure.get_queue_receiver(queue) as receiver:
        sent = [ServiceBusMessage(f"{one}", message_id=f"m-{one}") for one in range(40)]
        sender.send_messages(sent)
        for key in ("a", "b", "a"):
            sender.send_messages(ServiceBusMessage("k", message_id="same", partition_key=key))
        found = []
        start = 1
        while page := receiver.peek_messages(16, sequence_number=start):
            found += page
            start = (page[-1].sequence_number or 0) + 1
        assert len(found) == 42
        assert len({(one.sequence_number or 0) >> 48 for one in found}) > 4
        assert [one.partition_key for one in found if one.message_id == "same"].count("a") == 1
        with pytest.raises(ServiceBusError, match="session_id and partition_key"):
            sender.send_messages(_with_two_keys())
        received = receive(receiver, 42)
        for message in received:
            receiver.complete_message(message)
        assert {one.message_id for one in received} == {"same", *(f"m-{n}" for n in range(40))}


def _with_two_keys() -> ServiceBusMessage:
    """Return what the client refuses to make: a key that contradicts the session."""
    message = ServiceBusMessage("x", session_id="s", partition_key="s")
    message._raw_amqp_message.annotations[b"x-opt-partition-key"] = "other"
    return message


@pytest.mark.promise("B7", "B2")
def test_refusals_become_the_right_exceptions(
    azure: ServiceBusClient, owner: Client, name: Name
) -> None:
    queue = name("orders")
    owner.create_queue(queue, max_message_bytes=2_000, max_size_bytes=4_096)
    with (
        pytest.raises(MessagingEntityNotFoundError),
        azure.get_queue_sender(name("nowhere")) as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
    with azure.get_queue_sender(queue) as sender:
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 3_000))
        for _ in range(3):
            sender.send_messages(ServiceBusMessage(b"x" * 1_000))
        with pytest.raises(ServiceBusQuotaExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 1_000))
        owner.change_queue(queue, status="disabled")
        with pytest.raises(MessagingEntityDisabledError):
            sender.send_messages(ServiceBusMessage(b"x"))
    with (
        pytest.raises(MessagingEntityDisabledError),
        azure.get_queue_receiver(queue) as receiver,
    ):
        receiver.receive_messages(1, max_wait_time=1)
