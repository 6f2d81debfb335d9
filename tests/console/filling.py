"""A data directory for walks through the console: 200,000 messages in 50 entities."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa

from onibus import Bus, Message
from onibus.core.limits import BATCH_COUNT_MAX
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import Rule, SqlFilter

MARKUP = '<img src=x onerror=alert(1)><script>alert(2)</script><iframe class="planted"></iframe>'
ENTITIES = 50
MESSAGES = 200_000
REASONS = {"timeout": 300, "bad address": 400, "too late": 300}


async def _bulk(bus: Bus, name: str, count: int) -> None:
    """Send orders in bulk, each with its number as id and as a field of its body."""
    for start in range(0, count, BATCH_COUNT_MAX):
        numbers = range(start, min(start + BATCH_COUNT_MAX, count))
        bodies = [
            json.dumps({"customer": {"id": at, "region": ("eu", "us")[at % 2]}, "items": [at % 7]})
            for at in numbers
        ]
        ids = pa.array([f"{name}-{at}" for at in numbers])
        await bus.send_arrow(
            name, pa.table({"body": pa.array(bodies, pa.binary()), "message_id": ids})
        )


async def fill(folder: Path) -> None:
    """Make the data directory."""
    async with Bus.open(folder) as bus:
        await bus.create_queue(
            "orders", requires_duplicate_detection=True, enable_partitioning=True
        )
        await _dead_letters(bus)
        await _few(bus)
        entities = len(bus.queues()) + len(bus.topics()) + 2
        rest = ENTITIES - entities
        sent = 1_000 + 300 + 60 + 6 + 3 + 2 + 40
        each = 40_000 // rest
        await _bulk(bus, "orders", MESSAGES - sent - each * rest)
        for at in range(rest):
            await bus.create_queue(f"region/{at:02}")
            await _bulk(bus, f"region/{at:02}", each)


async def _dead_letters(bus: Bus) -> None:
    await bus.create_queue("jobs")
    reasons = [reason for reason, count in REASONS.items() for _ in range(count)]
    bodies = [Message(body=json.dumps({"job": at}).encode()) for at in range(len(reasons))]
    await bus.send_batch("jobs", bodies)
    async with bus.receiver("jobs") as receiver:
        for reason, held in zip(reasons, await receiver.receive(len(reasons)), strict=True):
            await receiver.dead_letter(held, reason=reason)


async def _few(bus: Bus) -> None:
    """Make the entities that one task or another is about."""
    await bus.create_queue("shipments", status="active")
    await bus.send_batch("shipments", [Message(body=b"parcel")] * 300)
    await bus.change_queue("shipments", status="receive-disabled")
    await bus.create_queue("later", lock_duration_ms=300_000)
    await bus.send("later", Message(body=b"now", properties={"region": "eu"}))
    await bus.schedule("later", Message(body=b"then"), int(time.time() * 1_000) + 3_600_000)
    await bus.create_queue("invoices", requires_session=True, lock_duration_ms=300_000)
    for at in range(3):
        await bus.send("invoices", Message(body=b"bill", session_id=f"customer-{at}"))
    await bus.create_queue("steps", fifo=True)
    for at in range(3):
        message = Message(body=b"step", session_id="anna", message_id=f"step-{at}")
        await bus.send("steps", message)
    await bus.create_queue("tenants", fair_delivery=True, lock_duration_ms=300_000)
    await bus.send_batch("tenants", [Message(body=b"x", partition_key="loud")] * 60)
    await bus.create_topic("news")
    rules = [Rule("weighty", SqlFilter("priority > 0"))]
    await bus.create_subscription("news", "all", rules=rules)
    await bus.create_subscription("news", "urgent", rules=[Rule("high", SqlFilter("priority > 9"))])
    for priority in (1, 2, 4):
        await bus.send("news", Message(body=b"news", properties={"priority": priority}))
    await bus.create_queue("archive")
    await bus.create_queue("large")
    await bus.send("large", Message(body=bytes(range(256)) * 3_900))
    await bus.send("large", Message(body=json.dumps({"rows": ["x" * 90] * 10_000}).encode()))
    await bus.send_batch("large", [Message(body=b"small")] * 38)


async def fill_with_markup(bus: Bus) -> None:
    """Put markup wherever the bus takes a string."""
    short = MARKUP[:100]
    await bus.create_queue("hostile", user_metadata=MARKUP, attributes={short: MARKUP})
    hostile = Message(
        body=json.dumps({"x": MARKUP}).encode(),
        message_id=short,
        session_id=short,
        partition_key=short,
        subject=MARKUP,
        content_type=MARKUP,
        correlation_id=MARKUP,
        to=MARKUP,
        reply_to=MARKUP,
        reply_to_session_id=short,
        properties={MARKUP: MARKUP},
    )
    await bus.send_batch("hostile", [hostile, hostile, hostile])
    async with bus.receiver("hostile") as receiver:
        (held,) = await receiver.receive(1)
        await receiver.dead_letter(held, reason=MARKUP, description=MARKUP)
    await bus.create_queue("typed")
    await bus.create_queue("deep")
    await bus.send("deep", Message(body=b"[" * 200_000 + b"]" * 200_000))
    await bus.create_reader("hostile", short, address=MARKUP)
    await bus.claim("hostile", short, 1)
    await bus.create_queue("sessions", requires_session=True)
    await bus.send("sessions", hostile)
    await bus.accept_session("sessions", short, owner=MARKUP)
    await bus.create_queue("fair", fair_delivery=True, lock_duration_ms=300_000)
    await bus.send_batch("fair", [Message(body=b"x", partition_key=short)] * 60)
    await bus.create_topic("news")
    literal = MARKUP.replace("'", "''")
    expression = f"sys.Label = '{literal}'"
    rules = [Rule("sql", SqlFilter(expression)), Rule("same", CorrelationFilter(subject=MARKUP))]
    await bus.create_subscription("news", "all", rules=rules)
    await bus.send("news", Message(body=MARKUP.encode(), subject=MARKUP))
