"""`onibus keys`: made, used, rotated and deleted; secrets are shown once, and where asked for."""

from __future__ import annotations

from onibus.client import Target
from tests.cli.conftest import Onibus
from tests.client.server_helpers import ServerThread


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
    assert onibus.told("keys", "list") == []


def test_a_key_of_the_whole_namespace(onibus: Onibus, server: ServerThread) -> None:
    onibus.run("queue", "create", "orders")
    shown = onibus.shown("keys", "create", "reader", "--right", "Listen", "--connection-string")
    target = Target.parse(shown.strip())
    assert (target.url, target.entity) == (f"http://localhost:{server.port}", "")
    Onibus(shown.strip()).run("receive", "orders")
    [listed] = onibus.told("keys", "list")
    assert listed == {"name": "reader", "entity": "", "rights": ["Listen"], "configured": False}
    assert "the whole namespace" in onibus.shown("keys", "list")
    assert target.key not in onibus.run("keys", "list").output


def test_people_see_the_secrets_and_are_told_to_keep_them(onibus: Onibus) -> None:
    result = onibus.run("keys", "create", "root", "-r", "Manage")
    assert "Keep this: secrets are not shown again." in result.stderr
    line = next(one for one in result.stdout.splitlines() if one.startswith("Endpoint="))
    Onibus(line).run("queue", "create", "orders")


def test_what_is_asked_for_first(onibus: Onibus) -> None:
    onibus.run("keys", "create", "nothing", code=2)
    onibus.run("keys", "create", "nothing", "--right", "Everything", code=2)
    onibus.run("keys", "create", "of nobody", "--right", "Send", code=1)
    onibus.run("keys", "rotate", "worker", code=2)
    onibus.run("keys", "rotate", "worker", "third", "--yes", code=2)
    onibus.run("keys", "delete", "worker", code=2)
    assert "key-not-found" in onibus.run("keys", "delete", "worker", "--yes", code=1).stderr
