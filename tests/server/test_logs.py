"""What the server logs, for people and for machines, and what it never does."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import msgspec
import pytest

from onibus import Bus
from onibus.core.errors import Damaged, StoreFailed
from onibus.operation import logs
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME, Keyring
from onibus.security.sas import make_token
from tests.bus_helpers import Disks, ManualClock, pass_ms, pull, run
from tests.server.web import ask, serving


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]


@run
async def test_requests_are_logged_without_their_credentials() -> None:
    stream = io.StringIO()
    logs.start_logs(logs.JSON, "debug", stream)
    token = make_token("sb://localhost", ROOT_NAME, DEVELOPMENT_KEY, 9_999_999_999)
    async with Bus.ephemeral() as bus, serving(bus, Keyring(development=True)) as server:
        headers = {"authorization": token}
        assert (
            await ask(server, "GET", "/v1/queues?sig=signed-so", headers=headers)
        ).status_code == 200
    (line,) = [one for one in lines(stream) if one["logger"] == "onibus.requests"]
    assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/queues", 200)
    assert line["level"] == "debug"
    assert isinstance(line["ms"], float)
    for secret in (token, "signed-so", DEVELOPMENT_KEY):
        assert secret not in stream.getvalue()


@run
async def test_requests_are_not_logged_at_info() -> None:
    stream = io.StringIO()
    logs.start_logs(logs.JSON, "info", stream)
    async with Bus.ephemeral() as bus, serving(bus) as server:
        await ask(server, "GET", "/livez")
    assert [one for one in lines(stream) if str(one["logger"]).startswith("onibus")] == []


@run
async def test_an_alarm_is_logged_once() -> None:
    stream = io.StringIO()
    logs.start_logs(logs.TEXT, "info", stream)
    clock = ManualClock()
    async with Disks().bus(clock, "one", "two") as bus:
        pull(bus, "one")  # before anybody listens
        async with serving(bus):
            alarms = bus.broker.alarms
            alarms.raise_one("store one", StoreFailed("pulled"))
            assert stream.getvalue().count("store one: pulled") == 1
            alarms.raise_one("store one", Damaged("rotten"))
            await pass_ms(bus, clock, 2_000)
            # It was well in between: the same words are news.
            pull(bus, "one")
            assert stream.getvalue().count("store one: pulled") == 2
            assert len(bus.alarms) == 4
    words = [line.split()[2] for line in stream.getvalue().splitlines()]
    assert words == ["WARNING", "ERROR", "WARNING"]


@pytest.mark.parametrize("form", logs.FORMATS)
def test_secrets_are_blotted_out_whoever_wrote_them(form: str) -> None:
    stream = io.StringIO()
    logs.start_logs(form, "info", stream)
    logger = logging.getLogger("onibus.test")
    connection = "Endpoint=sb://localhost;SharedAccessKeyName=Root;SharedAccessKey=TOPsecret=="
    logger.warning("cannot read %s;UseDevelopmentEmulator=true", connection)
    token = make_token("sb://localhost", "Root", "TOPsecret==", 9_999_999_999)
    logger.warning("refused", extra={"header": token, "status": 401})
    try:
        raise ValueError(f"authorization: {token}")
    except ValueError:
        logger.exception("failed")
    text = stream.getvalue()
    assert "SharedAccessKeyName=Root" in text
    assert "TOPsecret" not in text
    assert token.partition("sig=")[2][:10] not in text
    assert "401" in text
    assert "ValueError" in text


def test_a_second_set_up_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.start_logs(logs.TEXT, "info", first)
    logs.start_logs(logs.JSON, "info", second)
    logging.getLogger("onibus.x").info("hello")
    assert first.getvalue() == ""
    (line,) = lines(second)
    assert (line["message"], line["logger"], line["level"]) == ("hello", "onibus.x", "info")
