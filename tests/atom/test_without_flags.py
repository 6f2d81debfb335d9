"""Administration clients, which speak TLS only, on a server that was not asked for TLS."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncServiceBusAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from onibus.protocols.atom.xml import ATOM
from tests.amqp.sdk_helpers import SCRIPTS
from tests.atom.helpers import connection
from tests.atom.test_javascript import WORDS
from tests.bus_helpers import run
from tests.node import run_node
from tests.server.processes import PATIENCE_S, Served, served
from tests.server.server_helpers import SECRET
from tests.source_tree import ROOT


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server as `make run` starts it, on free ports."""
    data = tmp_path_factory.mktemp("plain") / "data"
    with served("--config", ROOT / "examples/onibus.toml", "--data", data) as started:
        yield started


def test_the_client_of_python_works(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", plain.ready["offered_certificate"])
    whole = plain.ready["development"]
    with ServiceBusAdministrationClient.from_connection_string(whole) as azure:
        assert azure.get_queue("orders").requires_duplicate_detection
        azure.create_queue("of-python")
    with (
        ServiceBusClient.from_connection_string(whole) as client,
        client.get_queue_sender("of-python") as sender,
    ):
        sender.send_messages(ServiceBusMessage("the same connection string"))


@run
async def test_the_asyncio_client_of_python_works(plain: Served) -> None:
    azure = AsyncServiceBusAdministrationClient.from_connection_string(
        plain.ready["development"], connection_verify=plain.ready["offered_certificate"]
    )
    async with azure:
        await azure.create_topic("of-asyncio")
        assert (await azure.get_topic("of-asyncio")).name == "of-asyncio"


def test_the_client_of_javascript_works(tmp_path: Path) -> None:
    # It creates keys, after which the well-known one is rejected.
    with served("--data", tmp_path / "data", ONIBUS_ROOT_KEY=SECRET) as server:
        said = run_node(
            SCRIPTS / "administration.mjs",
            CONNECTION=connection(server),
            BOSS=connection(server, "boss", "p" * 44),
            STRANGER=connection(server, key="not the key"),
            NODE_EXTRA_CA_CERTS=server.ready["offered_certificate"],
            NAMES=json.dumps({word.partition("/")[0]: word for word in WORDS}),
        )
        assert said.endswith("all done\n")


def test_what_the_server_says_of_itself_is_plain_text(plain: Served) -> None:
    ready = plain.ready
    assert (ready["http"][:7], ready["amqp"][:7]) == ("http://", "amqp://")
    assert (ready["amqps"], ready["certificate"]) == ("", "")
    for text in (ready["development"], ready["service_bus"]):
        assert text.endswith(";UseDevelopmentEmulator=true;")
    kept = Path(ready["connection_file"]).read_text()
    assert kept.endswith(";UseDevelopmentEmulator=true;\n")


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_a_server_in_memory_answers_tls_with_a_certificate_that_nobody_knows() -> None:
    with served("--ephemeral") as server:
        assert server.ready["offered_certificate"] == ""
        whole = server.ready["development"]
        kind = ServiceBusAdministrationClient
        with kind.from_connection_string(whole, connection_verify=False) as azure:
            assert azure.create_queue("q").name == "q"


def test_the_root_is_the_feed_of_the_service(plain: Served) -> None:
    with plain.client() as client:
        found = client.get("/")
        assert (found.status_code, found.headers["content-type"]) == (
            *(200, "application/atom+xml;type=feed;charset=utf-8"),
        )
        assert found.text.startswith(f'<feed xmlns="{ATOM}"><title type="text">Publicly Listed')
        assert found.text.endswith("<generator>Service Bus 1.1</generator></feed>")
        assert client.get("/?api-version=2017-04").status_code == 200
        assert client.head("/").content == b""
        assert client.post("/").status_code == 404
    secure = plain.http.replace("http://127.0.0.1", "https://localhost")
    trusted = ssl.create_default_context(cafile=plain.ready["offered_certificate"])
    with httpx.Client(verify=trusted, trust_env=False, timeout=PATIENCE_S) as client:
        assert client.get(f"{secure}/").status_code == 200
