"""Dead letters of FIFO queues keep their MessageId, however many dead-letter queues they see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onibus.client import Client
from onibus.core.message import Message
from tests.server.processes import Served
from tests.sqs.clients import delete, get, new_fifo, new_name, new_queue, put
from tests.sqs.test_standard import arn_of, policy_of

#: What a sender writes who wants to be taken for the bus.
FORGED: dict[str, Any] = {
    "DeadLetterSource": "elsewhere.fifo",
    "DeadLetterSourceId": 1,
    "DeadLetterReason": "made up",
}


@pytest.fixture(scope="module")
def owner(server: Served) -> Iterator[Client]:
    with Client.connect(server.ready["development"]) as client:
        yield client


def chain_of(sqs: Any, make: Any = new_fifo) -> tuple[str, str, str]:
    """Return a queue, its dead-letter queue, and the dead-letter queue of that one."""
    last = make(sqs)
    middle = make(sqs, RedrivePolicy=policy_of(sqs, last))
    return make(sqs, RedrivePolicy=policy_of(sqs, middle)), middle, last


def receive(sqs: Any, url: str, seconds: int = 0) -> Any:
    """Receive a message; unless it is hidden for a while that was one receive too many."""
    (message,) = get(
        sqs,
        url,
        1,
        WaitTimeSeconds=10,
        VisibilityTimeout=seconds,
        AttributeNames=["All"],
        MessageAttributeNames=["All"],
    )
    return message


def source_of(message: Any) -> str | None:
    found: str | None = message["Attributes"].get("DeadLetterQueueSourceArn")
    return found


@pytest.mark.parametrize("make", [new_queue, new_fifo])
def test_through_two_dead_letter_queues(sqs: Any, make: Any) -> None:
    first, middle, last = chain_of(sqs, make)
    identity = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if make is new_fifo else {}
    attributes = {"n": {"DataType": "Number", "StringValue": "1"}}
    if make is new_fifo:
        # The numbers of the three queues are not the same.
        for url, count in ((first, 2), (middle, 1)):
            for body in "xy"[:count]:
                put(sqs, url, body, "other")
            delete(sqs, url, *get(sqs, url))
    sent = sqs.send_message(
        QueueUrl=first, MessageBody="bad", MessageAttributes=attributes, **identity
    )
    found = [receive(sqs, url) for url in (first, middle)]
    found.append(receive(sqs, last, 30))
    assert [one["Body"] for one in found] == ["bad"] * 3
    assert [one["MessageId"] for one in found] == [sent["MessageId"]] * 3
    # The queue that it came from last, and nothing that the bus wrote on the way.
    sources = [None, arn_of(sqs, first), arn_of(sqs, middle)]
    assert [source_of(one) for one in found] == sources
    assert [one["MessageAttributes"] for one in found] == [attributes] * 3


def test_a_message_that_came_by_forwarding(sqs: Any, owner: Client) -> None:
    first, middle, last = chain_of(sqs)
    entrance = new_name()
    owner.create_queue(entrance, forward_to=first.rpartition("/")[2])
    put(sqs, first, "before")
    delete(sqs, first, *get(sqs, first))
    owner.send(entrance, Message(body=b"bad", session_id="g", message_id="d"))
    seen = [receive(sqs, url)["MessageId"] for url in (first, middle)]
    letter = receive(sqs, last, 30)
    assert [*seen, letter["MessageId"]] == [seen[0]] * 3, "as it was seen where it became one"
    assert source_of(letter) == arn_of(sqs, middle)


def test_a_dead_letter_queue_that_forwards(sqs: Any, owner: Client) -> None:
    end = new_fifo(sqs)
    collected = new_name()
    owner.create_queue(collected, forward_to=end.rpartition("/")[2])
    url = new_fifo(sqs)
    owner.change_queue(
        url.rpartition("/")[2], forward_dead_letters_to=collected, max_delivery_count=1
    )
    put(sqs, end, "before")
    delete(sqs, end, *get(sqs, end))
    sent = put(sqs, url, "bad")
    assert receive(sqs, url)["MessageId"] == sent["MessageId"]
    letter = receive(sqs, end, 30)
    assert letter["MessageId"] == sent["MessageId"]
    assert source_of(letter) == arn_of(sqs, url)


@pytest.mark.parametrize("way", ["sent", "forwarded"])
def test_what_a_sender_made_up_is_not_believed(sqs: Any, owner: Client, way: str) -> None:
    first, middle, last = chain_of(sqs)
    name = first.rpartition("/")[2]
    entrance = name
    if way == "forwarded":
        # The bus brings it, but not as a dead letter.
        entrance = new_name()
        owner.create_queue(entrance, forward_to=name)
    honest = put(sqs, first, "honest", "other")["MessageId"]
    delete(sqs, first, receive(sqs, first, 30))
    owner.send(entrance, Message(body=b"forged", session_id="g", message_id="d", properties=FORGED))
    found = receive(sqs, first)
    assert found["MessageAttributes"].keys() == FORGED.keys(), "its sender's, like any other"
    assert source_of(found) is None
    assert found["MessageId"] == honest[:-1] + "2", "of this queue, and its number there"
    letters = [receive(sqs, middle), receive(sqs, last, 30)]
    assert [one["MessageId"] for one in letters] == [found["MessageId"]] * 2
    assert [source_of(one) for one in letters] == [arn_of(sqs, first), arn_of(sqs, middle)]
