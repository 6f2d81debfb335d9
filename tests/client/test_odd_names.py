"""Names that mean something else in a path: a client reaches what has the name, nothing else."""

from __future__ import annotations

import pytest

from onibus import Bus, Message
from onibus.client import AsyncClient
from onibus.core.errors import OnibusError
from onibus.core.rules.rule import Rule
from onibus.server.server import Server
from tests.bus_helpers import run


@run
@pytest.mark.parametrize("name", [".", "..", "...", "%2e%2e", "a b", "ü;x"])
async def test_a_rule_is_changed_and_deleted_by_its_name(name: str) -> None:
    bus = await Bus.ephemeral()
    await bus.create_topic("news")
    subscription = "news/subscriptions/all"
    await bus.create_subscription("news", "all", rules=[Rule("first"), Rule(name)])
    await bus.send("news", Message(body=b"kept"))
    async with (
        Server(bus, None, http_port=0) as server,
        AsyncClient.connect(f"http://localhost:{server.http_port}") as client,
    ):
        await client.change_rule(subscription, Rule(name))
        await client.delete_rule(subscription, name)
        assert [rule.name for rule in await client.rules(subscription)] == ["first"]
        with pytest.raises(OnibusError, match="no rule"):
            await client.delete_rule(subscription, name)
        assert [one.body for one in await client.peek(subscription, limit=2)] == [b"kept"]
