"""Rules that NServiceBus adds and removes over `$management`, with the errors it looks for."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from onibus import Bus, Message
from onibus.protocols.amqp import encode as to
from tests.amqp.peer import Peer
from tests.bus_helpers import run

TYPES = "NServiceBus.EnclosedMessageTypes"


def sql(expression: str) -> bytes:
    return to.text_map({"sql-filter": to.text_map({"expression": to.string(expression)})})


def correlation(**properties: bytes) -> bytes:
    """Return a correlation filter as the .NET client writes it: null where there is no value."""
    empty = dict.fromkeys(
        (
            "correlation-id",
            "message-id",
            "to",
            "reply-to",
            "label",
            "session-id",
            "reply-to-session-id",
            "content-type",
        ),
        to.NULL,
    )
    wanted = to.text_map({name.replace("_", "."): value for name, value in properties.items()})
    return to.text_map({"correlation-filter": to.text_map({**empty, "properties": wanted})})


@pytest.mark.promise("B3")
@run
async def test_rules_by_type_of_message() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_topic("t")
        name = await bus.create_subscription("t", "s")
        peer = Peer(bus)
        peer.greet()
        peer.open_requests("t/Subscriptions/s/$management")
        default = {"rule-name": to.string("$Default")}
        assert await peer.request("remove-rule", default) == (200, None)
        tracking: Any = {"com.microsoft:tracking-id": to.string(str(uuid4()))}
        for rule, filter_ in (
            ("like", sql(f"[{TYPES}] LIKE '%Sales.OrderPlaced%'")),
            ("type", correlation(Sales_OrderBilled=to.boolean(True))),
        ):
            body = {"rule-name": to.string(rule), "rule-description": filter_}
            assert await peer.request("add-rule", body, **tracking) == (200, None)
            told, _ = await peer.ask("add-rule", body, **tracking)
            assert told["statusCode"] == 409
            assert told["errorCondition"] == "com.microsoft:entity-already-exists"
        await bus.send("t", Message(body=b"1", properties={TYPES: "Sales.OrderPlaced, Sales"}))
        await bus.send("t", Message(body=b"2", properties={TYPES: "Sales.Other, Sales"}))
        await bus.send("t", Message(body=b"3", properties={"Sales.OrderBilled": True}))
        assert [one.body for one in bus.peek(name)] == [b"1", b"3"]
        gone = {"rule-name": to.string("none")}
        told, _ = await peer.ask("remove-rule", gone)
        assert (told["statusCode"], told["errorCondition"]) == (404, "amqp:not-found")
