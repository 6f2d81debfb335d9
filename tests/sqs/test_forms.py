"""Forms are decoded by a short way; it reads what the library's own way reads."""

from __future__ import annotations

from urllib.parse import quote_from_bytes, unquote_to_bytes

from hypothesis import given
from hypothesis import strategies as some

from onibus.protocols.http.messages import Head, Request
from onibus.protocols.sqs.query_protocol import parameters

#: What has a meaning in percents, or in quoted-printable, which the short way goes through.
PIECES = [b"%41", b"%3d", b"=", b"==", b" ", b"\n", b"=\r\n", b"%0D%0A", b"%20", b"_", b"+", b"%2B"]
MORE = [b"%25", b"%", b"%4", b"%zz", b"\t", b"%C3%A9", b"\xc3\xa9", b"~", b"\x00", b"%00", b"a"]


def read(value: bytes) -> str:
    """Return a value as it is read from a form."""
    return parameters(Request(Head("POST", "/", "", {}), b"Name=" + value))["Name"]


@given(some.lists(some.sampled_from(PIECES + MORE), max_size=12).map(b"".join))
def test_whatever_stands_in_a_form_is_read_as_the_library_reads_it(value: bytes) -> None:
    data = unquote_to_bytes(value.replace(b"+", b" "))
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    assert read(value) == text


@given(some.text())
def test_every_text_comes_through_in_percents(text: str) -> None:
    assert read(quote_from_bytes(text.encode("utf-8", "replace"), safe="").encode()) == (
        text.encode("utf-8", "replace").decode()
    )
