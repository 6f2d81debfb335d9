"""Large bodies in SQS responses: escaped in slices, in every form that clients ask for."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from hashlib import md5
from typing import Any
from xml.etree import ElementTree

import pytest

from onibus import Bus, Message
from onibus.protocols.http.messages import Head, Request, Response
from onibus.protocols.sqs.app import SqsApp
from onibus.protocols.sqs.large_bodies import PIECE_BYTES
from tests.bus_helpers import run

LONG = 2 * PIECE_BYTES + 1
BODIES = {
    "text": b"x" * LONG,
    "to be escaped": b'<&>"\r\n\\' * (LONG // 7),
    "characters that slices cut": b"x" + "🚌".encode() * (LONG // 4),
    "no character at the cut": b"x" * (PIECE_BYTES - 1) + "\uffff".encode() + b"x" * LONG,
    "a control character": b"x" * LONG + b"\x01",
    "a cut character": b"x" * LONG + b"\xf0\x9f\x9a",
}


def request(form: str) -> Request:
    url = "http://localhost/000000000000/q"
    if form == "json":
        headers = {"x-amz-target": "AmazonSQS.ReceiveMessage", "host": "localhost"}
        content = json.dumps({"QueueUrl": url, "MaxNumberOfMessages": 10}).encode()
    else:
        headers = {"content-type": "application/x-www-form-urlencoded", "host": "localhost"}
        if form == "query as json":
            headers["accept"] = "application/json"
        content = f"Action=ReceiveMessage&QueueUrl={url}&MaxNumberOfMessages=10".encode()
    return Request(Head("POST", "/", "", headers), content)


def bodies_in(form: str, document: bytes) -> list[tuple[str, str]]:
    """Return the bodies in a response, and their digests."""
    if form == "json":
        return [(one["Body"], one["MD5OfBody"]) for one in json.loads(document)["Messages"]]
    if form == "query as json":
        [inner] = json.loads(document).values()
        found = inner["ReceiveMessageResult"]["messages"]
        return [(one["Body"], one["MD5OfBody"]) for one in found]
    space = "{http://queue.amazonaws.com/doc/2012-11-05/}"
    return [
        (one.findtext(f"{space}Body") or "", one.findtext(f"{space}MD5OfBody") or "")
        for one in ElementTree.fromstring(document).iter(f"{space}Message")
    ]


async def answered(app: SqsApp, asked: Request) -> Response:
    responded: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    app(asked, responded.set_result)
    return await responded


@pytest.mark.parametrize("form", ["json", "query", "query as json"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@run
async def test_a_large_body_is_whole_in_slices(form: str, body: bytes) -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q", max_message_bytes=16 << 20)
        await bus.send_batch("q", [Message(body=b"small"), Message(body=body)])
        response = await answered(SqsApp(bus, None), request(form))
        assert response.stream is not None, "it was encoded at once"
        pieces = [bytes(piece) async for piece in response.stream]
    assert max(map(len, pieces)) <= 6 * PIECE_BYTES
    [small, large] = bodies_in(form, b"".join(pieces))
    assert small == ("small", md5(b"small").hexdigest())
    text = body if _is_carried(body) else b64encode(body)
    assert large == (text.decode(), md5(text).hexdigest())


def _is_carried(body: bytes) -> bool:
    return b"\x01" not in body and "\uffff".encode() not in body and not body.endswith(b"\x9a")


@run
async def test_a_receive_is_bounded_in_bytes() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q", max_message_bytes=16 << 20)
        for _ in range(4):
            await bus.send("q", Message(body=b"x" * (9 << 20)))
        app: Any = SqsApp(bus, None)
        for _ in range(4):
            response = await answered(app, request("json"))
            assert response.held_bytes == 9 << 20
        assert (await answered(app, request("json"))).body == b"{}"
