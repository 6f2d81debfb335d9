"""`onibus keys`: made, used, rotated and deleted; secrets are shown once, and where asked for."""

from __future__ import annotations

import re
import time

import httpx

from onibus.client import Target
from onibus.security.keys import ROOT_NAME
from tests.cli.conftest import Onibus
from tests.client.server_helpers import ServerThread
from tests.server.processes import PATIENCE_S


def test_a_key_of_an_entity_over_its_life(onibus: Onibus) -> None:
    for name in ("orders", "others"):
        onibus.run("queue", "create", name)
    words = ("keys", "create", "worker", "-r", "send", "-r", "Listen", "--entity", "Orders")
    [made] = onibus.told(*words)
    assert (made["entity"], made["rights"]) == ("orders", ["Send", "Listen"])
    first = Onibus(made["connection_string"])
    first.run("send", "orders", "one")
    # It allows nothing else, and nothing elsewhere.
    assert "forbidden" in first.run("send", "others", "one", code=1).stderr
    assert "forbidden" in first.run("keys", "list", code=1).stderr
    assert "key-exists" in onibus.run(*words, code=1).stderr
    # Clients move to the other secret; then the first is replaced, and is good no more.
    rotate = ("keys", "rotate", "worker", "-e", "orders", "--yes", "--connection-string")
    second = Onibus(onibus.shown(*rotate[:3], "secondary", *rotate[3:]).strip())
    second.run("send", "orders", "two")
    [third] = onibus.told(*rotate)
    assert third["primary"] != made["primary"]
    assert third["secondary"] not in ("", made["secondary"])
    assert Target.parse(third["connection_string"]).key == third["primary"]
    assert "unauthorized" in first.run("send", "orders", "three", code=1).stderr
    second.run("send", "orders", "four")
    Onibus(third["connection_string"]).run("send", "orders", "five")
    onibus.run("keys", "delete", "worker", "-e", "orders", "--yes")
    second.run("send", "orders", "six", code=1)
    assert [one["name"] for one in onibus.told("keys", "list")] == [ROOT_NAME]


def test_a_key_of_the_whole_namespace(onibus: Onibus, server: ServerThread) -> None:
    onibus.run("queue", "create", "orders")
    shown = onibus.shown("keys", "create", "reader", "--right", "Listen", "--connection-string")
    target = Target.parse(shown.strip())
    assert (target.url, target.entity) == (f"http://localhost:{server.port}", "")
    Onibus(shown.strip()).run("receive", "orders")
    [_, listed] = onibus.told("keys", "list")
    assert listed == {"name": "reader", "entity": "", "rights": ["Listen"], "configured": False}
    assert "the whole namespace" in onibus.shown("keys", "list")
    assert target.key not in onibus.run("keys", "list").output


def test_people_see_the_secrets_and_are_told_to_keep_them(onibus: Onibus) -> None:
    result = onibus.run("keys", "create", "root", "-r", "Manage")
    assert "Save the secrets now: they are not shown again." in result.stderr
    line = next(one for one in result.stdout.splitlines() if one.startswith("Endpoint="))
    Onibus(line).run("queue", "create", "orders")


def test_a_token_for_tools_that_cannot_sign(onibus: Onibus, server: ServerThread) -> None:
    onibus.run("keys", "create", "watcher", "--right", "monitor")
    token = onibus.shown("keys", "token", "watcher", "--for", "90d").strip()
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)
    address = f"http://localhost:{server.port}"
    with httpx.Client(base_url=address, trust_env=False, timeout=PATIENCE_S) as client:

        def status(path: str, token: str) -> int:
            return client.get(path, headers={"authorization": f"Bearer {token}"}).status_code

        assert (status("/metrics", token), status("/v1/queues", token)) == (200, 403)
        [told] = onibus.told("keys", "token", "watcher", "--for", "1h", "--which", "secondary")
        assert 0 < told["expires_at"] - time.time() <= 3_600
        assert status("/metrics", told["token"]) == 200
        # It ends with the secret that signed it.
        onibus.run("keys", "rotate", "watcher", "primary", "--yes")
        assert (status("/metrics", token), status("/metrics", told["token"])) == (401, 200)
        for wrong in ("x", "=", token[:-4], token * 100, "é"):
            shown = {b"authorization": f"Bearer {wrong}".encode()}
            assert client.get("/metrics", headers=shown).status_code == 401
    onibus.run("keys", "token", "nobody", code=1)
    onibus.run("keys", "token", "watcher", "--for", "some time", code=2)
    onibus.run("keys", "create", "odd", "--right", "Monitor", "--entity", "orders", code=1)


def test_what_is_asked_for_first(onibus: Onibus) -> None:
    onibus.run("keys", "create", "nothing", code=2)
    onibus.run("keys", "create", "nothing", "--right", "Everything", code=2)
    onibus.run("keys", "create", "of nobody", "--right", "Send", code=1)
    onibus.run("keys", "rotate", "worker", code=2)
    onibus.run("keys", "rotate", "worker", "third", "--yes", code=2)
    onibus.run("keys", "delete", "worker", code=2)
    assert "key-not-found" in onibus.run("keys", "delete", "worker", "--yes", code=1).stderr
