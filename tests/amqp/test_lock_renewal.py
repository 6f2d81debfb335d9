"""Locks that official clients renew by themselves are kept for longer than they last."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import AutoLockRenewer
from azure.servicebus.aio import AutoLockRenewer as AsyncAutoLockRenewer

from onibus import Message
from onibus.client import Client
from tests.amqp.sdk.stage import KINDS, Kind
from tests.amqp.sdk.world import get_one, official
from tests.amqp.sdk_helpers import SCRIPTS, Name
from tests.bus_helpers import run
from tests.node import run_node
from tests.server.processes import Served

#: Long enough for clients on a busy machine to renew in time; and how long messages are held.
_LOCK_MS, _HELD_MS = 12_000, 14_000


@pytest.mark.promise("B1", "B4")
@pytest.mark.usefixtures("node")
@run
async def test_clients_keep_their_locks_by_themselves(
    server: Served, owner: Client, name: Name
) -> None:
    """All three side by side, each with a message of a queue and one of a session."""
    queue, sessions = name("held"), name("held")
    owner.create_queue(queue, lock_duration_ms=_LOCK_MS)
    owner.create_queue(sessions, lock_duration_ms=_LOCK_MS, requires_session=True)
    for session in (*KINDS, "javascript"):
        owner.send(queue, Message(body=b'"x"'))
        owner.send(sessions, Message(body=b'"x"', session_id=session))
    names = {"queue": queue, "sessions": sessions, "session": "javascript", "held_ms": _HELD_MS}
    script = SCRIPTS / "renewing.mjs"
    node = asyncio.to_thread(
        run_node, script, CONNECTION=server.service_bus, NAMES=json.dumps(names)
    )
    counts = asyncio.gather(*(_hold(server, queue, sessions, kind) for kind in KINDS))
    assert json.loads(await node) == [0, 0]
    assert await counts == [[0, 0]] * len(KINDS)
    assert [owner.queue(one).active_count for one in (queue, sessions)] == [0, 0]


async def _hold(server: Served, queue: str, sessions: str, kind: Kind) -> list[int]:
    """Hold a message and a session; return how often each message was delivered before."""
    renewer: Any = AutoLockRenewer() if kind == "sync" else AsyncAutoLockRenewer()
    async with (
        official(kind, server.service_bus) as client,
        client.get_queue_receiver(queue) as receiver,
        client.get_queue_receiver(sessions, session_id=kind) as of_session,
    ):
        message, in_session = await asyncio.gather(get_one(receiver), get_one(of_session))
        until = message.locked_until_utc
        for link, one in ((receiver, message), (of_session, of_session.session)):
            # What is given to the plain one is its own, not what awaits it.
            given = [getattr(each, "_plain", each) for each in (link, one)]
            renewer.register(*given, max_lock_renewal_duration=60)
        await asyncio.sleep(_HELD_MS / 1_000)
        assert message.locked_until_utc > until + timedelta(seconds=1)
        await receiver.complete_message(message)
        await of_session.complete_message(in_session)
        closed = renewer.close()
        if closed is not None:
            await closed
        return [message.delivery_count, in_session.delivery_count]
