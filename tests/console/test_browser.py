"""The console in a real browser: an operator's tasks, hostile contents, signing in."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from onibus import Bus, Message
from onibus.core.rules.rule import Rule, SqlFilter
from onibus.protocols.http.console import pages
from onibus.security.keys import AccessKey, Keyring
from onibus.security.rights import Right
from onibus.server.server import Server
from tests.bus_helpers import run
from tests.node import run_node
from tests.server.server_helpers import SECRET

SCRIPTS = Path(__file__).parent / "javascript"
MARKUP = '<img src=x onerror=alert(1)><script>alert(2)</script><iframe class="planted"></iframe>'


def browser() -> str:
    """Return the browser of this machine, or skip."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("this test needs a browser: apt install chromium")
    return found


async def fill(bus: Bus) -> None:
    """Give an operator something to do."""
    await bus.create_queue("orders", requires_duplicate_detection=True, enable_partitioning=True)
    orders = [json.dumps({"customer": {"id": at}}).encode() for at in range(500)]
    await bus.send_batch(
        "orders", [Message(body=one, message_id=str(at)) for at, one in enumerate(orders)]
    )
    await bus.create_reader("orders", "lake-1", address="lakes/main")
    await bus.create_queue("jobs")
    await bus.send_batch("jobs", [Message(body=b"job") for _ in range(900)])
    async with bus.receiver("jobs") as receiver:
        for at, held in enumerate(await receiver.receive(900)):
            await receiver.dead_letter(held, reason=("timeout", "bad address", "too late")[at % 3])
    await bus.create_queue("later")
    await bus.send("later", Message(body=b"now"))
    await bus.schedule("later", Message(body=b"then"), int(time.time() * 1000) + 3_600_000)
    await bus.create_queue("invoices", requires_session=True)
    for at in range(3):
        await bus.send("invoices", Message(body=b"bill", session_id=f"customer-{at}"))
    await bus.create_topic("news")
    rules = [Rule("weighty", SqlFilter("priority > 0"))]
    await bus.create_subscription("news", "all", rules=rules)
    for priority in (1, 2, 4):
        await bus.send("news", Message(body=b"news", properties={"priority": priority}))
    await bus.create_queue("hostile")
    hostile = Message(
        body=json.dumps({"x": MARKUP}).encode(),
        message_id=MARKUP,
        subject=MARKUP,
        properties={MARKUP: MARKUP},
    )
    await bus.send_batch("hostile", [hostile, hostile])
    async with bus.receiver("hostile") as receiver:
        (held,) = await receiver.receive(1)
        await receiver.dead_letter(held, reason=MARKUP, description=MARKUP)
    await bus.create_queue("tenants", fair_delivery=True, lock_duration_ms=300_000)
    await bus.send_batch("tenants", [Message(body=b"x", partition_key="loud")] * 60)
    for at in range(50):
        await bus.create_queue(f"region/{at:02}")


@run
async def test_an_operator_does_fourteen_tasks_and_hostile_contents_do_nothing() -> None:
    chromium = browser()
    bus = await Bus.ephemeral()
    await fill(bus)
    async with Server(bus, None, http_port=0) as server:
        url = f"http://localhost:{server.http_port}"
        # Held while the browser looks: one group has more than its share.
        receiver = bus.receiver("tenants")
        await receiver.receive(40)
        pictures = os.environ.get("PICTURES", "")
        out = await asyncio.to_thread(
            run_node, SCRIPTS / "operate.mjs", URL=url, CHROMIUM=chromium, PICTURES=pictures
        )
        assert len(json.loads(out)) == 14
        assert bus.queue("jobs").dead_lettered_count == 0
        assert bus.queue("jobs").active_count == 300


@run
async def test_a_key_signs_in_and_shows_what_it_allows() -> None:
    chromium = browser()
    owner = AccessKey(name="owner", primary=SECRET)
    listener = AccessKey(
        name="listener", primary=SECRET, rights=frozenset({Right.LISTEN}), entity="orders"
    )
    sender = AccessKey(
        name="sender", primary=SECRET, rights=frozenset({Right.SEND}), entity="orders"
    )
    reader = AccessKey(name="reader", primary=SECRET, rights=frozenset({Right.LISTEN}))
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    await bus.send("orders", Message(body=b"for a listener"))
    async with Server(bus, Keyring([owner, listener, sender, reader]), http_port=0) as server:
        await asyncio.to_thread(
            run_node,
            SCRIPTS / "login.mjs",
            URL=f"http://localhost:{server.http_port}",
            CHROMIUM=chromium,
            OWNER=SECRET,
            LISTENER=SECRET,
        )
        assert bus.queue("orders").active_count == 2


@run
async def test_an_operator_settles_messages_one_by_one(tmp_path: Path) -> None:
    chromium = browser()
    many = tmp_path / "many.txt"
    many.write_text('{"body": "one", "properties": {"n": 9007199254740993}}\n\nplain two\n')
    bus = await Bus.ephemeral()
    await bus.create_queue("orders", lock_duration_ms=300_000)
    await bus.send("orders", Message(body=b"first", properties={"region": "eu"}))
    await bus.create_queue("short-lived")
    async with Server(bus, None, http_port=0) as server:
        await asyncio.to_thread(
            run_node,
            SCRIPTS / "settle.mjs",
            URL=f"http://localhost:{server.http_port}",
            CHROMIUM=chromium,
            FILE=str(many),
        )
        orders = bus.queue("orders")
        assert orders.dead_lettered_count == 1
        assert orders.scheduled_count == 1
        sent = {message.body: message for message in bus.peek("orders", limit=10)}
        assert sent[b"edited"].properties == {"region": "eu"}
        assert sent[b"one"].properties == {"n": 9007199254740993}
        assert b"plain two" in sent


def test_sequence_numbers_stay_exact() -> None:
    api = Path(pages.__file__).parent / "static" / "api.js"
    run_node(SCRIPTS / "numbers.mjs", API=str(api))
