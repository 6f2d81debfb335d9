"""Web pages against a server that accepts a well-known key or none: rejected on every listener."""

from __future__ import annotations

import asyncio

import pytest

from onibus import Bus, Message
from onibus.protocols.amqp.frames import PROTOCOL_HEADER, SASL_HEADER
from onibus.protocols.http.routes import routes
from onibus.protocols.sqs.actions.table import ACTIONS
from onibus.security.keys import AccessKey, Keyring
from onibus.server.server import Server
from tests.bus_helpers import PATIENCE_S, run
from tests.server.browser import (
    OUR_OWN,
    REBOUND,
    REQUESTS,
    STRANGERS,
    Asked,
    ask,
    sqs_json,
    sqs_presigned,
)
from tests.server.server_helpers import SECRET
from tests.server.test_rights import path_of

REFUSED = (401, 403)

#: Whether a server asks for a key, which is the well-known one.
OPEN = {"insecure": False, "development": True}
opened = pytest.mark.parametrize("how", OPEN)


async def serving(how: str, **more: object) -> Server:
    """Return a server that is not started yet; it has a queue `q`, and one called `health`."""
    bus = await Bus.ephemeral()
    for name in ("q", "health"):
        await bus.create_queue(name)
    keys = Keyring(development=True) if OPEN[how] else None
    return Server(bus, keys, http_port=0, amqp_port=0, sqs_port=0, **more)  # type: ignore[arg-type]


def untouched(server: Server) -> bool:
    """Return whether nothing was planted, made or deleted."""
    bus = server.bus
    return sorted(bus.queues()) == ["health", "q"] and bus.queue("q").active_count == 0


@run
@opened
@pytest.mark.parametrize("what", REQUESTS)
async def test_programs_are_served(how: str, what: str) -> None:
    listener, make = REQUESTS[what]
    for whose, headers in OUR_OWN.items():
        async with await serving(how) as server:
            port = server.http_port if listener == "http" else server.sqs_port
            for name in ("localhost", "127.0.0.1", "app.localhost"):
                status = await ask(server, listener, name, make(f"{name}:{port}"), **headers)
                assert status not in REFUSED, (whose, name)


@run
@opened
@pytest.mark.parametrize("what", REQUESTS)
async def test_pages_of_others_are_refused(how: str, what: str) -> None:
    listener, make = REQUESTS[what]
    async with await serving(how) as server:
        port = server.http_port if listener == "http" else server.sqs_port
        for whose, headers in STRANGERS.items():
            asked = make(f"localhost:{port}")
            assert await ask(server, listener, "localhost", asked, **headers) in REFUSED, whose
        assert untouched(server)


@run
@opened
@pytest.mark.parametrize("what", REQUESTS)
async def test_names_that_were_made_to_lead_here_are_refused(how: str, what: str) -> None:
    listener, make = REQUESTS[what]
    async with await serving(how) as server:
        port = server.http_port if listener == "http" else server.sqs_port
        for name in REBOUND:
            asked = make(f"{name}:{port}")
            same = {"origin": "http://{host}", "sec-fetch-site": "same-origin"}
            for headers in ({}, same):
                assert await ask(server, listener, name, asked, **headers) in REFUSED, name
        assert untouched(server)


# Changes that a page would need only an image for


ACTIONS_THAT_READ = {name for name, action in ACTIONS.items() if action.reads}


def test_actions_that_read_are_those_by_name() -> None:
    assert {one for one in ACTIONS if one.startswith(("Get", "List"))} == ACTIONS_THAT_READ


def given(host: str) -> dict[str, str]:
    """Return what an action may ask for; what it does not know it leaves aside."""
    return {
        "QueueUrl": f"http://{host}/000000000000/q",
        "QueueName": "q",
        "MessageBody": "planted",
        "ReceiptHandle": "x",
        "VisibilityTimeout": "0",
        "Label": "x",
        "SourceArn": "arn:aws:sqs:us-east-1:000000000000:q",
        "TaskHandle": "x",
    }


@run
@opened
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_nothing_is_changed_by_an_image(how: str, method: str) -> None:
    async with await serving(how) as server:
        host = f"localhost:{server.sqs_port}"
        for action in ACTIONS:
            asked = sqs_presigned(host, action, given(host), method)
            if how == "insecure":
                asked.target = asked.target.partition("&X-Amz")[0]
            status = await ask(server, "sqs", "localhost", asked)
            assert (status == 403) is (action not in ACTIONS_THAT_READ), action
            posted = sqs_json(host, action, given(host), method)
            status = await ask(server, "sqs", "localhost", posted)
            assert (status == 403) is (action not in ACTIONS_THAT_READ), action
        assert untouched(server)


@run
async def test_with_a_key_of_its_own_presigned_requests_work_as_in_the_service() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("q")
    keys = Keyring([AccessKey(name="own", primary=SECRET)])
    async with Server(bus, keys, http_port=0, sqs_port=0) as server:
        host = f"localhost:{server.sqs_port}"
        asked = sqs_presigned(host, "SendMessage", given(host), key=("own", SECRET))
        assert await ask(server, "sqs", "localhost", asked, origin="https://a.example") == 200
        assert bus.queue("q").active_count == 1


def commits(bus: Bus) -> int:
    """Return how often anything was written."""
    broker = bus.broker
    written = [broker.namespace.commit_seconds]
    written += [store.commit_seconds for store in broker.stores.values()]
    return sum(sum(one.counts) for one in written)


@run
async def test_no_get_of_the_native_api_changes_anything() -> None:
    async with await serving("insecure") as server:
        bus = server.bus
        await bus.create_queue("orders", retention_ms=60_000)
        await bus.create_queue("s", requires_session=True)
        await bus.send("orders", Message(body=b"x"))
        await bus.create_reader("orders", "r")
        await bus.create_topic("x")
        await bus.create_subscription("x", "x")
        before = commits(bus)
        reading = [route for route in routes() if route.method == "GET"]
        assert len(reading) > 20
        for route in reading:
            for entity in ("orders", "x/subscriptions/x", "s"):
                for method in ("GET", "HEAD"):
                    asked = Asked(method, path_of(route, entity))
                    status = await ask(server, "http", "localhost", asked)
                    assert status < 500, route.path
        assert commits(bus) == before


# Browsers that are made to speak to an AMQP port


@run
@opened
async def test_a_port_of_amqp_closes_on_whoever_speaks_http(how: str) -> None:
    """A page can post any bytes it likes, but only after a request line and headers."""
    opening = SASL_HEADER + PROTOCOL_HEADER
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(opening)
    async with await serving(how) as server:
        assert server.amqp_port is not None
        for first in (head, b"GET / HTTP/1.1\r\n\r\n", b"AMQP / HTTP/1.1\r\n\r\n", b"OPTIONS *"):
            # On the HTTP port a method called AMQP is taken for the header of AMQP.
            ports = [server.amqp_port]
            if first.startswith(b"AMQP"):
                ports.append(server.http_port)
            for port in ports:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(first + opening)
                # The server says which protocol it speaks, as AMQP wants it, and closes.
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == SASL_HEADER, first
                writer.close()
