"""Development: which servers accept the well-known key, and what ends that permanently."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from onibus import Bus
from onibus.core.errors import InvalidOperation
from onibus.directory.key_rows import PREFIX
from onibus.protocols.amqp import performatives as say
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME, AccessKey, Keyring
from onibus.security.rights import Right
from onibus.security.sas import make_token
from onibus.server.config import load
from onibus.server.exposure import wants_development
from onibus.server.server import Server
from tests.amqp.raw_client import RawClient
from tests.bus_helpers import run
from tests.server.processes import OWN_KEY_ONLY, PATIENCE_S, Served, served
from tests.server.server_helpers import SECRET, developing, signed
from tests.server.test_serve import secret_of, status
from tests.source_tree import ROOT
from tests.sqs.signing import json_request, send

CONFIG_JSON = '{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": []}]}}'


# Which servers accept it


@pytest.mark.parametrize(
    ("file", "flags", "accepted"),
    [
        ("", {}, False),
        ("", {"development": True}, True),
        ("development = true", {}, True),
        ("development = true", {"development": False}, False),
        ("", {"ephemeral": True}, True),
        ("", {"ephemeral": True, "development": False}, False),
        ("", {"ephemeral": True, "host": "0.0.0.0"}, False),
        (CONFIG_JSON, {}, True),
        (CONFIG_JSON, {"host": "::1"}, True),
        (CONFIG_JSON, {"host": "0.0.0.0"}, False),
        (CONFIG_JSON, {"host": "0.0.0.0", "development": True}, True),
        (CONFIG_JSON, {"development": False}, False),
        (f'[[keys]]\nname = "a"\nprimary = "{SECRET}"', {"development": True}, False),
        (f'[[keys]]\nname = "a"\nprimary = "{SECRET}"', {"ephemeral": True}, False),
        ("", {"insecure": True, "development": True}, False),
    ],
)
def test_who_asks_for_it(tmp_path: Path, file: str, flags: dict[str, Any], accepted: bool) -> None:
    path = tmp_path / ("Config.json" if file.startswith("{") else "onibus.toml")
    path.write_text(file)
    assert wants_development(load(str(path), {}, flags)) is accepted


def test_make_run_is_development() -> None:
    assert wants_development(load(str(ROOT / "examples/onibus.toml")))
    assert "onibus up --config examples/onibus.toml" in (ROOT / "Makefile").read_text()


def test_a_server_alone_accepts_only_its_own_key(tmp_path: Path) -> None:
    with served("--data", tmp_path / "data", **OWN_KEY_ONLY) as server:
        own = secret_of(server.ready["connection_file"])
        assert (server.ready["development"], server.ready["service_bus"]) == ("", "")
        assert status(server, signed(key=own)) == 200
        assert status(server, developing()) == 401
        assert sqs_status(server.ready["sqs"]) == 403
        assert amqp_status(server) == 401
        # A page cannot know the server's own key, so pages and hosts are not checked.
        assert status(server, signed(key=own) | {"origin": "https://elsewhere.example"}) == 200
        assert status(server, signed(key=own) | {"host": "elsewhere.example"}) == 200
        _, _, told = server.stop()
    assert f"use the connection string in {server.ready['connection_file']}, or start" in told
    assert "--development" in told
    with served("--data", tmp_path / "data", "--development") as server:
        assert status(server, developing()) == status(server, signed(key=own)) == 200
        assert status(server, signed(key="x" * 40)) == status(server, {}) == 401
        assert sqs_status(server.ready["sqs"]) == 200
        assert amqp_status(server) == 202


def sqs_status(endpoint: str) -> int:
    """Return the status that an SQS client gets that signs with test/test."""
    return send(json_request(endpoint, "ListQueues", "{}")).status_code


def amqp_status(server: Served) -> int:
    """Return the status that an AMQP client gets for a token of the well-known key."""
    with RawClient(int(server.ready["amqp"].rpartition(":")[2])) as client:
        client.open()
        client.begin()
        return client.put_token("sb://x/", make_token("sb://x/", ROOT_NAME, DEVELOPMENT_KEY, 2**40))


def test_in_a_container_hosts_are_named(tmp_path: Path) -> None:
    flags = ("--ephemeral", "--host", "0.0.0.0", "--allow-plain-text", "--development")
    with served(*flags, "--allow-host", "bus", "--allow-host", "10.1.2.3") as server:
        server.http = f"http://127.0.0.1:{server.port}"
        for host, expected in (
            (f"bus:{server.port}", 200),
            ("10.1.2.3:80", 200),
            (f"localhost:{server.port}", 200),
            (f"0.0.0.0:{server.port}", 403),
            ("evil.example", 403),
        ):
            assert status(server, developing() | {"host": host}) == expected, host
        # Tools that watch ask by whatever address they have.
        with server.client() as client:
            for path in ("/health", "/livez", "/readyz"):
                answer = client.get(path, headers={"host": "172.17.0.2:5300"})
                assert answer.status_code == 200, path
        assert "well-known key accepted beyond loopback" in server.stop()[2]


def test_the_hosts_of_a_variable(tmp_path: Path) -> None:
    found = load(None, {"ONIBUS_ALLOW_HOST": "bus,10.1.2.3,::1"}).options.allow_host
    assert found == ("bus", "10.1.2.3", "::1")


# What ends it


async def everywhere(server: Server) -> dict[str, int]:
    """Return how the well-known key is received by each protocol; below 300 it is accepted."""
    address = f"http://127.0.0.1:{server.http_port}"
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=PATIENCE_S) as client:
        native = await client.get("/v1/queues", headers=developing())
        query = {"api-version": "2021-05"}
        atom = await client.get("/$Resources/queues", params=query, headers=developing())
    endpoint = f"http://127.0.0.1:{server.sqs_port}"
    return {
        "native": native.status_code,
        "management": atom.status_code,
        "SQS": await asyncio.to_thread(sqs_status, endpoint),
    }


def accepted(statuses: dict[str, int]) -> set[str]:
    return {name for name, one in statuses.items() if one < 300}


SENDS = frozenset([Right.SEND])
CHANGES: dict[str, Callable[[KeptKeys], Awaitable[object]]] = {
    "created": lambda keys: keys.create(AccessKey(name="in", primary="", rights=SENDS)),
    "rotated": lambda keys: keys.rotate("", ROOT_NAME, "secondary"),
    "deleted": lambda keys: keys.delete("", ROOT_NAME),
}


@run
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_of_keys_ends_it_at_once_and_after_restarts(
    tmp_path: Path, change: str
) -> None:
    async with Bus.open(tmp_path) as bus:
        keys = KeptKeys(bus, Keyring(development=True))
        await keys.make_root()
        async with Server(bus, keys, http_port=0, amqp_port=0, sqs_port=0) as server:
            assert accepted(await everywhere(server)) == {"native", "management", "SQS"}
            await CHANGES[change](keys)
            assert accepted(await everywhere(server)) == set()
    for _ in range(2):
        async with Bus.open(tmp_path) as bus:
            keys = KeptKeys(bus, Keyring(development=True))
            await keys.make_root()
            assert keys.keyring.development is False
            if change == "created" and len(keys.list()) > 1:
                # Deleting a key that leaked must not open the server to every page.
                await keys.delete("", "in")
                assert keys.keyring.development is False


@run
async def test_a_key_that_went_with_its_entity_ended_it_too(tmp_path: Path) -> None:
    async with Bus.open(tmp_path) as bus:
        keys = KeptKeys(bus, Keyring(development=True))
        await keys.make_root()
        await bus.create_queue("q")
        await keys.create(AccessKey(name="in", primary="", rights=SENDS, entity="q"))
        await bus.delete_queue("q")
        assert [key.name for key, _ in keys.list()] == [ROOT_NAME]
    async with Bus.open(tmp_path) as bus:
        assert KeptKeys(bus, Keyring(development=True)).keyring.development is False


@run
async def test_the_first_start_does_not_end_it(tmp_path: Path) -> None:
    for _ in range(2):
        async with Bus.open(tmp_path) as bus:
            keys = KeptKeys(bus, Keyring(development=True))
            await keys.make_root()
            assert keys.keyring.development is True


@run
async def test_keys_of_a_directory_that_was_written_before_end_it(tmp_path: Path) -> None:
    """Versions before wrote the key, and nothing that says who created it."""
    async with Bus.open(tmp_path) as bus:
        rows = bus.broker.namespace.keys
        row = AccessKey(name="in", primary=SECRET, rights=SENDS)
        content = json.dumps({"name": row.name, "primary": row.primary, "rights": ["Send"]})
        await bus.ask(
            lambda reply: bus.broker.namespace.keep_key(
                "", "in", content.encode(), reply, managed=False
            )
        )
        assert (rows.managed, list(rows.rows)) == (False, [("", "in")])
    assert PREFIX == "key/"
    async with Bus.open(tmp_path) as bus:
        assert KeptKeys(bus, Keyring(development=True)).keyring.development is False


@run
async def test_links_that_the_well_known_key_opened_are_detached() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        keys = KeptKeys(bus, Keyring(development=True))
        async with Server(bus, keys, http_port=0, amqp_port=0) as server:
            assert server.amqp_port is not None
            with await asyncio.to_thread(RawClient, server.amqp_port) as client:
                await asyncio.to_thread(_attach, client)
                await keys.create(AccessKey(name="root", primary=""))
                _, fields, _ = await asyncio.to_thread(client.expect, say.DETACH)
                assert str(fields[2].value[0]) == "amqp:unauthorized-access"


def _attach(client: RawClient) -> None:
    client.open()
    client.begin()
    token = make_token("sb://x/", ROOT_NAME, DEVELOPMENT_KEY, 2**40)
    assert client.put_token("sb://x/q", token) == 202
    client.attach(0, say.SENDER, "me", "q")


@run
async def test_nobody_locks_himself_out_with_the_first_key() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        keys = KeptKeys(bus, Keyring(development=True))
        for first in (
            AccessKey(name="in", primary="", rights=SENDS),
            AccessKey(name="own", primary="", entity="q"),
        ):
            with pytest.raises(InvalidOperation, match="create a key with Manage"):
                await keys.create(first)
        assert keys.keyring.development is True
        await keys.create(AccessKey(name="root", primary=""))
        assert keys.keyring.development is False
        await keys.create(AccessKey(name="in", primary="", rights=SENDS))
