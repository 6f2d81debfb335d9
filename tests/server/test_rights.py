"""Every right on every route; tokens that are expired, altered, foreign, or for something else."""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from onibus.protocols.http.limits import Limits
from onibus.protocols.http.route import Route
from onibus.protocols.http.routes import routes
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME, AccessKey, Keyring
from onibus.security.rights import Right
from onibus.security.sas import make_token
from tests.bus_helpers import run
from tests.server.http_helpers import KEYS, Client, serving, token

NAMESPACE = "sb://localhost/"
#: Made when tests are collected: good for as long as all of them take.
DAY_S = 86_400
OWNER = token(NAMESPACE, "owner", "manage-key", seconds=DAY_S)
SENDER = token(NAMESPACE, "sender", "send-key", seconds=DAY_S)
LISTENER = token(NAMESPACE, "listener", "listen-key", seconds=DAY_S)
WATCHER = token(NAMESPACE, "watcher", "monitor-key", seconds=DAY_S)
HOLDERS = {"Send": SENDER, "Listen": LISTENER, "Manage": OWNER, "Monitor": WATCHER}

#: Which right each call needs, written down once more by hand: a route that changes its mind, and
#: a new route, have to be looked at here.
SEND = """
    POST /messages  POST /batch  POST /schedule  POST /cancel-scheduled
    GET /staged  POST /staged  POST /staged/publish  POST /staged/discard
    GET /producers  DELETE /producers/{producer}
"""
LISTEN = """
    POST /receive  POST /receive-deferred  POST /fifo/receive  POST /fifo/visibility
    POST /complete  POST /abandon  POST /defer  POST /dead-letter  POST /renew
    GET /sessions  POST /sessions/accept  POST /sessions/receive  POST /sessions/receive-deferred
    POST /sessions/renew  POST /sessions/get-state  POST /sessions/set-state  POST /sessions/close
    POST /peek  POST /search  POST /tail  POST /undefer  GET /duplicates  GET /dead-letters/reasons
    GET /history  GET /partitions  GET /summary  POST /watch  GET /groups  POST /inspect
    GET /messages/{number}/body
    GET /receivers  POST /readers/{reader}/report  POST /readers/{reader}/page
    GET /log  GET /log/messages/{partition}  GET /log/outcomes/{partition}
    GET /log/messages/{partition}/reach
    POST /log/plan  GET /log/messages  GET /log/outcomes
    GET /readers  PUT /readers/{reader}  POST /readers/{reader}/move  DELETE /readers/{reader}
    POST /readers/{reader}/take
    GET /claims  POST /claims  POST /claims/{reader}  POST /claims/{reader}/{number}/read
    POST /claims/{reader}/{number}/commit  POST /claims/{reader}/{number}/release
"""


def calls_in(text: str) -> set[tuple[str, str]]:
    found = re.findall(r"(GET|PUT|POST|DELETE) (\S+)", text)
    return {(method, "/v1/entities/{entity}" + path) for method, path in found}


def wanted_right(route: Route) -> Right:
    key = (route.method, route.path)
    if route.path in MONITOR:
        return Right.MONITOR
    if key in calls_in(SEND):
        return Right.SEND
    return Right.LISTEN if key in calls_in(LISTEN) else Right.MANAGE


PUBLIC = {"/openapi.json", "/livez", "/readyz", "/health"} | {
    "/console/",
    "/console",
    "/console/about.json",
    "/console/{file}",
    "/console/reports/{ticket}",
}
MONITOR = {"/metrics", "/metrics/per-object", "/v1/overview", "/v1/overview/watch"} | {
    "/v1/readers"
}
#: Asks for rights on the entities that its body names, or shows the rights themselves; see below.
INSIDE = {"/v1/transactions", "/v1/rights"}


def path_of(route: Route, entity: str = "orders") -> str:
    values = {"entity": quote(entity, safe=""), "partition": "0", "number": "1", "reader": "r"}
    values["file"] = "app.js"
    return re.sub(r"{(\w+)}", lambda name: values.get(name[1], "x"), route.path)


async def ask(client: Client, route: Route, headers: Any, entity: str = "orders") -> httpx.Response:
    """Ask with an empty body: what is let through is then refused for another reason, or done."""
    return await client.http.request(
        route.method, path_of(route, entity), content=b"", headers=headers
    )


def keyring(*more: AccessKey) -> Keyring:
    return Keyring([*KEYS, *more])


