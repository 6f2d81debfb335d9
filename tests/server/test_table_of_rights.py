"""The table of rights in docs/security.md: every row holds, for every caller, in every protocol."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import httpx
import pytest

from onibus import Bus
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.service_bus import client as links
from onibus.protocols.atom import paths
from onibus.security.keys import AccessKey, Keyring
from onibus.security.rights import Right
from onibus.security.sas import as_bearer, make_token
from onibus.server.server import Server
from tests.amqp.peer import Peer
from tests.amqp.raw_client import attach
from tests.bus_helpers import PATIENCE_S, run
from tests.server.server_helpers import SECRET
from tests.server.test_rights import path_of
from tests.sqs.signing import json_request, send
from tests.sqs.test_rights import GIVEN
from tools import rights
from tools.rights import AMQP, ATOM, HOLDERS, NATIVE, NOTHING, SQS, Row

#: A key for each right alone, called like it.
KEYS = [AccessKey(name=right.value, primary=SECRET, rights=frozenset([right])) for right in Right]
ROWS = list(rights.rows())
DAY_S = 86_400


def shown(holder: str) -> str:
    return make_token("sb://localhost/", holder, SECRET, int(time.time()) + DAY_S)


def headers(holder: str) -> dict[str, str]:
    return {} if holder == NOTHING else {"authorization": shown(holder)}


def rows_of(protocol: str) -> Any:
    chosen = [row for row in ROWS if row.protocol == protocol]
    return pytest.mark.parametrize("row", chosen, ids=[row.request for row in chosen])


def test_the_table_is_up_to_date() -> None:
    page = rights.PAGE.read_text("utf-8")
    assert page == rights.written(page), "the table in docs/security.md is stale: make docs"


def test_everything_that_can_be_asked_is_in_it() -> None:
    assert {row.protocol for row in ROWS} == {NATIVE, ATOM, SQS, AMQP}
    assert len({(row.protocol, row.request) for row in ROWS}) == len(ROWS)
    # Requests that need nothing say nothing of entities and messages; a ticket needs a right.
    assert {row.request for row in ROWS if NOTHING in row.enough} == {
        *("GET /livez", "GET /readyz", "GET /health", "GET /openapi.json"),
        *("GET /console", "GET /console/", "GET /console/about.json", "GET /console/{file}"),
        "GET /console/reports/{ticket}",
        links.TOKENS,
    }
    assert all("Manage" in row.enough for row in ROWS)
    only = {row.request for row in ROWS if "Monitor" in row.enough and NOTHING not in row.enough}
    assert only == {
        *("GET /metrics", "GET /metrics/per-object", links.COORDINATOR),
        *("GET /v1/overview", "POST /v1/overview/watch", "GET /v1/rights"),
        "GET /v1/readers",
    }


async def holds(row: Row, refused: Callable[[str], Awaitable[bool]]) -> None:
    """Ask as every caller: those with the right are not refused, and all others are."""
    for holder in HOLDERS:
        assert await refused(holder) is (holder not in row.enough), holder


@run
@rows_of(NATIVE)
async def test_the_native_api(row: Row) -> None:
    route = row.source
    async with Server(await Bus.ephemeral(), Keyring(KEYS), http_port=0, test_mode=True) as server:
        await server.bus.create_queue("orders")
        address = f"http://127.0.0.1:{server.http_port}"
        async with httpx.AsyncClient(
            base_url=address, trust_env=False, timeout=PATIENCE_S
        ) as client:

            async def refused(holder: str) -> bool:
                body = b""
                if route.names_entities_inside:
                    body = SETTLES if holder == "Listen" else SENDS
                sent = {"content-type": "application/json", **headers(holder)}

                async def status() -> int:
                    # Some responses are streams without an end.
                    async with client.stream(
                        route.method, path_of(route), content=body, headers=sent
                    ) as answer:
                        return answer.status_code

                found = await status()
                assert found < 500
                if holder != NOTHING:
                    # The same token in its other form allows the same.
                    sent["authorization"] = f"Bearer {as_bearer(sent['authorization'])}"
                    assert (await status() == 403) is (found == 403)
                expected = 401 if holder == NOTHING else 403
                assert found not in {401, 403} - {expected}
                return found == expected

            await holds(row, refused)


SENDS = json.dumps({"sends": [{"entity": "orders", "messages": [{"body": "x"}]}]}).encode()
SETTLES = json.dumps({"settlements": [{"entity": "orders", "tokens": ["0" * 32]}]}).encode()


@run
@rows_of(ATOM)
async def test_management(row: Row) -> None:
    method, kind = row.source
    names = {"entity": "t", "topic": "t", "subscription": "s", "rule": "r"}
    path = rights.PATHS[kind].format(**names, id="1", token=UUID(int=1))
    async with Server(await Bus.ephemeral(), Keyring(KEYS), http_port=0) as server:
        await server.bus.create_topic("t")
        await server.bus.create_subscription("t", "s")
        assert paths.place_of(path, method).kind == kind
        address = f"http://127.0.0.1:{server.http_port}"
        query = {"api-version": "2021-05"}
        async with httpx.AsyncClient(
            base_url=address, trust_env=False, params=query, timeout=PATIENCE_S
        ) as client:

            async def refused(holder: str) -> bool:
                answer = await client.request(method, path, headers=headers(holder))
                assert answer.status_code < 500
                return answer.status_code == 401

            await holds(row, refused)


@run
@rows_of(SQS)
async def test_sqs(row: Row) -> None:
    async with Server(await Bus.ephemeral(), Keyring(KEYS), http_port=0, sqs_port=0) as server:
        await server.bus.create_queue("mine")
        endpoint = f"http://127.0.0.1:{server.sqs_port}"
        given = {"QueueUrl": f"{endpoint}/000000000000/mine"} | GIVEN.get(row.source, {})
        body = json.dumps(given)

        async def refused(holder: str) -> bool:
            key = {"key": holder, "secret": SECRET}
            request = json_request(endpoint, row.source, body, **key)
            if holder == NOTHING:
                del request.headers["Authorization"]
            answer = await asyncio.to_thread(send, request)
            assert answer.status_code < 500
            return answer.status_code == 403

        await holds(row, refused)


async def peer_of(bus: Bus, holder: str) -> Peer:
    """Return a connection on which one token was put, or none."""
    peer = Peer(bus, Keyring(KEYS))
    peer.greet()
    peer.heard()
    if holder != NOTHING:
        peer.client.put_token("", shown(holder))
    return peer


def unauthorized(peer: Peer) -> bool:
    """Return whether the last link was refused for want of a right."""
    said = peer.heard()
    assert any(one.code == say.ATTACH for one in said)
    ended = [one.condition for one in said if one.code == say.DETACH]
    assert set(ended) <= {"amqp:unauthorized-access"}
    return bool(ended)


COORDINATOR = attach(0, say.SENDER, "me", "", terminus=say.performative(say.COORDINATOR, []))
LINKS = {
    links.TOKENS: attach(0, say.SENDER, "me", "$cbs"),
    links.COORDINATOR: COORDINATOR,
    links.REQUESTS: attach(0, say.SENDER, "me", "q/$management"),
    links.SENDER: attach(0, say.SENDER, "me", "q"),
    links.RECEIVER: attach(0, say.RECEIVER, "q", "me"),
}


@run
@rows_of(AMQP)
async def test_amqp(row: Row) -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")

        async def link_refused(holder: str) -> bool:
            peer = await peer_of(bus, holder)
            peer.say(LINKS[row.source])
            return unauthorized(peer)

        async def request_refused(holder: str) -> bool:
            peer = await peer_of(bus, holder)
            peer.attach(100, say.RECEIVER, "q/$management")
            if unauthorized(peer):
                return True
            peer.open_requests("q/$management", 200)
            status, _ = await peer.request(row.source.removeprefix("com.microsoft:"), {}, 200)
            assert status < 500
            return status == 401

        await holds(row, link_refused if row.source in LINKS else request_refused)
