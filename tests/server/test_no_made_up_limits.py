"""No made-up limits (X12): what bounds connections, entities and sizes can be set, and is named."""

from __future__ import annotations

import ast
import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest

from onibus import Bus, Message, Quotas, Rule
from onibus.core import limits as numbers
from onibus.core.errors import InvalidArgument, MessageTooLarge, QuotaExceeded
from onibus.core.settings import QueueSettings
from onibus.protocols.http.limits import Limits
from onibus.server.config import load
from tests.bus_helpers import PATIENCE_S, run
from tests.server.http_helpers import serving
from tests.source_tree import python_files, text_of, tree_of

pytestmark = pytest.mark.promise("X12")

#: Packages that bound what others take. Those above them bound only what they take themselves.
BOUNDING = (
    "api",
    "core",
    "directory",
    "gateway",
    "shard",
    "store",
    "security",
    "server",
    "operation",
    "protocols/http",
    "protocols/atom",
)


async def make(calls: list[Any]) -> None:
    for start in range(0, len(calls), 500):
        await asyncio.gather(*(call() for call in calls[start : start + 500]))


@run
async def test_as_many_entities_as_are_allowed() -> None:
    more = Quotas(entities=numbers.ENTITY_COUNT_MAX + 1)
    async with Bus.ephemeral(quotas=more) as bus:
        await make([lambda n=n: bus.create_queue(f"q{n}") for n in range(more.entities)])
        with pytest.raises(QuotaExceeded):
            await bus.create_queue("one-too-many")
        assert len(bus.queues()) == more.entities
        await bus.send("q0", Message(body=b"first"))
        await bus.send(f"q{more.entities - 1}", Message(body=b"last"))
        [received] = await bus.receiver(f"q{more.entities - 1}").receive()
        assert received.body == b"last"


@run
async def test_as_many_of_every_kind_as_are_allowed() -> None:
    usual = Quotas()
    more = Quotas(
        partitioned_entities=usual.partitioned_entities + 1,
        subscriptions=usual.subscriptions + 1,
        rules=usual.rules + 1,
    )
    rules = [Rule(f"r{n}") for n in range(more.rules)]
    async with Bus.ephemeral(quotas=more) as bus:
        await make(
            [
                lambda n=n: bus.create_queue(f"p{n}", enable_partitioning=True)
                for n in range(more.partitioned_entities)
            ]
        )
        await bus.create_topic("t")
        await make(
            [lambda n=n: bus.create_subscription("t", f"s{n}") for n in range(more.subscriptions)]
        )
        await bus.create_topic("u")
        ruled = await bus.create_subscription("u", "s", rules=rules)
        with pytest.raises(QuotaExceeded):
            await bus.create_queue("p", enable_partitioning=True)
        with pytest.raises(QuotaExceeded):
            await bus.create_subscription("t", "s")
        with pytest.raises(QuotaExceeded):
            await bus.create_rule(ruled, Rule("r"))
        await bus.send("t", Message(body=b"to all of them"))
        last = f"t/subscriptions/s{more.subscriptions - 1}"
        assert bus.subscription(last).active_count == 1
    async with Bus.ephemeral() as bus:
        await bus.create_topic("t")
        with pytest.raises(QuotaExceeded):
            await bus.create_subscription("t", "s", rules=rules)


@run
async def test_messages_are_as_large_as_their_queue_allows() -> None:
    body = bytes(QueueSettings().max_message_bytes + 1)
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        with pytest.raises(MessageTooLarge):
            await bus.send("q", Message(body=body))
        await bus.change_queue("q", max_message_bytes=len(body) + 1_000)
        await bus.send("q", Message(body=body))
        assert (await bus.receiver("q").receive())[0].body == body
        with pytest.raises(InvalidArgument):
            await bus.change_queue("q", max_message_bytes=numbers.MESSAGE_BYTES_MAX + 1)


#: A request that a server with so little refuses, and one with more does not.
BOUNDED: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "a body": ({"body_bytes_max": 1_000}, {"json": {"body": "x" * 1_000}}, 413),
    "a head": ({"head_bytes_max": 5_000}, {"headers": {"x-long": "x" * 9_000}, "json": {}}, 431),
}


@pytest.mark.parametrize("what", BOUNDED)
@run
async def test_requests_are_as_large_as_the_server_allows(what: str) -> None:
    little, request, status = BOUNDED[what]
    for chosen, expected in ((Limits(**little), status), (Limits(), 200)):
        async with Bus.ephemeral() as bus, serving(bus=bus, limits=chosen) as client:
            await bus.create_queue("q")
            answer = await client.http.post("/v1/entities/q/messages", **request)
            assert answer.status_code == expected


@run
async def test_as_many_connections_as_are_allowed() -> None:
    for most, expected in ((3, [200, 200, 200, 503]), (4, [200, 200, 200, 200])):
        async with serving(limits=Limits(connections_max=most)) as client:
            address = str(client.http.base_url)
            clients = [
                httpx.AsyncClient(base_url=address, trust_env=False, timeout=PATIENCE_S)
                for _ in range(4)
            ]
            found = [(await one.get("/livez")).status_code for one in clients]
            for one in clients:
                await one.aclose()
            assert found == expected


def test_every_quota_and_limit_takes_any_number(tmp_path: Path) -> None:
    path = tmp_path / "onibus.toml"
    tables: dict[str, Any] = {"quotas": Quotas, "limits": Limits}
    for table, kind in tables.items():
        large = {field.name: 10**15 for field in fields(kind)}
        lines = [f"{name} = {number}" for name, number in large.items()]
        path.write_text("\n".join((f"[{table}]", *lines)))
        config = load(str(path))
        assert getattr(config, table) == kind(**large)


def bounds() -> set[tuple[str, str]]:
    """Return the constants that bound something, and where they are."""
    chosen = [f"onibus/{name}" for name in BOUNDING]
    paths = [path for path in python_files("onibus") if path.count("/") == 1]
    paths += python_files(*chosen)
    return {
        (target.id, path)
        for path in paths
        if path != "onibus/core/limits.py"
        for node in tree_of(path).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.endswith("_MAX")
    }


def test_no_bound_is_hidden() -> None:
    rows = text_of("docs/limits.md").split("| bound | where | why it is there |")[1].splitlines()
    cells = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in rows[2:] if row]
    assert all(len(cell) == 3 and cell[2] for cell in cells)
    assert {(name, where) for name, where, _ in cells} == bounds()
