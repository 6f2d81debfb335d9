"""The head of an answer, as bytes."""

from __future__ import annotations

from onibus.protocols.http.date import date_line
from onibus.protocols.http.messages import REASONS, Response


def head_of(
    response: Response, length: int | None, *, chunked: bool, last: bool, kept: bool
) -> bytes:
    """Return the status and all headers of an answer.

    `last`: the connection ends with it. `kept`: it goes on, and the client is so old that it has to
    be told.
    """
    status = response.status
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}"]
    if chunked:
        lines.append("transfer-encoding: chunked")
    elif length is not None and response.stream is None and status != 204:
        lines.append(f"content-length: {length}")
    if response.body or response.stream is not None:
        lines.append(f"content-type: {response.content_type}")
    lines += [f"{name}: {value}" for name, value in response.headers]
    if last:
        lines.append("connection: close")
    elif kept:
        lines.append("connection: keep-alive")
    return "\r\n".join((*lines, "")).encode("latin-1") + date_line() + b"\r\n"
