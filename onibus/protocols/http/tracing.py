"""Trace context: the request that a message comes from, for tracing across programs.

Senders put W3C's `traceparent` (or `Diagnostic-Id`, its older name in Azure's libraries) in the
properties of a message, which the bus keeps like all properties. If a client sends it only as a
header of its request, the header is copied to messages that have neither property.
"""

from __future__ import annotations

import re

from onibus.api.messages import MessageIn
from onibus.protocols.http.messages import Request

TRACE_HEADER = "traceparent"
_NAMES = ("traceparent", "Diagnostic-Id")
#: Version, trace, parent, flags. Other values are ignored, as W3C requires.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-.{2,}")
_LENGTH_MAX = 256


def put_trace(request: Request, *messages: MessageIn) -> None:
    """Copy the trace context of a request to messages sent without one."""
    given = request.headers.get(TRACE_HEADER)
    if given is None or len(given) > _LENGTH_MAX or not _TRACEPARENT.fullmatch(given):
        return
    for message in messages:
        if not any(name in message.properties for name in _NAMES):
            message.properties = {**message.properties, TRACE_HEADER: given}
