"""Requests of both protocols with anything in them: answered, never with a 5xx, and soon."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onibus.protocols.http.messages import Head, Request
from onibus.protocols.sqs.actions.table import ACTIONS
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.query_protocol import parameters
from tests.server.processes import PATIENCE_S, Served
from tests.server.test_many_connections import resident_bytes
from tests.sqs.clients import client_of
from tests.sqs.signing import signed

QUEUE = "fuzzed"
#: Far less than what is sent: over three hundred megabytes, of one kind nearly fifty.
KEPT_BYTES_MAX = 24 << 20

_texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", "All", "fuzzed", "fuzzed.fifo", "-1", "99999999999999999999", "true"]),
)
_urls = st.sampled_from(
    [
        "fuzzed",
        "fuzzed.fifo",
        "http://x/000000000000/fuzzed",
        "/000000000000/fuzzed.fifo",
        "x/%00",
        "",
        "/",
    ]
)
_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=12), st.dictionaries(st.text(max_size=12), inner, max_size=5)
    ),
    max_leaves=12,
)
_attribute = st.fixed_dictionaries(
    {}, optional={"DataType": _texts, "StringValue": _texts, "BinaryValue": _texts}
)
_entry = st.fixed_dictionaries(
    {},
    optional={
        "Id": _texts,
        "MessageBody": _texts,
        "MessageGroupId": _texts,
        "MessageDeduplicationId": _texts,
        "DelaySeconds": st.integers(),
        "ReceiptHandle": _texts,
        "VisibilityTimeout": st.integers(),
        "MessageAttributes": st.dictionaries(_texts, _attribute, max_size=12),
    },
)
#: Members that actions have, with values that nearly fit.
_members: dict[str, st.SearchStrategy[Any]] = {
    "QueueUrl": _urls,
    "QueueName": st.one_of(_texts, st.just("fuzzed")),
    "Attributes": st.dictionaries(
        st.sampled_from(["DelaySeconds", "RedrivePolicy", "Policy", "RedriveAllowPolicy", "x"]),
        st.one_of(_texts, st.sampled_from(["{}", "[]", '{"maxReceiveCount":[]}', "null"])),
        max_size=3,
    ),
    "tags": st.dictionaries(_texts, _texts, max_size=3),
    "Tags": st.dictionaries(_texts, _texts, max_size=3),
    "TagKeys": st.lists(_texts, max_size=3),
    "AttributeNames": st.lists(_texts, max_size=3),
    "MessageAttributeNames": st.lists(_texts, max_size=3),
    "MessageBody": _texts,
    "MessageGroupId": _texts,
    "MessageDeduplicationId": _texts,
    "MessageAttributes": st.dictionaries(_texts, _attribute, max_size=12),
    "MessageSystemAttributes": st.dictionaries(_texts, _attribute, max_size=2),
    "DelaySeconds": st.integers(),
    "MaxNumberOfMessages": st.integers(-1, 12),
    "VisibilityTimeout": st.integers(),
    "ReceiveRequestAttemptId": _texts,
    "ReceiptHandle": _texts,
    "Entries": st.lists(_entry, max_size=12),
    "Label": _texts,
    "AWSAccountIds": st.lists(_texts, max_size=3),
    "Actions": st.lists(_texts, max_size=3),
    "SourceArn": st.one_of(_texts, st.just("arn:aws:sqs:r:0:fuzzed")),
    "DestinationArn": _texts,
    "TaskHandle": _texts,
    "NextToken": _texts,
    "MaxResults": st.integers(),
}
_nearly = st.fixed_dictionaries({}, optional=_members)
#: A purge every minute, and nobody's queue deleted under the others.
_actions = st.sampled_from(sorted(set(ACTIONS) - {"DeleteQueue", "PurgeQueue"}))
_often = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def asked(server: Served) -> Iterator[Any]:
    """Return what sends a signed request, and sees to it that the answer is one."""
    endpoint: str = server.ready["sqs"]
    sqs = client_of(endpoint)
    sqs.create_queue(QueueName=QUEUE)
    sqs.create_queue(QueueName=QUEUE + ".fifo", Attributes={"FifoQueue": "true"})
    with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:

        def ask(path: str, body: bytes, headers: dict[str, str], method: str = "POST") -> int:
            request = signed(endpoint + path, body, headers, method=method)
            answer = client.request(
                method, str(request.url), content=body, headers=dict(request.headers.items())
            )
            assert answer.status_code < 500, (path, body, answer.text)
            return answer.status_code

        yield ask


def json_headers(action: str) -> dict[str, str]:
    return {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}


@_often
@given(action=_actions, body=st.one_of(_nearly, _values))
def test_json_of_any_shape(asked: Any, action: str, body: Any) -> None:
    asked("/", json.dumps(body).encode(), json_headers(action))


@_often
@given(action=_actions, body=st.binary(max_size=200))
def test_any_bytes(asked: Any, action: str, body: bytes) -> None:
    asked("/", body, json_headers(action))
    asked("/", body, {"Content-Type": "application/x-www-form-urlencoded"})


_names = st.sampled_from(
    [
        "QueueUrl",
        "QueueName",
        "MessageBody",
        "MessageGroupId",
        "MessageDeduplicationId",
        "DelaySeconds",
        "MaxNumberOfMessages",
        "Attribute.1.Name",
        "Attribute.1.Value",
        "Attribute",
        "AttributeName.1",
        "AttributeName.x",
        "MessageAttribute.1.Name",
        "MessageAttribute.1.Value.DataType",
        "MessageAttribute.1.Value.StringValue",
        "MessageAttribute.1.Value.BinaryValue",
        "MessageAttribute.1.Value",
        "SendMessageBatchRequestEntry.1.Id",
        "SendMessageBatchRequestEntry.1.MessageBody",
        "SendMessageBatchRequestEntry.1",
        "SendMessageBatchRequestEntry.2.MessageAttribute.1.Name",
        "DeleteMessageBatchRequestEntry.1.Id",
        "Tag.1.Key",
        "TagKey.1",
        "a.b.c.d.e.f.g.h",
        "..",
    ]
)


@_often
@given(action=_actions, parameters=st.dictionaries(_names, st.one_of(_urls, _texts), max_size=8))
def test_parameters_of_any_kind(asked: Any, action: str, parameters: dict[str, str]) -> None:
    body = urlencode({"Action": action, **parameters}, errors="replace").encode()
    asked("/000000000000/fuzzed", body, {"Content-Type": "application/x-www-form-urlencoded"})


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"QueueUrl": "fuzzed", "MessageBody": "\\ud800"}',
        b'{"QueueUrl": "fuzzed", "Entries": [' + b"{}," * 50_000 + b"{}]}",
        b'{"QueueUrl": "' + b"x" * 1_000_000 + b'"}',
    ],
)
def test_deep_long_and_broken_bodies(asked: Any, body: bytes) -> None:
    for action in ("SendMessage", "SendMessageBatch"):
        assert asked("/", body, json_headers(action)) == 400


def test_very_many_parameters(asked: Any) -> None:
    body = b"Action=SendMessage&" + b"&".join(b"a.%d=1" % n for n in range(50_000))
    assert asked("/", body, {"Content-Type": "application/x-www-form-urlencoded"}) == 400


def test_what_was_refused_is_not_kept(server: Served, asked: Any) -> None:
    """Large requests that are refused do not grow the server's memory, each with other texts."""
    action = json_headers("SendMessageBatch")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    entry = {"Id": "a", "MessageBody": "x" * 1_000, "MessageAttributes": {}}
    many = json.dumps({"QueueUrl": "fuzzed", "Entries": [entry] * 1_000}).encode()
    deep = b'{"QueueUrl": ' + b"[" * 1_000_000
    numbers = itertools.count()

    def storm() -> None:
        for _ in range(12):
            mine = f"{next(numbers)}" + "y" * 1_000_000
            assert asked("/", many, action) == 400
            assert asked("/", deep, action) == 400
            for name in ("QueueUrl", "QueueName", "ReceiptHandle", "SourceArn", "TaskHandle"):
                given = {"QueueUrl": "fuzzed", name: mine, "MessageBody": "x"}
                wanted = "GetQueueUrl" if name == "QueueName" else "SendMessage"
                wanted = "DeleteMessage" if name == "ReceiptHandle" else wanted
                wanted = "ListMessageMoveTasks" if name == "SourceArn" else wanted
                wanted = "CancelMessageMoveTask" if name == "TaskHandle" else wanted
                assert asked("/", json.dumps(given).encode(), json_headers(wanted)) >= 400
            assert asked("/", f"Action=SendMessage&QueueUrl={mine}".encode(), form) == 400

    storm()
    before = resident_bytes(server.process.pid)
    for _ in range(4):
        storm()
    grown = resident_bytes(server.process.pid) - before
    assert grown < KEPT_BYTES_MAX, f"{grown >> 20} MiB more"


