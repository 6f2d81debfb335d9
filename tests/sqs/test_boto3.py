"""boto3 with nothing changed but its endpoint: queues, messages, both kinds of queue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sqs.clients import bodies, delete, get, new_fifo, put


@pytest.mark.promise("F3")
def test_a_message_comes_back_with_its_id_group_and_number(sqs: Any) -> None:
    url = new_fifo(sqs)
    sent = put(sqs, url, "hello", "customer", "order-1")
    (message,) = get(sqs, url, AttributeNames=["All"])
    assert message["Body"] == "hello"
    assert message["MessageId"] == sent["MessageId"]
    assert message["Attributes"]["MessageGroupId"] == "customer"
    assert message["Attributes"]["MessageDeduplicationId"] == "order-1"
    assert message["Attributes"]["SequenceNumber"] == sent["SequenceNumber"]
    assert len(sent["SequenceNumber"]) == 20
    delete(sqs, url, message)
    assert bodies(get(sqs, url)) == []
