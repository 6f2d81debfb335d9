"""Bad input over HTTP: clear errors, nothing changed, nothing of ours broken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onibus.core import errors
from onibus.core.errors import FilterFailed, OnibusError
from onibus.protocols.http.problems import STATUSES, problem, status_of
from onibus.protocols.http.routes import routes
from tests.bus_helpers import run
from tests.server.http_helpers import JSON_TYPE, Client, serving

SEND = "/v1/entities/q/messages"


async def post(client: Client, body: bytes, path: str = SEND, **headers: str) -> tuple[int, str]:
    """POST bytes; return the status and the type of the problem."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = await client.http.post(path, content=body, headers=JSON_TYPE | named)
    return response.status_code, response.json().get("type", "")


@run
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"body": 1}',
        b'{"body": "a", "unknown": 1}',
        b'{"body": "a"} more',
        b'{"body": "\xff"}',
        b'{"body": "\\ud800"}',
        b'{"time_to_live_ms": "soon"}',
        b'{"time_to_live_ms": 0}',
        b'{"time_to_live_ms": -1}',
        b'{"time_to_live_ms": 99999999999999999999999}',
        b'{"scheduled_enqueue_time_ms": -1}',
        b'{"message_id": ""}',
        b'{"message_id": "' + b"x" * 129 + b'"}',
        b'{"properties": {"a": [1]}}',
        b'{"properties": {"a": {"binary": "?"}}}',
        b'{"properties": {"a": {"time": "yesterday"}}}',
        b'{"properties": {"a": {"time": "2026-01-01T00:00:00"}}}',
        b'{"properties": {"a": {"time": 1}}}',
        b'{"properties": {"a": {"duration_us": 1}}}',
        b'{"properties": {"a": {"duration_us": 1e300}}}',
        b'{"properties": {"a": {}}}',
        b'{"properties": {"a": 9223372036854775808}}',
        b'{"body_base64": "???"}',
        b'{"body": "a", "body_base64": "YQ=="}',
        b'{"properties": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    ],
)
async def test_a_message_that_cannot_be_one_is_refused(body: bytes) -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        assert await post(client, body) == (400, "invalid-argument")
        assert (await client.do("GET", "/queues/q"))["active_count"] == 0


@run
async def test_the_kind_of_a_body_matters() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/xml", ""):
            assert await post(client, b"{}", content_type=kind) == (415, "wrong-content-type")
        assert await post(client, b"{}", content_type="Application/JSON; charset=utf-8") == (
            200,
            "",
        )
        arrow = "application/vnd.apache.arrow.stream"
        assert (await post(client, b"{}", content_type=arrow))[0] == 415
        path = "/v1/entities/q/batch"
        for body in (b"", b"nonsense", b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"\x00" * 16):
            assert await post(client, body, path, content_type=arrow) == (400, "invalid-argument")


@run
async def test_wrong_methods_and_paths() -> None:
    async with serving() as client:
        response = await client.ask("PUT", "/entities/q/messages", {})
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        response = await client.ask("POST", "/queues/q", {})
        assert response.headers["allow"] == "DELETE, GET, PATCH, PUT, HEAD"
        for path in ("", "/", "/queues/", "/entities", "/entities/q", "/entities//receive", "/x"):
            await client.refused(404, "no-such-path", "GET", path)
        assert (await client.http.options("/v1/queues")).status_code == 405


@run
async def test_queries_are_checked() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        for query in ("", "?start=x", "?start=-1", "?start=1&more=2", "?start=1&columns=no"):
            path = f"/entities/q/log/messages/0{query}"
            await client.refused(400, "invalid-argument", "GET", path)
        for partition in ("1", "999", "18446744073709551616"):
            response = await client.ask("GET", f"/entities/q/log/messages/{partition}?start=1")
            assert response.status_code == 400, response.text
        await client.refused(400, "invalid-argument", "GET", "/entities/q/log?log=other")


@run
async def test_messages_too_large_for_their_queue() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"max_message_bytes": 1_000})
        await client.refused(413, "message-too-large", "POST", SEND[3:], {"body": "x" * 1_001})
        batch = {"messages": [{"body": "a"}, {"body": "x" * 1_001}]}
        await client.refused(413, "message-too-large", "POST", "/entities/q/batch", batch)
        assert (await client.do("GET", "/queues/q"))["active_count"] == 0


@run
async def test_no_call_breaks_on_what_is_no_json_of_its_own() -> None:
    """Every route that takes a body, with bodies that are none of its own."""
    odd: list[Any] = [None, [], 1, "x", {"x": 1}, {"token": 1}, {"numbers": []}, {"where": []}]
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        for route in routes():
            if route.takes is None:
                continue
            path = route.path
            for name, value in (("{entity}", "q"), ("{reader}", "r"), ("{number}", "1")):
                path = path.replace(name, value)
            for body in odd:
                response = await client.http.request(
                    route.method, path, content=json.dumps(body), headers=JSON_TYPE
                )
                status = response.status_code
                assert 400 <= status < 500, (route.method, path, body, response.text)
        assert await client.do("GET", "/alarms") == {"alarms": []}


def every_error() -> list[type[OnibusError]]:
    found, ahead = [], [OnibusError]
    while ahead:
        kind = ahead.pop()
        ahead += kind.__subclasses__()
        if kind.__module__ == errors.__name__:
            found.append(kind)
    return found


#: Errors that no request can meet: a bus that cannot be opened, and a rule that meets a message.
ELSEWHERE = {errors.AlreadyOpen, errors.NewerFormat, FilterFailed, OnibusError}


@pytest.mark.parametrize("kind", sorted(set(every_error()) - ELSEWHERE, key=lambda one: one.code))
def test_every_error_has_a_status_that_fits(kind: type[OnibusError]) -> None:
    arguments: tuple[Any, ...] = ("what",)
    if issubclass(kind, errors.LogGap):
        arguments = ("what", 1, 2)
    error = kind(*arguments)
    status = status_of(error)
    assert any(parent in STATUSES for parent in kind.__mro__[:-2])
    told = json.loads(problem(error).body)
    assert (told["type"], told["status"]) == (kind.code, status)
    if isinstance(error, errors.Refused):
        assert told["outcome"] == "refused"
        unavailable = (errors.PartitionOffline, errors.BusClosed, errors.DiskNearlyFull)
        assert (status < 500) != isinstance(error, unavailable)
    else:
        assert told["outcome"] == ("unknown" if isinstance(error, errors.Unknown) else "failed")
        assert status >= 500
    assert told.get("retryable", False) == kind.retryable


def test_faults_of_ours_tell_no_details() -> None:
    told = problem(ZeroDivisionError("secret"))
    assert told.status == 500
    assert b"secret" not in told.body