def test_a_form_that_is_all_percents_keeps_nobody_waiting(server: Served, asked: Any) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    whole = b"Action=SendMessage&QueueUrl=no-such&MessageBody=" + b"%C3%BC" * 1_300_000
    before = processor_seconds(server.process.pid)
    assert asked("/", whole, form) == 400
    assert processor_seconds(server.process.pid) - before < 0.7


def processor_seconds(pid: int) -> float:
    """Return how much work a process has done, however busy the machine is."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@_often
@given(
    st.lists(
        st.one_of(
            st.sampled_from([b"%", b"+", b"=", b"%3D", b"\r\n", b"%0"]), st.binary(max_size=4)
        ),
        max_size=12,
    )
)
def test_forms_are_read_as_forms_are(parts: list[bytes]) -> None:
    value = b"".join(parts).replace(b"&", b"")
    try:
        expected: str | None = unquote_to_bytes(value.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        expected = None
    request = Request(Head("POST", "/", "", {}), b"a=" + value)
    if expected is None:
        with pytest.raises(SqsError):
            parameters(request)
    else:
        assert parameters(request) == {"a": expected}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_and_paths(asked: Any, method: str) -> None:
    for path in ("/", "/x/y/z", "/%00/%ff", "/?Action=ListQueues", "/?a=%ff&&=&b"):
        asked(path, b"", {}, method)


def test_what_came_through_is_still_a_queue(server: Served) -> None:
    sqs = client_of(server.ready["sqs"])
    url = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
    sqs.purge_queue(QueueUrl=url)
    sqs.send_message(QueueUrl=url, MessageBody="well", DelaySeconds=0)
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "well"
