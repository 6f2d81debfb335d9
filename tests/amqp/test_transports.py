"""AMQP over TLS on the same port, over WebSocket on the port of HTTP, and tokens that run out."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from onibus import Bus, Message
from onibus.client import Client
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.frames import SASL_HEADER, TLS_HEADER
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME, Keyring
from onibus.security.sas import make_token
from tests.amqp.peer import Peer
from tests.amqp.raw_client import RawClient, message, transfer
from tests.amqp.sdk_helpers import Name, closing_sockets, receive
from tests.bus_helpers import run
from tests.server.processes import OWN_KEY_ONLY, PATIENCE_S, Served, served


def test_tls_is_told_apart_on_the_same_port(tmp_path: Path) -> None:
    with served("--data", tmp_path / "data", "--tls") as server:
        port = int(server.ready["amqp"].rpartition(":")[2])
        certificate = server.ready["certificate"]
        with Client.connect(server.ready["development"], verify=certificate) as owner:
            owner.create_queue("q")
        # The port of HTTP takes AMQP too.
        for one in (port, server.port):
            _over_tls(one, certificate)
        # On loopback plain text is let in besides.
        with RawClient(port) as plain:
            plain.open()


def _over_tls(port: int, certificate: str) -> None:
    text = f"Endpoint=sb://localhost;SharedAccessKeyName={ROOT_NAME};"
    with ServiceBusClient.from_connection_string(
        text + f"SharedAccessKey={DEVELOPMENT_KEY}",
        custom_endpoint_address=f"sb://localhost:{port}",
        transport_type=TransportType.Amqp,
        ssl_context=ssl.create_default_context(cafile=certificate),
        retry_total=0,
    ) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("over TLS"))
        with client.get_queue_receiver("q") as receiver:
            [found] = receive(receiver, 1)
            assert str(found) == "over TLS"
            receiver.complete_message(found)


def test_the_ports_are_those_that_clients_know(tmp_path: Path) -> None:
    """Neither connection string names one; the address is one that nobody else listens on."""
    address = ".".join(str(part) for part in (127, *random.choices(range(1, 255), k=3)))
    ports = ("--http-port", "5300", "--amqp-port", "5672")
    with served("--data", tmp_path / "data", "--tls", "--host", address, *ports) as server:
        assert server.ready["amqps"] == f"amqps://{address}:5671"
        certificate = server.ready["certificate"]
        where = f"Endpoint=sb://{address};SharedAccessKeyName={ROOT_NAME};"
        where += f"SharedAccessKey={DEVELOPMENT_KEY}"
        told = httpx.get(f"http://{address}:5300/health", trust_env=False, timeout=PATIENCE_S)
        assert told.json() == {"status": "healthy", "message": "Service is healthy."}
        with ServiceBusAdministrationClient.from_connection_string(
            where.replace(address, f"{address}:5300"), connection_verify=certificate, retry_total=0
        ) as admin:
            admin.create_queue("q")
        trust: Any = {"ssl_context": ssl.create_default_context(cafile=certificate)}
        for how, more in (("", trust), (";UseDevelopmentEmulator=true", {})):
            with ServiceBusClient.from_connection_string(
                where + how, retry_total=0, **more
            ) as client:
                with client.get_queue_sender("q") as sender:
                    sender.send_messages(ServiceBusMessage("x"))
                with client.get_queue_receiver("q") as receiver:
                    [found] = receive(receiver, 1)
                    receiver.complete_message(found)
        # Where TLS is expected nothing else is said.
        with socket.create_connection((address, 5671)) as plain:
            plain.sendall(SASL_HEADER)
            assert plain.recv(100) == TLS_HEADER


def test_the_port_of_http_takes_amqp_too(server: Served, owner: Client, name: Name) -> None:
    """Who manages entities and sends messages has one connection string, with one port."""
    queue = name("orders")
    owner.create_queue(queue)
    with ServiceBusClient.from_connection_string(
        server.ready["development"], retry_total=0
    ) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("to the other port"))
        with client.get_queue_receiver(queue) as receiver:
            [found] = receive(receiver, 1)
            receiver.complete_message(found)
    assert str(found) == "to the other port"
    assert owner.queue(queue).active_count == 0


def test_plain_text_is_told_that_tls_is_spoken(tmp_path: Path) -> None:
    with (
        served("--data", tmp_path / "data", "--tls", "--host", "0.0.0.0", **OWN_KEY_ONLY) as server,
        RawClient(int(server.ready["amqp"].rpartition(":")[2])) as plain,
    ):
        plain.send(SASL_HEADER)
        plain.expect_header(TLS_HEADER)
        assert plain.is_closed()


@pytest.mark.filterwarnings(
    "ignore:ssl=None is deprecated:DeprecationWarning",
    # This client leaves its session to the garbage collector.
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
def test_amqp_over_websocket(server: Served, owner: Client, name: Name) -> None:
    queue = name("orders")
    owner.create_queue(queue)
    with closing_sockets():
        asyncio.run(asyncio.wait_for(_over_websocket(server, queue), PATIENCE_S))
    assert owner.queue(queue).active_count == 0


async def _over_websocket(server: Served, queue: str) -> None:
    async with AsyncServiceBusClient.from_connection_string(
        server.service_bus,
        custom_endpoint_address=f"sb://localhost:{server.port}",
        transport_type=TransportType.AmqpOverWebsocket,
        retry_total=0,
    ) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"x" * 300_000))
        async with client.get_queue_receiver(queue) as receiver:
            [found] = await receiver.receive_messages(1, max_wait_time=5)
            assert len(b"".join(found.body)) == 300_000
            await receiver.complete_message(found)


def test_amqp_over_websocket_as_plain_programs_speak_it(
    server: Served, owner: Client, name: Name
) -> None:
    """This client names an origin, as a browser does: the server's own."""
    queue = name("orders")
    owner.create_queue(queue)
    with ServiceBusClient.from_connection_string(
        server.service_bus,
        custom_endpoint_address=f"sb://localhost:{server.port}",
        transport_type=TransportType.AmqpOverWebsocket,
        retry_total=0,
    ) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("over a WebSocket"))
        with client.get_queue_receiver(queue) as receiver:
            [found] = receive(receiver, 1)
            receiver.complete_message(found)
    assert str(found) == "over a WebSocket"


