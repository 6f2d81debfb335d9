"""A little of everything that a bus keeps, and how to list it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec import to_builtins

from onibus import Bus, CorrelationFilter, Message, Rule, SqlAction, SqlFilter

STORES = ("main", "second")
DAY_MS = 86_400_000
#: Far enough that no test reaches it.
FUTURE_MS = 4_000_000_000_000
#: What is larger than this in one block is a file next to the database.
LARGE = 700_000
#: The task that staged rows in columns; earlier versions have no such rows.
COLUMNS_TASK = 1


async def fill(bus: Bus) -> None:
    """Put messages in every state into queues and topics of every kind."""
    await _queues(bus)
    await _sessions(bus)
    await _topics(bus)
    await _log_and_pipeline(bus)
    await _documents(bus)


async def _queues(bus: Bus) -> None:
    await bus.create_queue(
        "orders",
        enable_partitioning=True,
        requires_duplicate_detection=True,
        duplicate_detection_window_ms=7 * DAY_MS,
        retention_ms=7 * DAY_MS,
    )
    for at in range(60):
        key = f"key-{at % 9}" if at % 3 else None
        await bus.send(
            "orders", Message(body=b"order %d" % at, message_id=f"o-{at}", partition_key=key)
        )
    await bus.send("orders", Message(body=b"again", message_id="o-6"))
    orders = bus.receiver("orders")
    for message in await orders.receive(10):
        await orders.complete(message)

    await bus.create_queue("plain", max_delivery_count=3, lock_duration_ms=300_000)
    sent = await bus.send_batch(
        "plain", [Message(body=b"plain %d" % at, properties={"at": at}) for at in range(20)]
    )
    assert len(sent) == 20
    await bus.schedule("plain", Message(body=b"for later", message_id="later"), FUTURE_MS)
    await bus.send("plain", Message(body=b"mortal", time_to_live_ms=365 * DAY_MS))
    plain = bus.receiver("plain")
    held = await plain.receive(6)
    await plain.complete(held[0])
    await plain.abandon(held[1], properties={"why": "abandoned"})
    await plain.defer(held[2])
    await plain.dead_letter(held[3], reason="bad", description="as a fixture")
    await plain.defer(held[4], delay_ms=300 * DAY_MS)
    # held[5] stays locked.

    await bus.create_queue("target")
    await bus.create_queue("source", forward_to="target")
    await bus.send("source", Message(body=b"forwarded", message_id="f-1"))


async def _sessions(bus: Bus) -> None:
    await bus.create_queue("sessions", requires_session=True, lock_duration_ms=300_000)
    for at in range(12):
        await bus.send("sessions", Message(body=b"step %d" % at, session_id=f"s-{at % 3}"))
    session = await bus.accept_session("sessions", "s-0", owner="fixture")
    await session.set_state(b"half-way")
    await session.complete(*await session.receive(2))
    await session.close()
    locked = await bus.accept_session("sessions", "s-1", owner="holder")
    await locked.receive(1)

    await bus.create_queue(
        "fifo.fifo", fifo=True, content_based_deduplication=True, lock_duration_ms=43_200_000
    )
    for at in range(6):
        await bus.send("fifo.fifo", Message(body=b"entry %d" % at, session_id=f"g-{at % 2}"))
    await bus.fifo_receiver("fifo.fifo").receive(1, attempt_id="attempt-1")


async def _topics(bus: Bus) -> None:
    await bus.create_topic("news", requires_duplicate_detection=True)
    await bus.create_subscription("news", "all")
    await bus.create_subscription(
        "news",
        "sport",
        rules=[Rule("sport", SqlFilter("kind = 'sport'"), SqlAction("SET seen = TRUE"))],
    )
    await bus.create_subscription(
        "news", "by-subject", rules=[Rule("s", CorrelationFilter(subject="weather"))]
    )
    for at in range(10):
        kind = "sport" if at % 2 else "art"
        message = Message(body=b"item %d" % at, message_id=f"n-{at}", properties={"kind": kind})
        message.subject = "weather" if at % 5 == 0 else None
        await bus.send("news", message)
    await bus.schedule("news", Message(body=b"tomorrow", message_id="n-later"), FUTURE_MS)
    everything = bus.receiver("news/subscriptions/all")
    for taken in await everything.receive(4):
        await everything.complete(taken)


async def _log_and_pipeline(bus: Bus) -> None:
    await bus.create_reader("orders", "reader-1")
    await bus.create_queue("bulk", retention_ms=7 * DAY_MS)
    bodies = [b"bulk %d" % at for at in range(50)] + [b"large" * (LARGE // 5)]
    await bus.send_arrow("bulk", pa.table({"body": pa.array(bodies, pa.binary())}))
    claim = await bus.claim("bulk", "job", 5)
    assert claim is not None
    await bus.read_claim("bulk", "job", claim.number)
    names: dict[str, Any] = {"producer": "job", "task": 0, "attempt": 0}
    await bus.stage("bulk", [Message(body=b"published")], batch=0, **names)
    await bus.publish("bulk", producer="job", batch=0, attempts=[(0, 0)], checkpoint="c-1")
    await bus.stage("bulk", [Message(body=b"staged")], batch=1, lease_ms=300 * DAY_MS, **names)
    staged = pa.table({"body": pa.array([b"column %d" % at for at in range(80)], pa.binary())})
    await bus.stage_arrow(
        "bulk", staged, batch=1, lease_ms=300 * DAY_MS, **names | {"task": COLUMNS_TASK}
    )


async def _documents(bus: Bus) -> None:
    """Send JSON bodies, some of them invalid, with properties of every type."""
    await bus.create_queue("documents", retention_ms=7 * DAY_MS)
    moment = datetime(2026, 5, 1, 12, 30, 0, 250_000, UTC)
    kinds: dict[str, Any] = {
        "text": "é", "whole": 2**60, "real": 0.1, "yes": True, "bytes": b"\x00\xff", "at": moment,
        "nothing": None,
    }  # fmt: skip
    bodies = [b'{"id": %d, "total": %d.5}' % (at, at) for at in range(8)]
    bodies += [b"not JSON", b"\xff\xfe", b'{"id": "no number", "total": 1.0}', b""]
    await bus.send_batch(
        "documents",
        [
            Message(body=body, message_id=f"d-{at}", properties=kinds if at % 2 else {})
            for at, body in enumerate(bodies)
        ],
    )
    documents = bus.receiver("documents")
    held = await documents.receive(4)
    await documents.complete(held[0], held[1])
    await documents.dead_letter(held[2], reason="bad", description="as a fixture")


#: Fields that say when something ends or how old it is: they follow the clock.
_MOMENTS = ("token", "locked_until_ms", "expires_at_ms", "lease_until_ms", "age_ms", "until_ms")


async def listed(bus: Bus) -> dict[str, Any]:
    """Return everything that a bus shows of what it keeps, as plain values."""
    shown: dict[str, Any] = {}
    entities = bus.queues() + bus.topics()
    for topic in bus.topics():
        entities += [f"{topic}/subscriptions/{name}" for name in ("all", "sport", "by-subject")]
    for name in entities:
        kept: dict[str, Any] = {"messages": _peeked(bus, name, dead=False)}
        if name not in bus.topics():
            kept["dead_letters"] = _peeked(bus, name, dead=True)
            kept["claims"] = _plain(bus.claims(name))
            if "sessions" in name or "fifo" in name:
                kept["sessions"] = _plain(bus.sessions(name))
        if "/" not in name:
            kept["duplicates"] = [one[0] for one in bus.duplicates(name)]
            kept["producers"] = _plain(bus.producers(name))
            kept["staged"] = _plain(bus.staged(name))
            kept["readers"] = _plain(bus.readers(name))
            kept["log"] = await _log(bus, name)
        shown[name] = kept
    return shown


def _peeked(bus: Bus, name: str, *, dead: bool) -> list[Any]:
    found: list[Any] = []
    start = 0
    while some := bus.peek(name, start=start, dead_letters=dead):
        found += _plain(some)
        start = some[-1].sequence_number + 1
    return found


async def _log(bus: Bus, name: str) -> list[Any]:
    rows: list[Any] = []
    for partition, start in enumerate(bus.log_positions(name).earliest):
        assert start is not None
        async for batch in bus.read_log(name, partition, start):
            columns = [c for c in batch.schema.names if c not in ("expires_at", "expires_at_ms")]
            rows += [
                {key: _short(value) for key, value in row.items()}
                for row in batch.select(columns).to_pylist()
            ]
    return rows


def _plain(value: Any) -> Any:
    return _short(to_builtins(value, enc_hook=vars, str_keys=True))


def _short(value: Any) -> Any:
    """Return a value as JSON has it, without moments, and with large ones named by their size."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items() if key not in _MOMENTS}
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    if isinstance(value, str | bytes) and len(value) > 1_000:
        return f"{len(value)} long"
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, int | float | str | None) else str(value)