@run
async def test_each_right_opens_exactly_its_routes() -> None:
    async with serving(keys=keyring()) as client:
        for route in routes():
            if route.path in PUBLIC | INSIDE or route.path == "/v1/test/reset":
                continue
            needed = wanted_right(route)
            assert route.right is needed, f"{route.method} {route.path}"
            for holder, headers in HOLDERS.items():
                response = await ask(client, route, headers)
                allowed = holder in (needed.value, "Manage")
                got = response.status_code
                assert (got not in (401, 403)) == allowed, (holder, route.method, route.path, got)
                assert got < 500
                if not allowed:
                    assert response.json()["type"] == "forbidden"


@run
async def test_nobody_gets_anything_without_credentials() -> None:
    async with serving(keys=keyring(), limits=Limits(failures_max=10_000)) as client:
        for route in routes():
            for headers in ({}, {"authorization": "Bearer x"}, {"authorization": ""}):
                response = await ask(client, route, headers)
                if route.path in PUBLIC:
                    # A ticket that no key asked for opens nothing.
                    assert response.status_code in (200, 302, 404)
                    assert (response.status_code == 404) == ("{ticket}" in route.path)
                else:
                    assert response.status_code == 401, route.path
                    assert response.headers["www-authenticate"] == "SharedAccessSignature"


def test_lists_of_rights_name_real_routes() -> None:
    known = {(route.method, route.path) for route in routes()}
    assert calls_in(SEND) | calls_in(LISTEN) <= known


@run
async def test_test_mode_is_not_there_unless_asked_for() -> None:
    async with serving(keys=keyring(), test_mode=False) as client:
        for path in ("/test/reset", "/test/clock"):
            response = await client.ask("POST", path, {}, headers=OWNER)
            assert (response.status_code, response.json()["type"]) == (404, "no-such-path")
        document = (await client.http.get("/openapi.json")).json()
        assert not [path for path in document["paths"] if "/test/" in path]


# Tokens


@run
async def test_only_good_tokens_are_let_in() -> None:
    good = token(NAMESPACE, "owner", "manage-key")["authorization"]
    expiry = re.search(r"se=(\d+)", good)
    assert expiry
    later = good.replace(expiry[0], f"se={int(expiry[1]) + 1}")
    bad = {
        "expired": make_token(NAMESPACE, "owner", "manage-key", int(time.time()) - 1),
        "made longer": later,
        "for another resource": good.replace("localhost", "elsewhere"),
        "of a foreign key": make_token(NAMESPACE, "owner", "foreign", int(time.time()) + 60),
        "under another name": good.replace("skn=owner", "skn=sender"),
        "under no name": good.replace("skn=owner", "skn=nobody"),
        "without a name": good.replace("&skn=owner", ""),
        "with two expiries": f"{good}&se=99999999999",
        "with a strange expiry": good.replace(expiry[0], "se=٣"),
        "cut": good[:-20].replace("&skn", ""),
        "without its word": good.replace("SharedAccessSignature ", ""),
        "huge": good + "&x=" + "y" * 5_000,
        "the development key": make_token(
            NAMESPACE, ROOT_NAME, DEVELOPMENT_KEY, int(time.time()) + 60
        ),
    }
    async with serving(keys=keyring()) as client:
        for credentials in (good, token(NAMESPACE, "owner", "manage-key-2")["authorization"]):
            response = await client.ask("GET", "/queues", headers={"authorization": credentials})
            assert response.status_code == 200
        for what, credentials in bad.items():
            headers = {b"authorization": credentials.encode()}
            response = await client.http.get("/v1/queues", headers=headers)
            assert response.status_code == 401, what
            for secret in ("manage-key", "send-key", DEVELOPMENT_KEY):
                assert secret not in response.text


@run
async def test_a_token_that_was_good_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    async with serving(keys=keyring()) as client:
        headers = token(NAMESPACE, "owner", "manage-key", seconds=600)
        for passed, status in ((0, 200), (599, 200), (1, 401), (1, 401)):
            now += passed
            response = await client.ask("GET", "/queues", headers=headers)
            assert response.status_code == status


@run
async def test_the_development_key_is_let_in_where_the_operator_wants_it() -> None:
    async with serving(keys=Keyring([], development=True)) as client:
        headers = token(NAMESPACE, ROOT_NAME, DEVELOPMENT_KEY)
        assert (await client.ask("GET", "/queues", headers=headers)).status_code == 200


