"""Keys over HTTP: made, rotated, deleted, kept over restarts, and never told again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from onibus import Bus
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import AccessKey, Keyring
from onibus.security.rights import Right
from onibus.server.connection_strings import ConnectionFile
from tests.bus_helpers import run
from tests.server.server_helpers import ROOT, SECRET, developing, serving, signed

SENDER = {"name": "sender", "rights": ["Send"], "entity": "Orders"}


async def made(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/v1/keys", json=SENDER | fields, headers=signed())
    assert answer.status_code == 201, answer.text
    key: dict[str, Any] = answer.json()
    return key


async def sends(client: httpx.AsyncClient, key: dict[str, Any], which: str = "primary") -> int:
    headers = signed("sb://h/orders", key["name"], key[which])
    return (await client.post("/v1/entities/orders/messages", json={}, headers=headers)).status_code


@run
async def test_a_key_is_made_used_rotated_and_deleted() -> None:
    async with serving(ROOT) as (server, client):
        await server.bus.create_queue("orders")
        await server.bus.create_queue("orders/eu")
        key = await made(client)
        assert (key["name"], key["entity"], key["rights"]) == ("sender", "orders", ["Send"])
        assert await sends(client, key) == 200
        assert await sends(client, key, "secondary") == 200
        # It allows nothing else, and nothing elsewhere.
        headers = signed("sb://h/orders", "sender", key["primary"])
        for method, path in (
            ("POST", "/v1/entities/orders/receive"),
            ("GET", "/v1/queues/orders"),
            ("GET", "/v1/keys"),
            ("POST", "/v1/entities/orders%2Feu/messages"),
        ):
            answer = await client.request(method, path, json={}, headers=headers)
            assert answer.status_code == 403, path
        # One key is replaced: its tokens are good no more, at once; the other's still are.
        answer = await client.post(
            "/v1/keys/sender/rotate",
            json={"entity": "orders", "which": "primary"},
            headers=signed(),
        )
        renewed = answer.json()
        assert renewed["primary"] != key["primary"]
        assert renewed["secondary"] == key["secondary"]
        assert await sends(client, key) == 401
        assert await sends(client, key, "secondary") == 200
        assert await sends(client, renewed) == 200
        answer = await client.delete("/v1/keys/sender?entity=orders", headers=signed())
        assert answer.status_code == 204
        assert await sends(client, renewed) == 401
        answer = await client.delete("/v1/keys/sender?entity=orders", headers=signed())
        assert (answer.status_code, answer.json()["type"]) == (404, "key-not-found")


@run
async def test_secrets_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with serving(ROOT) as (server, client):
            await server.bus.create_queue("orders")
            key = await made(client)
            listed = await client.get("/v1/keys", headers=signed())
            assert listed.json() == {
                "keys": [
                    {
                        "name": "RootManageSharedAccessKey",
                        "entity": "",
                        "rights": ["Send", "Listen", "Manage"],
                        "configured": True,
                    },
                    {"name": "sender", "entity": "orders", "rights": ["Send"], "configured": False},
                ]
            }
            again = await client.post("/v1/keys", json=SENDER, headers=signed())
            assert (again.status_code, again.json()["type"]) == (409, "key-exists")
            wrong = await client.get("/v1/keys", headers={"authorization": f"x {SECRET}"})
            for secret in (key["primary"], key["secondary"], SECRET):
                for text in (listed.text, again.text, wrong.text, caplog.text, repr(server.app)):
                    assert secret not in text


@run
async def test_what_cannot_be_done_with_keys() -> None:
    async with serving(ROOT) as (server, client):
        await server.bus.create_queue("orders")

        async def refused(method: str, path: str, body: Any, status: int) -> str:
            answer = await client.request(method, path, json=body, headers=signed())
            assert answer.status_code == status, answer.text
            return str(answer.json()["detail"])

        root = "/v1/keys/RootManageSharedAccessKey"
        assert "in the configuration" in await refused("POST", f"{root}/rotate", {}, 400)
        assert "in the configuration" in await refused("DELETE", root, None, 400)
        assert "Send" in await refused("POST", "/v1/keys", {"name": "x", "rights": []}, 400)
        assert "rights" in await refused("POST", "/v1/keys", {"name": "x"}, 400)
        assert "name" in await refused("POST", "/v1/keys", SENDER | {"name": "a b"}, 400)
        assert "'nowhere'" in await refused("POST", "/v1/keys", SENDER | {"entity": "nowhere"}, 404)
        await made(client)
        wrong = {"entity": "orders", "which": "third"}
        assert "secondary" in await refused("POST", "/v1/keys/sender/rotate", wrong, 400)
        # A name belongs to an entity: there is none for the namespace.
        assert "no key" in await refused("POST", "/v1/keys/sender/rotate", {}, 404)


@run
async def test_an_entitys_manager_makes_no_keys() -> None:
    async with serving(ROOT) as (server, client):
        await server.bus.create_queue("orders")
        key = await made(client, rights=["Manage"])
        for resource in ("sb://h/orders", "sb://h/"):
            headers = signed(resource, "sender", key["primary"])
            wanted = {"name": "mine", "rights": ["Manage"]}
            answer = await client.post("/v1/keys", json=wanted, headers=headers)
            assert answer.status_code in (401, 403)


@run
async def test_keys_are_kept_over_restarts_and_go_with_their_entity(tmp_path: Path) -> None:
    async with Bus.open(tmp_path) as bus:
        keys = KeptKeys(bus, Keyring())
        await keys.make_root()
        await keys.make_root()
        assert keys.root is not None
        root = keys.root
        await bus.create_queue("orders")
        await keys.create(
            AccessKey(name="in", primary="", entity="orders", rights=frozenset([Right.SEND]))
        )
    async with Bus.open(tmp_path) as bus:
        keys = KeptKeys(bus, Keyring())
        assert [key.name for key, _ in keys.list()] == [root.name, "in"]
        assert keys.root == root
        await bus.delete_queue("orders")
        # Who makes a queue of that name again does not let in those who had keys of the first.
        await bus.create_queue("orders")
        assert [key.name for key, _ in keys.list()] == [root.name]
    async with Bus.open(tmp_path) as bus:
        assert [key for key, _ in KeptKeys(bus, Keyring()).list()] == [root]


@run
async def test_a_configured_key_wins_over_a_kept_one(tmp_path: Path) -> None:
    async with Bus.open(tmp_path) as bus:
        await KeptKeys(bus, Keyring()).make_root()
        async with serving(ROOT, bus=bus) as (_, client):
            assert (await client.get("/v1/keys", headers=signed())).status_code == 200


@run
async def test_a_configured_key_ends_development() -> None:
    async with serving(development=True) as (_, client):
        assert (await client.get("/v1/keys", headers=developing())).status_code == 200
    async with serving(ROOT, development=True) as (_, client):
        assert (await client.get("/v1/keys", headers=signed())).status_code == 200
        answer = await client.get("/v1/keys", headers=developing())
        assert (answer.status_code, "--development" in answer.json()["detail"]) == (401, True)


@run
async def test_the_connection_file_follows_the_key(tmp_path: Path) -> None:
    async with Bus.ephemeral() as bus:
        keys = KeptKeys(bus, Keyring())
        await keys.make_root()
        path = tmp_path / "connection-string"
        ConnectionFile(path, keys, "::1", 5300, tls=False)
        assert keys.root is not None
        first = path.read_text()
        assert first == (
            "Endpoint=sb://[::1]:5300;SharedAccessKeyName=RootManageSharedAccessKey;"
            f"SharedAccessKey={keys.root.primary};UseDevelopmentEmulator=true;\n"
        )
        assert path.stat().st_mode & 0o777 == 0o600
        await keys.rotate("", "RootManageSharedAccessKey", "primary")
        assert keys.root.primary in path.read_text()
        assert path.read_text() != first
        await keys.delete("", "RootManageSharedAccessKey")
        assert not path.exists()
