"""Checks of many things at once find what a check of each would."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onibus.protocols.http.messages import Head, Request
from onibus.protocols.sqs import json_protocol
from onibus.protocols.sqs.actions.checking import check_entries, is_id
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.messages import carried
from onibus.protocols.sqs.shapes import SendEntry, SendIn

#: With all that is not carried, and what stands near it.
characters = st.one_of(
    st.sampled_from('a\\"\x00\x08\t\n\r\x1f \x7f\x85é\ufffd\ufffe\uffff\U0001fffe\ud800'),
    st.characters(),
)
texts = st.text(characters, max_size=6)


def asked(body: bytes) -> Request:
    """Return a request of AWS JSON."""
    return Request(Head("POST", "/", "", {"x-amz-target": "AmazonSQS.SendMessage"}), body)


def read(body: bytes) -> str | None:
    """Return the MessageBody of a request; None where it cannot be read."""
    try:
        text: str = json_protocol.read(body, SendIn).message_body
    except SqsError:
        return None
    return text


@given(text=texts)
@settings(max_examples=500)
def test_a_body_that_seems_plain_has_nothing_that_is_not_carried(text: str) -> None:
    whole = text.encode("utf-8", "surrogatepass")
    for quoted in (b'"%b"' % whole, msgspec.json.encode(text.encode("utf-8", "replace").decode())):
        body = b'{"MessageBody": %b}' % quoted
        found = read(body)
        if found is not None and json_protocol.has_plain_texts(asked(body)):
            assert carried(found) == found.encode()


def test_what_is_plain() -> None:
    assert json_protocol.has_plain_texts(asked('{"MessageBody": "é, 漢 and 🙂"}'.encode()))
    form = Request(Head("POST", "/", "", {}), b"MessageBody=%00")
    assert not json_protocol.has_plain_texts(form)
    for not_plain in (r'"\u0000"', r'"\b"', r'"\f"', r'"\ud800"', '"\ufffe"', '"\uffff"'):
        assert not json_protocol.has_plain_texts(asked(not_plain.encode()))


@pytest.mark.parametrize("code", [*range(32)])
def test_controls_stand_in_json_only_as_escapes(code: int) -> None:
    assert read(b'{"MessageBody": "a%cb"}' % code) is None


@given(st.text(st.one_of(st.characters(max_codepoint=300), st.characters()), max_size=130))
@settings(max_examples=500)
def test_ids_of_groups_and_messages(text: str) -> None:
    known = re.fullmatch(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}", text)
    assert is_id(text) is (known is not None)


def test_every_character_of_an_id_and_its_length() -> None:
    visible = {chr(code) for code in range(0x110000) if is_id(chr(code))}
    assert visible == {chr(code) for code in range(0x21, 0x7F)}
    assert is_id("x" * 128)
    assert not is_id("x" * 129)


def refusal(entries: list[Any]) -> str | None:
    try:
        check_entries(entries, "Entry")
    except SqsError as error:
        return error.kind.shape
    return None


def expected(ids: list[str | None]) -> str | None:
    """Return what is wrong with the ids of a batch, looked at one by one."""
    seen = set()
    for one in ids:
        if one is None:
            return "MissingRequiredParameterException"
        if not re.fullmatch("[A-Za-z0-9_-]{1,80}", one):
            return "InvalidBatchEntryId"
        if one in seen:
            return "BatchEntryIdsNotDistinct"
        seen.add(one)
    return None


ids = st.one_of(st.none(), st.text("ab-_9\n .é", max_size=3), st.just("x" * 80), st.just("x" * 81))


@given(st.lists(ids, min_size=1, max_size=10))
@settings(max_examples=500)
def test_ids_of_entries(given_ids: list[str | None]) -> None:
    assert refusal([SendEntry(id=one) for one in given_ids]) == expected(given_ids)


def test_an_id_of_two_lines_is_none() -> None:
    assert refusal([SendEntry(id="a\nb")]) == "InvalidBatchEntryId"
    assert refusal([SendEntry(id="a"), SendEntry(id="b\nc")]) == "InvalidBatchEntryId"
    assert refusal([SendEntry(id="a\n")]) == "InvalidBatchEntryId"
