"""Large bodies are read on a thread, while other clients are served."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any
from urllib.parse import urlencode

import pytest

from onibus import Bus
from onibus.protocols.http.messages import Head, Request, Response
from onibus.protocols.sqs.app import READ_HERE_BYTES, SqsApp
from tests.bus_helpers import run

URL = "http://localhost/000000000000/q"


def in_json(count: int, size: int) -> Request:
    """Return a batch of messages of that size."""
    entries = [{"Id": f"i{at}", "MessageBody": "x" * size} for at in range(count)]
    body = json.dumps({"QueueUrl": URL, "Entries": entries}).encode()
    headers = {"host": "localhost", "x-amz-target": "AmazonSQS.SendMessageBatch"}
    return Request(Head("POST", "/", "", headers), body)


def in_form(count: int, size: int) -> Request:
    """The same as a form."""
    given = {"Action": "SendMessageBatch", "QueueUrl": URL}
    for at in range(1, count + 1):
        given[f"SendMessageBatchRequestEntry.{at}.Id"] = f"i{at}"
        given[f"SendMessageBatchRequestEntry.{at}.MessageBody"] = "x" * size
    return Request(Head("POST", "/", "", {"host": "localhost"}), urlencode(given).encode())


@pytest.mark.parametrize("ask", [in_json, in_form])
@pytest.mark.parametrize(("size", "beside"), [(10, False), (READ_HERE_BYTES // 8, True)])
@run
async def test_large_bodies_are_read_on_a_thread(
    monkeypatch: pytest.MonkeyPatch, ask: Any, size: int, beside: bool
) -> None:
    threads = []
    read: Any = SqsApp._read

    def noted(app: SqsApp, call: Any) -> Any:
        threads.append(threading.current_thread())
        return read(app, call)

    monkeypatch.setattr(SqsApp, "_read", noted)
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        app = SqsApp(bus, None)
        responded: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        app(ask(10, size), responded.set_result)
        response = await responded
        assert response.status == 200, response.body
        assert bus.queue("q").active_count == 10
    assert [one is not threading.current_thread() for one in threads] == [beside]


@run
async def test_a_large_body_that_cannot_be_read_is_rejected() -> None:
    async with Bus.ephemeral() as bus:
        app = SqsApp(bus, None)
        request = in_json(10, READ_HERE_BYTES)
        request.body = request.body[:-1]
        responded: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        app(request, responded.set_result)
        assert (await responded).status == 400
