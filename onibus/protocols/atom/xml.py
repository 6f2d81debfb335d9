"""XML in and out. Input is bounded, and may have no document type and no entities."""

from __future__ import annotations

import re
from typing import Any, NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from onibus.core.errors import InvalidArgument

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

#: A description has a few kilobytes; a filter with many properties some more.
BODY_BYTES_MAX = 256 << 10
#: The deepest value, a property of a filter in a new subscription, is at depth nine.
DEPTH_MAX = 32
ELEMENT_COUNT_MAX = 10_000

_SPECIAL = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;"}
_TO_ESCAPE = re.compile('[&<>"\r]')
#: Characters that no document of XML 1.0 can have.
_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Reader:
    """Builds a tree of what the parser finds, within bounds."""

    def __init__(self) -> None:
        self._tree = TreeBuilder()
        self._depth = 0
        self._count = 0

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._count += 1
        if self._depth > DEPTH_MAX or self._count > ELEMENT_COUNT_MAX:
            raise InvalidArgument("the body is nested too deep, or has too many elements")
        given: dict[Any, Any] = {_name(key): value for key, value in attributes.items()}
        self._tree.start(_name(name), given)

    def end(self, name: str) -> None:
        self._depth -= 1
        self._tree.end(_name(name))

    def text(self, text: str) -> None:
        self._tree.data(text)

    def refuse(self, *ignored: object) -> NoReturn:
        raise InvalidArgument("the body has a document type: remove it")

    def close(self) -> Element:
        return self._tree.close()


def _name(found: str) -> str:
    return "{" + found if "}" in found else found


def parse(body: bytes) -> Element:
    """Return the root of a document, or reject it."""
    if len(body) > BODY_BYTES_MAX:
        raise InvalidArgument(f"the body is too large: at most {BODY_BYTES_MAX} bytes")
    parser, reader = expat.ParserCreate("utf-8", "}"), _Reader()
    parser.buffer_text = True
    parser.StartElementHandler = reader.begin
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = reader.refuse
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise InvalidArgument(f"the body is not XML: {error}") from None
    return reader.close()


def local(element: Element) -> str:
    """Return an element's name without its namespace."""
    return element.tag.rpartition("}")[2]


def type_of(element: Element) -> str:
    """Return which type an element says that it has, without a prefix."""
    return element.get(f"{{{INSTANCE}}}type", "").rpartition(":")[2]


def text_of(element: Element | None) -> str:
    """Return the text in an element; an empty string if it has none."""
    return "" if element is None else (element.text or "")


def escaped(text: str) -> str:
    """Return a string escaped for XML; characters that XML cannot have become U+FFFD."""
    return _TO_ESCAPE.sub(lambda match: _SPECIAL[match[0]], _NOT_IN_XML.sub("\ufffd", text))


def tag(name: str, inner: str, attributes: str = "") -> str:
    """Return an element around content that is already XML."""
    head = f"{name} {attributes}" if attributes else name
    return f"<{head}>{inner}</{name}>" if inner else f"<{head}/>"
