"""What is no description, too much of one, or asked of the wrong path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from xml.etree.ElementTree import Element, SubElement

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onibus.client import Client
from onibus.core.errors import InvalidArgument
from onibus.core.settings import QueueSettings, make
from onibus.protocols.atom.descriptions import FIELDS, read
from onibus.protocols.atom.xml import (
    ATOM,
    BODY_BYTES_MAX,
    DEPTH_MAX,
    ELEMENT_COUNT_MAX,
    escaped,
    parse,
    text_of,
)
from tests.atom.helpers import Name, body, plain
from tests.server.processes import PATIENCE_S, Served
from tests.server.server_helpers import signed


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[httpx.Client]:
    with plain(server) as found:
        found.headers.update(signed())
        yield found


LAUGHS = """<!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY lol2 "&lol;&lol;&lol;&lol;">]>
<entry xmlns="http://www.w3.org/2005/Atom"><title>&lol2;</title></entry>"""
FILE = '<!DOCTYPE x [<!ENTITY x SYSTEM "file:///etc/passwd">]><entry>&x;</entry>'
RULE = (
    '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
    '<Value i:type="x:{kind}">{text}</Value></KeyValueOfstringanyType></Properties></Filter>'
)

BAD_QUEUES = {
    "nothing": ("", "not XML"),
    "no XML": ("{}", "not XML"),
    "half a document": (body("")[:-5], "not XML"),
    "entities that grow": (LAUGHS, "document type"),
    "a file": (FILE, "document type"),
    "an entity that is not there": (body("<UserMetadata>&nbsp;</UserMetadata>"), "not XML"),
    "another document": ("<feed/>", "an Atom entry"),
    "no description": (f'<entry xmlns="{ATOM}"><content/></entry>', "an Atom entry"),
    "another description": (body("", "EventHubDescription"), "QueueDescription or Topic"),
    "an element of nobody": (body("<Colour>red</Colour>"), "'Colour' is unknown"),
    "an element twice": (body("<Status>Active</Status>" * 2), "or repeated"),
    "no duration": (body("<LockDuration>soon</LockDuration>"), "LockDuration: 'soon'"),
    "a lock without end": (body("<LockDuration>P10675199D</LockDuration>"), "must be finite"),
    "no number": (body("<MaxDeliveryCount>many</MaxDeliveryCount>"), "not a whole number"),
    "a long number": (
        body(f"<MaxDeliveryCount>{'9' * 99}</MaxDeliveryCount>"),
        "not a whole number",
    ),
    "no boolean": (body("<RequiresSession>maybe</RequiresSession>"), "neither true nor false"),
    "no status": (body("<Status>Asleep</Status>"), "use active"),
    "anybody": (body("<IsAnonymousAccessible>true</IsAnonymousAccessible>"), "need a key"),
    "too short a window": (
        body("<DuplicateDetectionHistoryTimeWindow>PT1S</DuplicateDetectionHistoryTimeWindow>"),
        "duplicate_detection_window_ms",
    ),
    "too deep": (body("<a>" * DEPTH_MAX + "</a>" * DEPTH_MAX), "too deep"),
    "too many": (body("<a/>" * ELEMENT_COUNT_MAX), "too many elements"),
    "a key that anybody guesses": (
        body(
            "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights>"
            "</Rights><KeyName>k</KeyName><PrimaryKey>short</PrimaryKey></AuthorizationRule>"
            "</AuthorizationRules>"
        ),
        "16 to 256",
    ),
}


@pytest.mark.parametrize("what", BAD_QUEUES)
def test_a_queue_is_not_made_of_what_is_wrong(client: httpx.Client, what: str) -> None:
    text, told = BAD_QUEUES[what]
    answer = client.put("/never", content=text)
    assert answer.status_code == 400, answer.text
    assert told in answer.text
    assert text_of(parse(answer.content).find("Code")) == "400"
    assert client.get("/never").status_code == 404


@pytest.mark.parametrize(
    ("inner", "told"),
    [
        ('<Filter i:type="Sieve"/>', "unknown filter"),
        ('<Filter i:type="CorrelationFilter"><Hue>red</Hue></Filter>', "has no 'Hue'"),
        ('<Filter i:type="SqlFilter"><SqlExpression>n &gt;</SqlExpression></Filter>', "expected"),
        ('<Action i:type="Jump"/>', "unknown action"),
        (RULE.format(kind="int", text="x"), "not a whole number"),
        (RULE.format(kind="double", text="x"), "is not a double"),
        (RULE.format(kind="dateTime", text="x"), "is not a dateTime"),
        (RULE.format(kind="dateTime", text="9999-99-99"), "is not a dateTime"),
        (RULE.format(kind="duration", text="P" + "9" * 50 + "D"), "is not a duration"),
        (RULE.format(kind="base64Binary", text="*"), "is not a base64Binary"),
        (RULE.format(kind="hue", text="red"), "unknown type"),
    ],
)
def test_a_rule_is_not_made_of_what_is_wrong(
    client: httpx.Client, owner: Client, name: Name, inner: str, told: str
) -> None:
    topic = name("t")
    owner.create_topic(topic)
    owner.create_subscription(topic, "s")
    content = body(inner, "RuleDescription")
    answer = client.put(f"/{topic}/subscriptions/s/rules/r", content=content)
    assert answer.status_code == 400, answer.text
    assert told in answer.text
    assert len(owner.subscription(f"{topic}/subscriptions/s").rules) == 1


def test_paths_that_name_nothing(client: httpx.Client, owner: Client, name: Name) -> None:
    topic = name("t")
    owner.create_topic(topic)
    for path in ("/$Resources/relays", "/$x", f"/{topic}/subscriptions/s/rules/r/more"):
        assert client.get(path).status_code == 404, path
    for path in (f"/{topic}/subscriptions/s", f"/{topic}/subscriptions/s/rules"):
        assert client.get(path).status_code == 404, path
    for method, path in (
        ("POST", f"/{topic}"),
        ("DELETE", "/$namespaceinfo"),
        ("PUT", f"/{topic}/subscriptions"),
    ):
        assert client.request(method, path).status_code == 405, path
    for page in ({"$top": "0"}, {"$skip": "-1"}, {"$skip": "x"}):
        assert client.get("/$Resources/queues", params=page).status_code == 400
    assert client.put("/-bad-", content=body("")).status_code == 400


def test_a_body_that_is_too_large_is_not_read(client: httpx.Client) -> None:
    large = body(f"<UserMetadata>{'x' * BODY_BYTES_MAX}</UserMetadata>")
    answer = client.put("/never", content=large)
    assert (answer.status_code, "at most" in answer.text) == (413, True)


def test_the_native_api_and_health_are_where_they_were(server: Served) -> None:
    with httpx.Client(
        base_url=f"http://localhost:{server.port}", trust_env=False, timeout=PATIENCE_S
    ) as client:
        healthy = {"status": "healthy", "message": "Service is healthy."}
        assert client.get("/health").json() == healthy
        assert client.get("/nowhere").json()["type"] == "no-such-path"
        unsigned = client.get("/health", params={"api-version": "2021-05"})
        assert (unsigned.status_code, unsigned.text.startswith("<Error>")) == (401, True)


@pytest.mark.parametrize("path", ["", "/subscriptions/s", "/subscriptions/s/rules/r"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_everything_asks_for_a_right(server: Served, method: str, path: str) -> None:
    with plain(server) as client:
        assert client.request(method, f"/t{path}").status_code == 401
        token = signed("sb://localhost/another")
        answer = client.request(method, f"/t{path}", headers=token)
        assert (answer.status_code, "is only for another" in answer.text) == (401, True)


def test_a_queue_may_be_named_like_a_path_of_ours(client: httpx.Client) -> None:
    assert client.put("/metrics", content=body("")).status_code == 201
    assert '<title type="text">metrics</title>' in client.get("/metrics").text
    assert client.delete("/metrics").status_code == 200


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: body(text).encode()))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(InvalidArgument):
        parse(data)


ELEMENTS = st.lists(
    st.tuples(
        st.sampled_from([field.name for field in FIELDS[QueueSettings]]),
        st.text(max_size=20) | st.from_regex(r"P?T?-?\d{1,70}[DSMH]?", fullmatch=True),
    ),
    max_size=4,
)


@given(ELEMENTS)
def test_any_description_is_taken_or_refused(elements: list[tuple[str, str]]) -> None:
    description = Element("QueueDescription")
    for name, text in elements:
        SubElement(description, name).text = text
    with suppress(InvalidArgument):
        make(read(description, QueueSettings), QueueSettings)


@given(st.text(max_size=50))
def test_any_text_can_be_written(text: str) -> None:
    found = text_of(parse(f"<a>{escaped(text)}</a>".encode()))
    assert [a == b or b == "\ufffd" for a, b in zip(text, found, strict=True)] == [True] * len(text)
