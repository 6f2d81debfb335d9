"""Trace context stays on messages, and comes onto them from the header of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onibus import Bus
from tests.bus_helpers import get, get_one, msg, run
from tests.server.web import ask, serving

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-ffffffffffffffffffffffffffffffff-b7ad6b7169203331-00"


@run
async def test_context_stays_on_a_message_wherever_it_goes(tmp_path: Path) -> None:
    properties = {"traceparent": PARENT, "Diagnostic-Id": OTHER}
    async with Bus.open(tmp_path) as bus:
        await bus.create_topic("t")
        await bus.create_queue("last")
        await bus.create_subscription("t", "s", forward_to="last")
        await bus.send("t", msg("x", properties=properties))
    async with Bus.open(tmp_path) as bus:
        held = (await bus.receiver("last").receive(wait_ms=5_000))[0]
        await bus.receiver("last").dead_letter(held)
        dead = await get_one(bus, "last", dead_letters=True)
        kept = {name: dead.message.properties.get(name) for name in properties}
        assert kept == properties


@pytest.mark.parametrize(
    ("header", "given", "expected"),
    [
        (PARENT, {}, {"traceparent": PARENT}),
        (PARENT, {"a": 1}, {"a": 1, "traceparent": PARENT}),
        (PARENT, {"traceparent": OTHER}, {"traceparent": OTHER}),
        (PARENT, {"Diagnostic-Id": OTHER}, {"Diagnostic-Id": OTHER}),
        ("nonsense", {}, {}),
        ("00-" + "0" * 32 + "-b7ad6b7169203331-01", {}, {}),
        (PARENT + "x" * 300, {}, {}),
        (None, {}, {}),
    ],
)
def test_the_header_comes_onto_messages_that_have_none(
    header: str | None, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    @run
    async def sent() -> None:
        headers = {} if header is None else {"traceparent": header}
        async with Bus.ephemeral() as bus, serving(bus) as server:
            await bus.create_queue("q")
            message = {"body": "x", "properties": given}
            at = "/v1/entities/q"
            one = await ask(server, "POST", f"{at}/messages", message, headers)
            batch = {"messages": [message, {"body": "y"}]}
            many = await ask(server, "POST", f"{at}/batch", batch, headers)
            assert (one.status_code, many.status_code) == (200, 200)
            first, second, bare = [m.message.properties for m in await get(bus, "q")]
        assert first == second == expected
        assert bare == ({"traceparent": header} if header == PARENT else {})

    sent()