@run
@pytest.mark.parametrize(
    ("resource", "entity", "allowed"),
    [
        ("sb://localhost/orders", "orders", True),
        ("sb://localhost/orders/", "orders", True),
        ("sb://elsewhere:5671/ORDERS", "orders", True),
        ("sb://localhost/orders", "ORDERS", True),
        ("https://localhost/orders/subscriptions/s", "orders/subscriptions/s", True),
        ("sb://localhost/orders", "orders/subscriptions/s", True),
        ("localhost/orders", "orders", True),
        ("sb://localhost/order", "orders", False),
        ("sb://localhost/orders2", "orders", False),
        ("sb://localhost/orders/subscriptions/s", "orders", False),
        ("sb://localhost/orders/subscriptions/s", "orders/subscriptions/s2", False),
        ("sb://localhost/orders/../secrets", "secrets", False),
        ("sb://localhost/orders", "orders/../secrets", True),
        ("sb://localhost/orders%2F..%2Fsecrets", "secrets", False),
        ("sb://localhost/orders", "orders ", False),
        ("sb://localhost/orders", "", False),
        ("sb://localhost/secrets", "orders", False),
    ],
)
async def test_a_token_is_for_what_it_names_and_nothing_beside(
    resource: str, entity: str, allowed: bool
) -> None:
    async with serving(keys=keyring()) as client:
        headers = token(resource, "owner", "manage-key")
        path = f"/v1/entities/{quote(entity, safe='')}/peek"
        response = await client.http.post(path, json={}, headers=headers)
        # What is allowed is not found: there are no entities.
        assert (response.status_code == 404) == (allowed or not entity)
        assert (await client.ask("GET", "/queues", headers=headers)).status_code == 403


@run
async def test_a_key_of_one_entity_opens_no_other() -> None:
    own = AccessKey(name="own", primary="own-key", entity="orders")
    async with serving(keys=keyring(own)) as client:
        for name in ("orders", "secrets"):
            await client.do("PUT", f"/queues/{name}", {}, headers=OWNER)
        good = token("sb://localhost/orders", "own", "own-key")
        assert (await client.ask("GET", "/queues/orders", headers=good)).status_code == 200
        assert (await client.ask("GET", "/queues/secrets", headers=good)).status_code == 403
        for resource in (NAMESPACE, "sb://localhost/secrets", "sb://localhost/orders2"):
            tried = token(resource, "own", "own-key")
            response = await client.ask("GET", "/queues/secrets", headers=tried)
            assert response.status_code == 401


# Entities that are named elsewhere than in the path


@run
async def test_what_a_body_names_needs_its_rights_too() -> None:
    async with serving(keys=keyring()) as client:
        for name in ("orders", "secrets"):
            await client.do("PUT", f"/queues/{name}", {"retention_ms": 60_000}, headers=OWNER)
        mine = token("sb://localhost/orders", "owner", "manage-key")
        for method, path, body in (
            ("POST", "/entities/orders/dead-letters/resubmit", {"where": {}, "to": "secrets"}),
            ("POST", "/entities/orders/log/replay", {"start": 1, "to": "secrets"}),
            ("PATCH", "/queues/orders", {"forward_to": "secrets"}),
            ("PATCH", "/queues/orders", {"forward_dead_letters_to": "Secrets"}),
            ("POST", "/transactions", {"sends": [{"entity": "secrets", "messages": [{}]}]}),
            (
                "POST",
                "/transactions",
                {"settlements": [{"entity": "SECRETS", "tokens": ["0" * 32]}]},
            ),
        ):
            response = await client.ask(method, path, body, headers=mine)
            assert response.status_code == 403, (path, response.text)
            response = await client.ask(method, path, body, headers=OWNER)
            assert response.status_code != 403, (path, response.text)


@run
async def test_a_transaction_needs_send_and_listen_where_it_sends_and_settles() -> None:
    async with serving(keys=keyring()) as client:
        await client.do("PUT", "/queues/orders", {}, headers=OWNER)
        send = {"sends": [{"entity": "orders", "messages": [{"body": "x"}]}]}
        settle = {"settlements": [{"entity": "orders", "tokens": ["0" * 32]}]}
        for headers, sends, settles in (
            (SENDER, 200, 403),
            (LISTENER, 403, 410),
            (OWNER, 200, 410),
        ):
            response = await client.ask("POST", "/transactions", send, headers=headers)
            assert response.status_code == sends
            response = await client.ask("POST", "/transactions", settle, headers=headers)
            assert response.status_code == settles


@run
async def test_large_bodies_are_not_read_from_strangers() -> None:
    async with serving(keys=keyring()) as client:
        raw = await client.raw()
        head = "POST /v1/entities/q/batch HTTP/1.1\r\nhost: localhost\r\n"
        await raw.write(f"{head}content-length: 9000000\r\n\r\n".encode())
        assert (await raw.answer())[0] == 401
        assert await raw.ended()
        raw = await client.raw()
        await raw.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        await raw.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        await raw.write((b"10000\r\n" + b"x" * 65_536 + b"\r\n") * 4)
        assert (await raw.answer())[0] == 401
        assert await raw.ended()
        raw = await client.raw()
        shown = f"authorization: {LISTENER['authorization']}"
        await raw.write(f"{head}content-length: 9000000\r\n{shown}\r\n\r\n".encode())
        assert (await raw.answer())[0] == 403
