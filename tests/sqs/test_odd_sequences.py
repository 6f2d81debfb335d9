"""What users of boto3 come upon: living queues changed, deleted, made again, read in odd ways."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.server.processes import Served, wait_for
from tests.sqs.clients import bodies, client_of, delete, get, new_fifo, new_name, new_queue, put
from tests.sqs.test_standard import arn_of, policy_of


@pytest.mark.promise("F1", "F9")
def test_a_queue_that_is_made_again_knows_nothing_of_the_first(sqs: Any) -> None:
    url = new_fifo(sqs)
    first = put(sqs, url, "one", "g", "same")
    put(sqs, url, "two", "g")
    (held,) = get(sqs, url, 1, ReceiveRequestAttemptId="try")
    sqs.delete_queue(QueueUrl=url)
    name = url.rpartition("/")[2]
    assert sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"] == url
    assert get(sqs, url, ReceiveRequestAttemptId="try") == []
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        delete(sqs, url, held)
    second = put(sqs, url, "three", "g", "same")
    assert second["MessageId"] != first["MessageId"]
    assert bodies(get(sqs, url)) == ["three"]


@pytest.mark.promise("F10")
def test_the_middle_of_a_group_given_back_and_deleted(sqs: Any) -> None:
    url = new_fifo(sqs)
    for body in "1234":
        put(sqs, url, body)
    one, two, three = get(sqs, url, 3)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=two["ReceiptHandle"], VisibilityTimeout=0
    )
    assert get(sqs, url) == []
    delete(sqs, url, three)
    assert get(sqs, url) == [], "the first one is still in flight"
    delete(sqs, url, one)
    assert bodies(get(sqs, url)) == ["2", "4"]


@pytest.mark.promise("F2", "F4", "F5")
def test_content_based_deduplication_turned_on_and_off_on_a_living_queue(sqs: Any) -> None:
    url = new_fifo(sqs)

    def switch(on: str) -> None:
        attributes = {"ContentBasedDeduplication": on}
        sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)

    def send() -> Any:
        return sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")["MessageId"]

    explicit = put(sqs, url, "x", "g", "one")["MessageId"]
    switch("true")
    hashed = send()
    assert hashed != explicit
    assert send() == hashed
    switch("false")
    with pytest.raises(ClientError):
        send()
    assert put(sqs, url, "x", "g", "one")["MessageId"] == explicit
    switch("true")
    assert send() == hashed, "what is remembered is still remembered"
    assert bodies(get(sqs, url)) == ["x", "x"]


@pytest.mark.promise("F10")
def test_a_shorter_delay_does_not_let_later_messages_overtake(sqs: Any) -> None:
    url = new_fifo(sqs, DelaySeconds="2")
    put(sqs, url, "1")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    put(sqs, url, "2")
    put(sqs, url, "of another group", "h")
    assert bodies(get(sqs, url)) == ["of another group"]
    assert bodies(get(sqs, url, WaitTimeSeconds=20)) == ["1", "2"]


@pytest.mark.promise("F1", "F10")
def test_groups_go_to_the_dead_letter_queue_and_back_in_order(sqs: Any) -> None:
    morgue = new_fifo(sqs)
    url = new_fifo(sqs, RedrivePolicy=policy_of(sqs, morgue))
    sent = {
        f"{group}{n}": put(sqs, url, f"{group}{n}", group, f"{group}{n}")
        for n in range(3)
        for group in "ab"
    }
    bad = ["a0", "a1", "a2", "b0", "b1", "b2"]
    for _ in range(6):
        get(sqs, url, 1, VisibilityTimeout=0)
    letters: list[Any] = []

    def arrived() -> bool:
        letters[:] = get(sqs, morgue, VisibilityTimeout=0)
        return len(letters) == len(bad)

    wait_for(arrived)
    assert sorted(bodies(letters), key=lambda body: body[0]) == bad, "each group in its order"
    for one in letters:
        assert one["MessageId"] == sent[one["Body"]]["MessageId"]
    source = arn_of(sqs, morgue)
    sqs.start_message_move_task(SourceArn=source)

    def status() -> str:
        return str(sqs.list_message_move_tasks(SourceArn=source)["Results"][0]["Status"])

    wait_for(lambda: status() == "COMPLETED")
    back = get(sqs, url, AttributeNames=["All"])
    assert sorted(bodies(back), key=lambda body: body[0]) == bad
    assert {one["Attributes"]["MessageDeduplicationId"] for one in back} == set(bad)
    again = put(sqs, url, "again", "a", "a0")
    assert again["MessageId"] == sent["a0"]["MessageId"], "the window outlived the journey"


def test_ten_messages_as_large_as_can_be(sqs: Any) -> None:
    url = new_fifo(sqs)
    sizes = 1_048_576
    for n in range(10):
        put(sqs, url, chr(97 + n) * sizes, f"g{n}")
    received = get(sqs, url)
    assert [body[0] for body in bodies(received)] == list("abcdefghij")
    assert {len(body) for body in bodies(received)} == {sizes}
    with pytest.raises(ClientError) as error:
        sqs.send_message(
            QueueUrl=url,
            MessageBody="x" * (sizes - 9),
            MessageGroupId="g",
            MessageDeduplicationId="d",
            MessageAttributes={"abc": {"DataType": "Binary", "BinaryValue": b"x"}},
        )
    assert error.value.response["Error"]["Code"] == "InvalidParameterValue", "attributes count"


def test_urls_begin_with_the_host_that_was_asked_for(server: Served, sqs: Any) -> None:
    port = server.ready["sqs"].rpartition(":")[2]
    name = new_name()
    other = client_of(f"http://localhost:{port}")
    assert other.create_queue(QueueName=name)["QueueUrl"] == (
        f"http://localhost:{port}/000000000000/{name}"
    )
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    assert url == f"http://127.0.0.1:{port}/000000000000/{name}"
    assert other.list_queues(QueueNamePrefix=name)["QueueUrls"][0].startswith("http://localhost:")


def test_a_dead_letter_queue_that_is_gone_for_a_while(sqs: Any) -> None:
    morgue = new_queue(sqs)
    url = new_queue(sqs, RedrivePolicy=policy_of(sqs, morgue))
    sqs.delete_queue(QueueUrl=morgue)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    get(sqs, url, VisibilityTimeout=0)
    assert get(sqs, url) == []
    sqs.create_queue(QueueName=morgue.rpartition("/")[2])
    assert bodies(get(sqs, morgue, WaitTimeSeconds=20)) == ["x"], "it waited"
