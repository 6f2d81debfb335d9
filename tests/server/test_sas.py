"""Shared access signatures with an attacker's eyes: what is refused, and what a good one opens."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from hmac import new
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onibus.core.errors import Forbidden, InvalidArgument, OnibusError, Unauthorized
from onibus.security.keys import (
    DEVELOPMENT_KEY,
    ROOT_NAME,
    TOKENS_KEPT,
    AccessKey,
    Keyring,
    check_key,
)
from onibus.security.origins import Origins
from onibus.security.rights import ALL, Granted, Right
from onibus.security.sas import make_token, scope_of
from tests.server.server_helpers import SECRET, token

NOW = time.time()
KEY = AccessKey(name=ROOT_NAME, primary=SECRET)
OTHER = "another-secret-that-is-long"


def allowed(granted: Granted, entity: str, right: Right = Right.SEND) -> bool:
    try:
        granted.grant(right, entity, NOW)
    except Forbidden:
        return False
    return True


def opens(resource: str, entity: str, key: AccessKey = KEY) -> bool:
    """Tell whether a token for a resource lets somebody send to an entity."""
    granted = Keyring([key]).check(token(resource, key.name, key.primary), NOW)
    return allowed(granted, entity)


# The rule


def test_a_token_as_microsofts_documentation_computes_it() -> None:
    # sig = base64(HMAC-SHA256(key as text, resource as it stands in the token + LF + expiry)).
    resource = quote("sb://somewhere.servicebus.windows.net/orders", safe="").lower()
    expiry = str(int(NOW) + 60)
    mac = new(SECRET.encode(), f"{resource}\n{expiry}".encode(), sha256).digest()
    parts = [
        f"se={expiry}",
        f"sig={quote(b64encode(mac).decode(), safe='')}",
        f"skn={ROOT_NAME}",
        f"sr={resource}",
    ]
    ring = Keyring([KEY])
    for order in (parts, parts[::-1]):
        granted = ring.check("SharedAccessSignature " + "&".join(order), NOW)
        assert allowed(granted, "orders")
        assert not allowed(granted, "others")


def test_both_keys_are_good_and_the_name_may_be_encoded_twice() -> None:
    key = AccessKey(name="a.b-c_d", primary=SECRET, secondary=OTHER)
    ring = Keyring([key])
    for secret in (SECRET, OTHER):
        assert ring.check(token("sb://h/", "a.b-c_d", secret), NOW).rights == ALL
    twice = quote(quote("a.b-c_d", safe=""), safe="").replace("a", "%2561", 1)
    text = token("sb://h/", "a.b-c_d").replace("skn=a.b-c_d", f"skn={twice}")
    assert ring.check(text, NOW).name == "a.b-c_d"


@pytest.mark.parametrize(
    ("resource", "scope"),
    [
        ("sb://localhost", ""),
        ("sb://localhost/", ""),
        ("sb://localhost:5300/Orders", "orders"),
        ("amqps://[::1]:5672/orders/", "orders"),
        ("https://h/orders?api-version=2021-05", "orders"),
        ("https://h?x=/orders", ""),
        ("h.servicebus.windows.net/orders", "orders"),
        ("h/", ""),
        ("sb://h//orders//", "orders"),
        ("sb://h/t/Subscriptions/s/$DeadLetterQueue", "t/subscriptions/s/$deadletterqueue"),
        ("sb://[::1/orders", "orders"),
        ("sb:///orders", "orders"),
        ("localhost:5300", ""),
    ],
)
def test_what_a_resource_names(resource: str, scope: str) -> None:
    assert scope_of(resource) == scope


@pytest.mark.parametrize("resource", ["orders", "", "/orders", "/", "h?/orders", "h#/"])
def test_a_resource_that_could_mean_everything_is_refused(resource: str) -> None:
    with pytest.raises(Unauthorized, match="names no resource"):
        scope_of(resource)


# What a token reaches


@pytest.mark.parametrize(
    ("resource", "entity", "reached"),
    [
        ("sb://h/", "orders", True),
        ("sb://h/", "", True),
        ("sb://h/orders", "orders", True),
        ("sb://h/ORDERS", "Orders", True),
        ("sb://h/orders", "orders/$deadletterqueue", True),
        ("sb://h/orders", "orders/$management", True),
        ("sb://h/orders", "orders/subscriptions/s", True),
        ("sb://h/orders", "orders/eu", True),
        ("sb://h/orders", "orders2", False),
        ("sb://h/orders", "order", False),
        ("sb://h/orders", "", False),
        ("sb://h/orders", "other/orders", False),
        ("sb://h/orders", "orders%2f..", False),
        ("sb://h/orders/subscriptions/s", "orders", False),
        ("sb://h/orders/subscriptions/s", "orders/subscriptions/s2", False),
        ("sb://h/orders/$deadletterqueue", "orders", False),
        ("sb://h/orders/..", "others", False),
        ("sb://h/orders%2Feu", "orders/eu", False),
        ("sb://h/order%", "orders", False),
    ],
)
def test_a_token_reaches_its_resource_and_what_lies_below(
    resource: str, entity: str, reached: bool
) -> None:
    assert opens(resource, entity) is reached


@pytest.mark.parametrize(
    ("entity", "reached"),
    [
        ("orders", True),
        ("ORDERS", True),
        ("orders/subscriptions/s", True),
        ("orders/$deadletterqueue", True),
        ("orders/$management", True),
        ("orders/eu", False),
        ("orders2", False),
        ("", False),
    ],
)
def test_an_entitys_key_reaches_that_entity_and_its_parts(entity: str, reached: bool) -> None:
    key = AccessKey(name="k", primary=SECRET, entity="orders")
    assert opens("sb://h/orders", entity, key) is reached


def test_an_entitys_key_signs_for_nothing_else() -> None:
    ring = Keyring([AccessKey(name="k", primary=SECRET, entity="orders")])
    for resource in ("sb://h/", "sb://h/others", "sb://h/orders2", "sb://h/order"):
        with pytest.raises(Unauthorized, match="does not match a key"):
            ring.check(token(resource, "k"), NOW)
    narrow = ring.check(token("sb://h/orders/subscriptions/s", "k"), NOW)
    assert not allowed(narrow, "orders")
    # It may sign for what lies below its entity, and is still good for nothing there.
    assert not allowed(ring.check(token("sb://h/orders/eu", "k"), NOW), "orders/eu")


@pytest.mark.parametrize("right", list(Right))
def test_rights(right: Right) -> None:
    granted = Granted("k", frozenset([right]))
    reached = {one for one in Right if allowed(granted, "orders", one)}
    assert reached == (set(Right) if right is Right.MANAGE else {right})


# What is refused


def test_an_expired_token_is_refused_also_when_it_was_good_before() -> None:
    ring = Keyring([KEY])
    text = make_token("sb://h/", ROOT_NAME, SECRET, 1_000)
    granted = ring.check(text, 999.9)
    for now in (1_000.0, 1_001.0):
        with pytest.raises(Unauthorized, match="has expired"):
            ring.check(text, now)
        with pytest.raises(Forbidden, match="has expired"):
            granted.grant(Right.SEND, "orders", now)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("orders", "others"),
        lambda text: text.replace("%2Forders", "%2forders"),
        lambda text: text.replace("sr=sb%3A", "sr=sb:"),
        lambda text: text.replace("se=", "se=9"),
        lambda text: text.replace("se=", "se=0"),
        lambda text: text.replace("skn=Root", "skn=root"),
        lambda text: text.replace("sig=", "sig=A"),
        lambda text: text.replace("sig=", "sig=%FF"),
        lambda text: text + "&sr=sb%3A%2F%2Fh%2F",
        lambda text: text + "&",
        lambda text: text.replace("&se=", "&xx="),
        lambda text: text.replace("&skn=", "&xx="),
        lambda text: text.replace("SharedAccessSignature ", "sharedaccesssignature "),
        lambda text: text.replace("SharedAccessSignature ", "Bearer "),
        lambda text: text.replace("se=", "se=-"),
        lambda text: text.replace("se=", "se=٣"),
        lambda text: text + " " * 5_000,
    ],
)
def test_an_altered_token_is_refused(change: Callable[[str], str]) -> None:
    ring = Keyring([KEY])
    text = token("sb://h/orders")
    ring.check(text, NOW)
    altered = change(text)
    assert altered != text
    with pytest.raises(Unauthorized):
        ring.check(altered, NOW)


def test_foreign_and_empty_keys_are_refused() -> None:
    ring = Keyring([KEY, AccessKey(name="no-second", primary=SECRET, secondary="")])
    for name, key in ((ROOT_NAME, OTHER), ("no-second", ""), ("nobody", SECRET), (ROOT_NAME, "")):
        with pytest.raises(Unauthorized, match="does not match a key"):
            ring.check(token("sb://h/", name, key), NOW)


def test_the_emulators_key_is_good_only_where_it_is_let_in() -> None:
    text = token(key=DEVELOPMENT_KEY)
    with pytest.raises(Unauthorized):
        Keyring([KEY]).check(text, NOW)
    ring = Keyring([KEY], development=True)
    assert ring.check(text, NOW).rights == ring.check(token(), NOW).rights == ALL


@given(st.text() | st.text().map(lambda text: f"SharedAccessSignature sr={text}&sig=&se=1&skn=a"))
def test_whatever_is_said_is_refused_as_ours(text: str) -> None:
    with pytest.raises(OnibusError):
        Keyring([KEY]).check(text, NOW)


@given(st.text())
def test_whatever_is_signed_is_read_or_refused(resource: str) -> None:
    try:
        granted = Keyring([KEY]).check(token(resource), NOW)
    except Unauthorized:
        return
    assert granted.scope == granted.scope.lower()


def test_tokens_that_were_found_good_are_bounded() -> None:
    ring = Keyring([KEY])
    for number in range(TOKENS_KEPT + 10):
        ring.check(make_token("sb://h/", ROOT_NAME, SECRET, int(NOW) + 100 + number), NOW)
    assert len(ring._tokens) <= TOKENS_KEPT


def test_new_keys_count_at_once() -> None:
    ring = Keyring([KEY])
    text = token()
    ring.check(text, NOW)
    ring.replace([AccessKey(name=ROOT_NAME, primary=OTHER)])
    with pytest.raises(Unauthorized):
        ring.check(text, NOW)
    assert ring.check(token(key=OTHER), NOW).name == ROOT_NAME


# Keys themselves


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"name": ""}, "invalid key name"),
        ({"name": "a/b"}, "invalid key name"),
        ({"name": "a\n"}, "invalid key name"),
        ({"primary": ""}, "must have 16 to 256"),
        ({"primary": "x" * 15}, "must have 16 to 256"),
        ({"primary": "x" * 257}, "must have 16 to 256"),
        ({"secondary": "short"}, "the secondary key"),
        ({"primary": "with a\nline break in it"}, "printable ASCII"),
        ({"primary": "with a semicolon;in it"}, "no ;"),
        ({"primary": "with an é in its midst"}, "printable ASCII"),
        ({"rights": frozenset()}, "has no rights"),
        ({"entity": "//"}, "entity name"),
    ],
)
def test_keys_that_are_refused(wrong: dict[str, object], told: str) -> None:
    fields = {"name": "k", "primary": SECRET} | wrong
    with pytest.raises(InvalidArgument, match=told) as refused:
        check_key(AccessKey(**fields))  # type: ignore[arg-type]
    assert SECRET not in str(refused.value)


def test_a_key_is_in_no_text_of_itself() -> None:
    key = AccessKey(name="k", primary=SECRET, secondary=OTHER)
    for text in (repr(key), str(key), f"{[key]}"):
        assert SECRET not in text
        assert OTHER not in text


# A well-known key, or none; tests/server/test_web_pages.py has more


def opened(*hosts: str) -> list[Origins]:
    return [Origins(None, hosts), Origins(Keyring(development=True), hosts)]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:5300"},
        {"host": "localhost.evil.example"},
        {"host": "127.0.0.1.evil.example:5300"},
        {"host": "localhost:5300", "origin": "http://evil.example"},
        {"host": "localhost:5300", "origin": "null"},
        {"host": "localhost:5300", "origin": "http://localhost:8080"},
        {"host": "localhost:5300", "origin": "http://localhost:5300.evil.example"},
        {"host": "localhost:5300", "origin": ""},
        {"host": "localhost:5300", "referer": "http://evil.example/localhost:5300"},
        {"host": "localhost:5300", "sec-fetch-site": "cross-site"},
        {"host": "localhost:5300", "sec-fetch-site": "anything"},
        {"host": "192.168.0.7"},
        {"host": "0.0.0.0:5300"},
        {"host": "::"},
        {"host": ""},
        {"host": "localhost:99999999"},
    ],
)
def test_web_pages_and_other_hosts_are_rejected(headers: dict[str, str]) -> None:
    for origins in opened("bus", "10.0.0.1"):
        with pytest.raises(Forbidden, match="a well-known key or none"):
            origins.check(headers)
    Origins(Keyring([KEY])).check(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost"},
        {"host": "LocalHost:5300"},
        {"host": "localhost.:5300"},
        {"host": "[::1]:5300"},
        {"host": "::1"},
        {"host": "Bus:80"},
        {"host": "10.0.0.1"},
        {"host": "127.0.0.1:5300", "origin": "http://127.0.0.1:5300"},
        {"host": "Bus:80", "origin": "http://bus:80", "sec-fetch-site": "same-origin"},
        {"host": "localhost", "sec-fetch-site": "none"},
    ],
)
def test_programs_and_our_own_pages_are_not(headers: dict[str, str]) -> None:
    for origins in opened("bus", "10.0.0.1"):
        for _ in range(2):
            origins.check(headers)


def test_hosts_that_were_found_good_are_bounded() -> None:
    (origins, _) = opened()
    for port in range(1_000):
        origins.check({"host": f"localhost:{port}"})
    assert len(origins._good) <= 64


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_changes_are_asked_for_with_post(method: str) -> None:
    for origins in opened():
        origins.check_change("POST")
        with pytest.raises(Forbidden, match="use POST, or create a key"):
            origins.check_change(method)
    Origins(Keyring([KEY])).check_change(method)