@pytest.mark.parametrize("path", ["/$servicebus/websocket", "/elsewhere"])
def test_only_amqp_is_upgraded(server: Served, path: str) -> None:
    headers = {
        "upgrade": "websocket",
        "connection": "upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-protocol": "chat" if path.startswith("/$") else "AMQPWSB10",
    }
    with server.client() as client:
        assert client.get(path, headers=headers).status_code == 404


@run
async def test_a_token_that_runs_out_ends_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        peer = Peer(bus, Keyring(development=True))
        peer.greet()
        peer.attach(0, say.SENDER, "q")
        *_, refused = peer.heard()
        assert refused.condition == "amqp:unauthorized-access"
        peer.say(say.detach(0, None))
        until = int(now) + 600
        peer.client.put_token("q", make_token("sb://x/q", ROOT_NAME, DEVELOPMENT_KEY, until))
        peer.attach(0, say.SENDER, "q")
        peer.attach(1, say.RECEIVER, "q")
        peer.attach(2, say.RECEIVER, "q/$management")
        peer.heard()
        peer.say(transfer(0, 0, message(b"x")))
        await peer.hear(say.DISPOSITION)
        assert peer.client.wake_at() == until
        now = until - 1
        peer.client.check_tokens()
        assert peer.heard() == []
        now = until
        peer.client.check_tokens()
        ended = [one for one in peer.heard() if one.code == say.DETACH]
        assert [one.condition for one in ended] == ["amqp:unauthorized-access"] * 3
        assert bus.queue("q").active_count == 1


@run
async def test_who_shows_no_token_is_closed() -> None:
    async with Bus.ephemeral() as bus:
        peer = Peer(bus, Keyring(development=True))
        peer.greet()
        peer.heard()
        peer.client.check_tokens()
        assert peer.heard() == []
        peer.client._begun -= 21
        peer.client.check_tokens()
        [closed] = peer.heard()
        assert (closed.code, closed.condition) == (say.CLOSE, "amqp:connection:forced")


def test_a_client_that_does_not_read_holds_nobody_up(
    server: Served, owner: Client, name: Name
) -> None:
    queue = name("orders")
    owner.create_queue(queue)
    for _ in range(40):
        owner.send(queue, Message(body=b"x" * 500_000))
    port = int(server.ready["amqp"].rpartition(":")[2])
    token = make_token("sb://x/", ROOT_NAME, DEVELOPMENT_KEY, int(time.time()) + 600)
    with RawClient(port) as deaf, RawClient(port) as other:
        for one in (deaf, other):
            one.open()
            one.begin()
            assert one.put_token(f"sb://x/{queue}", token) == 202
        deaf.attach(0, say.RECEIVER, queue, "me")
        deaf.flow(0, 1_000)
        other.attach(0, say.SENDER, "me", queue)
        other.expect(say.FLOW)
        other.say(transfer(0, 1, message(b"from another")))
        assert other.expect(say.DISPOSITION)[1][4].descriptor == say.ACCEPTED
        # Of 20 MB it was given as much as fits between it and us, and a turn.
        assert owner.queue(queue).held_count < 40


@pytest.mark.promise("B8")
def test_a_stop_stores_what_was_sent_and_says_so(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served("--data", data) as server:
        with Client.connect(server.ready["development"]) as owner:
            owner.create_queue("q")
        token = make_token("sb://x/", ROOT_NAME, DEVELOPMENT_KEY, int(time.time()) + 600)
        with RawClient(int(server.ready["amqp"].rpartition(":")[2])) as client:
            client.open()
            client.begin()
            assert client.put_token("sb://x/q", token) == 202
            client.attach(0, say.SENDER, "me", "q")
            client.expect(say.FLOW)
            for number in range(300):
                client.say(transfer(0, number + 1, message(b"x" * 1_000)))
            accepted = 0
            server.process.terminate()
            try:
                while True:
                    _, fields, _ = client.expect(say.DISPOSITION)
                    accepted += fields[2] - fields[1] + 1
            except (EOFError, ConnectionError):
                pass
            assert client.closed_for == "amqp:connection:forced"
        assert server.process.wait(PATIENCE_S) == 0
    with served("--data", data) as again, Client.connect(again.ready["development"]) as owner:
        assert owner.queue("q").active_count == accepted
        with again.client() as http:
            told = http.get("/metrics", headers={"authorization": token}).text
            assert "onibus_amqp_connections 0" in told
