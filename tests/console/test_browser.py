"""The console in a real browser: tasks, hostile contents, lost servers, signing in."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient

from onibus import Bus, Message
from onibus.api.log import AuditReport, ReaderReport
from onibus.client import AsyncClient, Client
from onibus.core.limits import MESSAGE_BYTES_MAX
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.service_bus import sections
from onibus.protocols.http.console import pages
from onibus.security.keys import AccessKey, Keyring
from onibus.security.rights import Right
from onibus.server.server import Server
from onibus.spark.jobs.audit import audit
from onibus.spark.lake_reporting import report_page
from tests.bus_helpers import run as run_within
from tests.console.filling import MARKUP, fill, fill_with_markup
from tests.node import run_node
from tests.server.processes import Served, served
from tests.server.server_helpers import SECRET
from tests.source_tree import ROOT
from tests.spark.lake_helpers import Captures

#: A walk ends long before on a machine that does nothing else.
run = partial(run_within, patience_s=1_000)
#: Characters of a large body.
HUGE = 64 << 20
REPORT = "<title>jobs: report</title><h1>jobs</h1><script>document.title = 'run'</script>"
SCRIPTS = Path(__file__).parent / "javascript"


def browser() -> str:
    """Return the browser of this machine, or skip."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("this test needs a browser: apt install chromium")
    return found


def walk(name: str, url: str, **more: str) -> str:
    """Run a walk through the console of a server; return what it prints."""
    pictures = os.environ.get("PICTURES", "")
    given = {"URL": url, "CHROMIUM": browser(), "PICTURES": pictures, **more}
    return run_node(SCRIPTS / f"{name}.mjs", **given)


@contextmanager
def busy_server(folder: Path) -> Iterator[Served]:
    """Serve 200,000 messages in 50 entities, with receivers, and a lake that was audited."""
    asyncio.run(fill(folder / "data"))
    with served("--data", folder / "data") as server:
        captures = Captures(server.ready["development"], "jobs")
        captures.run(folder / "lake")
        source = {"connection": server.ready["development"], "entity": "jobs"}
        assert audit(_no_spark, source, str(folder / "lake")).passed
        page = folder / "report.html"
        page.write_text(REPORT)
        assert report_page(captures.options, str(folder / "lake"), page) == ""
        with (
            Client.connect(server.ready["development"]) as client,
            ServiceBusClient.from_connection_string(server.service_bus) as sdk,
            sdk.get_queue_receiver("tenants"),
        ):
            client.receiver("tenants").receive(40)
            yield server


def _no_spark() -> Any:
    raise AssertionError("a small lake needs no Spark")


def test_an_operator_uses_every_view_and_action_with_200_000_messages(tmp_path: Path) -> None:
    many = tmp_path / "many.txt"
    lines = ['{"body": "one", "properties": {"n": 9007199254740993}}', "", "plain two"]
    many.write_text("\n".join([*lines, *(f"line {at}" for at in range(2_500))]))
    with busy_server(tmp_path) as server:
        done = json.loads(walk("operate", server.http, FILE=str(many), FOLDER=str(tmp_path)))
        assert len(done["clicks"]) == 33
        assert max(done["clicks"].values()) <= 20
        table = "\n".join(f"| {task} | {clicks} |" for task, clicks in done["whole"])
        assert len(done["whole"]) == 11
        assert table in (ROOT / "docs" / "console.md").read_text(), table
        with Client.connect(server.ready["development"]) as client:
            assert client.queue("jobs").dead_lettered_count == 0
            assert client.queue("jobs").active_count == 301
            sent = {one.body: one for one in client.peek("archive", limit=10_000)}
            assert sent[b"one"].properties == {"n": 9007199254740993}


def test_a_slow_connection_makes_no_search_crawl(tmp_path: Path) -> None:
    slow = {"LATENCY_MS": "250", "BYTES_PER_S": "100000"}
    with busy_server(tmp_path) as server:
        walk("operate", server.http, PARTS="find", **slow)


def test_every_view_is_accessible_and_a_keyboard_is_enough(tmp_path: Path) -> None:
    with busy_server(tmp_path) as server:
        walk("views", server.http, FOLDER=str(tmp_path))
        walk("keyboard", server.http)


@run
async def test_markup_changes_nothing_on_any_page() -> None:
    bus = await Bus.ephemeral()
    await fill_with_markup(bus)
    async with Server(bus, None, http_port=0) as server:
        receiver = bus.receiver("fair")
        await receiver.receive(40)
        url = f"http://localhost:{server.http_port}"
        async with AsyncClient.connect(url) as client:
            report = ReaderReport(
                audit=AuditReport(verdict="FAILED", messages=1, outcomes=1, findings=[MARKUP]),
                page=f"<title>report</title>{MARKUP}<script>ran = 1</script>",
            )
            await client.report_reader("hostile", MARKUP[:100], report)
        await asyncio.to_thread(walk, "hostile", url, MARKUP=MARKUP)


