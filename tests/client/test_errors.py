"""Errors of the server are raised here as what they were there."""

from __future__ import annotations

import inspect

import pytest

from onibus import Message
from onibus.client import AsyncClient, Client
from onibus.client.asking import ServerResponse
from onibus.client.problems import problem_of
from onibus.core import errors
from onibus.core.errors import (
    EntityNotFound,
    Failed,
    Forbidden,
    InvalidArgument,
    LogGap,
    MessageTooLarge,
    OnibusError,
    Refused,
    Unauthorized,
)
from onibus.protocols.http.problems import problem
from onibus.security.keys import DEVELOPMENT_KEY
from tests.client.server_helpers import ServerThread, development_string

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    # FilterFailed answers no request.
    if issubclass(kind, OnibusError) and kind not in (OnibusError, errors.FilterFailed)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_comes_back_as_it_was(kind: type[OnibusError]) -> None:
    gap = issubclass(kind, LogGap)
    raised = kind("why", 3, 7) if gap else kind("why")
    told = problem(raised)
    error = problem_of(ServerResponse(told.status, told.body, told.content_type))
    assert type(error) is kind
    assert (str(error), error.code, error.retryable) == ("why", kind.code, kind.retryable)
    if isinstance(error, LogGap):
        assert (error.first, error.last) == (3, 7)


def test_where_a_filter_is_wrong_is_told() -> None:
    told = problem(errors.InvalidFilter("bad", 4, "a number"))
    error = problem_of(ServerResponse(told.status, told.body, told.content_type))
    assert isinstance(error, errors.InvalidFilter)
    assert (error.position, error.expected) == (4, "a number")
    assert str(error) == "bad at character 5; expected a number"


def test_an_error_of_a_later_version_is_of_its_family() -> None:
    body = (
        b'{"type":"too-purple","outcome":"refused","title":"t","status":400,"detail":"d",'
        b'"retryable":true}'
    )
    error = problem_of(ServerResponse(400, body, ""))
    assert type(error) is Refused
    assert (error.code, error.retryable) == ("too-purple", True)


def test_what_is_no_answer_of_ours_is_told_without_guessing() -> None:
    assert type(problem_of(ServerResponse(502, b"<html>", "text/html"))) is Failed
    assert type(problem_of(ServerResponse(404, b"", ""))) is Refused
    with pytest.raises(Failed, match="cannot decode"):
        ServerResponse(200, b"<html>", "text/html").read(dict[str, int])


def test_errors_over_the_wire(server: ServerThread) -> None:
    with server.client() as client:
        with pytest.raises(EntityNotFound, match="nothing"):
            client.send("nothing", Message())
        client.create_queue("q", max_message_bytes=100)
        with pytest.raises(MessageTooLarge):
            client.send("q", Message(body=b"x" * 200))
        with pytest.raises(InvalidArgument, match="did you mean"):
            client.create_queue("r", lock_duration=5)
        with pytest.raises(InvalidArgument, match="send a Message"):
            client.send("q", b"x")  # type: ignore[arg-type]


def test_wrong_credentials(server: ServerThread) -> None:
    address = f"http://127.0.0.1:{server.port}"
    with Client.connect(address) as nobody, pytest.raises(Unauthorized):
        nobody.queues()
    for wrong, said in (("SAS_KEY_VALUF", "does not match a key"), (DEVELOPMENT_KEY, "--develop")):
        string = development_string(server.port, wrong)
        with Client.connect(string) as stranger, pytest.raises(Unauthorized, match=said) as told:
            stranger.queues()
        assert wrong not in str(told.value)
    with Client.connect(f"{server.connection_string}EntityPath=mine;") as owner:
        with pytest.raises(Forbidden):
            owner.create_queue("yours")
        owner.create_queue("mine")


def test_no_address() -> None:
    for address in ("http://", "Endpoint=sb://;", "nonsense", "Endpoint=sb://h:port;"):
        with pytest.raises(InvalidArgument):
            Client.connect(address).queues()
        with pytest.raises(InvalidArgument):
            AsyncClient.connect("SharedAccessKey=secret")
