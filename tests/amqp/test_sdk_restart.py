"""JavaScript over a server that is killed and started again, and clients of two languages at once.

Those of Python over a kill: tests/amqp/sdk/test_restarts.py.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from onibus.client import Client
from tests.amqp.sdk_helpers import SCRIPTS, Name
from tests.bus_helpers import run
from tests.node import run_node, running_node
from tests.server.processes import Served, served

_COUNT = 60


@pytest.mark.promise("B8", "D5", "S3")
def test_javascript_clients_go_on_over_a_kill(tmp_path: Path) -> None:
    """Its sender and its streaming receiver find the server again by themselves."""
    data, wanted = tmp_path / "data", [f"m-{number}" for number in range(_COUNT)]
    with served("--data", data) as first:
        port = first.ready["amqp"].rpartition(":")[2]
        with Client.connect(first.ready["development"]) as owner:
            owner.create_queue("q", requires_duplicate_detection=True)
        names = json.dumps({"queue": "q", "count": _COUNT})
        with running_node(
            SCRIPTS / "over_a_kill.mjs", CONNECTION=first.service_bus, NAMES=names
        ) as node:
            assert node.stdout is not None
            assert node.stdout.readline() == "half\n"
            first.process.kill()
            first.process.wait()
            with served("--data", data, "--amqp-port", port) as second:
                out, err = node.communicate()
                assert node.returncode == 0, err
                told = json.loads(out)
                with Client.connect(second.ready["development"]) as owner:
                    # Locks of a server that was killed have ended: what is left is there to take.
                    left = owner.receiver("q", delete=True).receive(_COUNT)
    assert sorted(told["received"]) == sorted(wanted)
    assert told["again"] == []
    # What is left came before the kill, and its completion did not.
    assert {str(one.message_id) for one in left}.isdisjoint(told["completed"])


@pytest.mark.promise("B1", "B4", "D1")
@pytest.mark.usefixtures("node")
@run
async def test_clients_of_two_languages_share_a_queue_and_a_session(
    server: Served, owner: Client, name: Name
) -> None:
    queue, sessions = name("shared"), name("shared")
    owner.create_queue(queue, requires_duplicate_detection=True)
    owner.create_queue(sessions, requires_session=True)
    names = json.dumps({"queue": queue, "sessions": sessions})
    async with ServiceBusClient.from_connection_string(server.service_bus) as client:
        async with client.get_queue_sender(queue) as sender:
            batch = [ServiceBusMessage(json.dumps(n), message_id=f"m-{n}") for n in range(40)]
            await sender.send_messages(batch)
        async with client.get_queue_sender(sessions) as sender:
            await sender.send_messages(ServiceBusMessage("1", session_id="s"))
        async with client.get_queue_receiver(queue) as receiver:
            ours = await receiver.receive_messages(5, max_wait_time=5)
            said = await asyncio.to_thread(
                run_node, SCRIPTS / "shared.mjs", CONNECTION=server.service_bus, NAMES=names
            )
            for message in ours:
                await receiver.complete_message(message)
        found = [str(message.message_id) for message in ours]
        theirs = json.loads(said.splitlines()[-1])
        assert found, "this client got none"
        assert theirs["settled"], "the other client got none"
        # Each message was completed by one of the two; what the other sent again was dropped.
        assert sorted(found + theirs["settled"]) == sorted(f"m-{n}" for n in range(40))
        assert len(owner.duplicates(queue)) == 40
        async with client.get_queue_receiver(sessions, session_id="s") as receiver:
            assert await receiver.session.get_state() == b"seen by another language"
            [message] = await receiver.receive_messages(1, max_wait_time=5)
            assert json.loads(str(message)) == "from JavaScript"
            await receiver.complete_message(message)