@run
async def test_a_lost_server_a_deleted_key_and_a_deleted_entity_are_shown(tmp_path: Path) -> None:
    operator = AccessKey(name="operator", primary=SECRET)
    keys = Keyring([operator])
    servers: list[Server] = []

    async def start(port: int = 0) -> int:
        bus = await Bus.open(tmp_path / "data")
        servers.append(Server(bus, keys, http_port=port))
        await servers[-1].start()
        return servers[-1].http_port

    async def stop() -> None:
        await servers[-1].stop()

    async def replace(*chosen: AccessKey) -> None:
        keys.replace(list(chosen))

    port = await start()
    await servers[-1].bus.create_queue("orders", lock_duration_ms=300_000)
    await servers[-1].bus.send_batch("orders", [Message(body=b"x")] * 3)
    asks = tmp_path / "asks"
    asks.mkdir()
    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "stop": stop,
        "start": lambda: start(port),
        "delete-entity": lambda: servers[-1].bus.delete_queue("made-after"),
        "delete-key": lambda: replace(AccessKey(name="other", primary=SECRET)),
        "new-key": lambda: replace(AccessKey(name="second", primary=SECRET)),
    }
    connection = f"Endpoint=sb://localhost;SharedAccessKeyName=operator;SharedAccessKey={SECRET}"
    url = f"http://localhost:{port}"
    walking = asyncio.create_task(
        asyncio.to_thread(walk, "outage", url, CONNECTION=connection, ASKS=str(asks))
    )
    while not walking.done():
        for name in [one for one in acts if (asks / one).exists()]:
            await acts.pop(name)()
            (asks / f"{name}.done").touch()
        await asyncio.sleep(0.05)
    await stop()
    await walking
    assert not acts


@run
async def test_a_key_signs_in_and_shows_what_it_allows() -> None:
    def key(name: str, right: Right, entity: str = "") -> AccessKey:
        return AccessKey(name=name, primary=SECRET, rights=frozenset({right}), entity=entity)

    keys = [
        AccessKey(name="owner", primary=SECRET),
        key("listener", Right.LISTEN, "orders"),
        key("sender", Right.SEND, "orders"),
        key("reader", Right.LISTEN),
        key("watcher", Right.MONITOR),
    ]
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    await bus.create_queue("other")
    await bus.send("orders", Message(body=b"for a listener"))
    async with Server(bus, Keyring(keys), http_port=0) as server:
        url = f"http://localhost:{server.http_port}"
        await asyncio.to_thread(walk, "login", url, SECRET=SECRET)
        assert bus.queue("orders").active_count == 2


@run
async def test_typed_fields_stay_and_ended_streams_are_shown() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    await bus.send("orders", Message(body=b"first", properties={"region": "eu"}))
    await bus.create_queue("short-lived")
    await bus.create_queue("values")
    await bus.send("values", Message(body=b"\x00Sw\xa1\x05hello", format="amqp"))
    async with Server(bus, None, http_port=0) as server:
        await asyncio.to_thread(walk, "streams", f"http://localhost:{server.http_port}")
        sent = {message.body: message for message in bus.peek("orders", limit=10)}
        assert sent[b"edited"].properties == {"region": "eu"}


@run
async def test_large_bodies_odd_names_slow_servers_and_many_tabs() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("huge", max_message_bytes=MESSAGE_BYTES_MAX)
    for name in ("constructor", "jobs", "archive"):
        await bus.create_queue(name)
    huge = json.dumps({"rows": "x" * HUGE}).encode()
    await bus.send("huge", Message(body=huge))
    listed = sections.section(sections.VALUE, to.list_([to.long(1)] * 1_000_000))
    await bus.send("huge", Message(body=listed, format="amqp"))
    await bus.send("huge", Message(body=b"x", properties={f"p{at}": at for at in range(40_000)}))
    odd = Message(body=b"x", properties={"__proto__": "x", "toString": "y"})
    await bus.send_batch("constructor", [odd] * 3)
    await bus.send_batch("jobs", [Message(body=b"dead")] * 2)
    async with bus.receiver("jobs") as receiver:
        for held in await receiver.receive(2):
            await receiver.dead_letter(held, reason="late")
    await bus.send_batch("jobs", [Message(body=body) for body in (b"first", b"second", b"third")])
    async with Server(bus, None, http_port=0) as server:
        url = f"http://localhost:{server.http_port}"
        tabs = os.environ.get("TABS", "9")
        await asyncio.to_thread(walk, "strain", url, HUGE=str(len(huge)), TABS=tabs)
        bodies = [message.body for message in bus.peek("jobs", limit=10)]
        assert sorted(bodies) == [b"dead", b"dead", b"once", b"second", b"third"]


@run
@pytest.mark.parametrize("keys", [None, Keyring(development=True)], ids=["open", "development"])
async def test_pages_of_other_sites_change_nothing(keys: Keyring | None) -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    await bus.send("orders", Message(body=b"mine"))
    async with Server(bus, keys, http_port=0) as server:
        await asyncio.to_thread(walk, "elsewhere", f"http://localhost:{server.http_port}")
        assert [message.body for message in bus.peek("orders", limit=10)] == [b"mine"]


@run
async def test_a_browser_with_a_wrong_clock_stays_signed_in() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    await bus.send("orders", Message(body=b"x"))
    keys = Keyring([AccessKey(name="operator", primary=SECRET)])
    connection = f"Endpoint=sb://localhost;SharedAccessKeyName=operator;SharedAccessKey={SECRET}"
    async with Server(bus, keys, http_port=0) as server:
        url = f"http://localhost:{server.http_port}"
        await asyncio.to_thread(walk, "clock", url, CONNECTION=connection)


def test_sequence_numbers_stay_exact() -> None:
    api = Path(pages.__file__).parent / "static" / "api.js"
    run_node(SCRIPTS / "numbers.mjs", API=str(api))
