"""AWS JSON 1.0: the action in the header X-Amz-Target, a JSON object as body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from onibus.protocols.http.messages import Request, Response
from onibus.protocols.json_values import SQS_VALUES_MAX, has_more_values
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.errors import SqsError

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET = "x-amz-target"
REQUEST_ID = "x-amzn-RequestId"
PREFIX = "AmazonSQS."

_encode = msgspec.json.Encoder().encode
_decode: dict[Any, Callable[[bytes], Any]] = {}


def speaks(request: Request) -> bool:
    """Return whether a request is in this protocol."""
    return TARGET in request.headers


def action_of(target: str) -> str:
    """Return the name of the requested action."""
    if not target.startswith(PREFIX):
        raise SqsError(errors.UNKNOWN_OPERATION, "X-Amz-Target names no action of AmazonSQS.")
    return target.removeprefix(PREFIX)


def read(body: bytes, kind: Any) -> Any:
    """Return a body as what the action takes."""
    decode = _decode.get(kind)
    if decode is None:
        decode = _decode[kind] = msgspec.json.Decoder(kind).decode
    if has_more_values(body, SQS_VALUES_MAX):
        raise SqsError(errors.MALFORMED, f"The body has more than {SQS_VALUES_MAX} values.")
    try:
        return decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError(errors.MALFORMED, f"The body cannot be read: {error}") from None


def has_plain_texts(request: Request) -> bool:
    """Return whether all strings of a decoded request have only characters that SQS carries.

    JSON has control characters only as escapes, and U+FFFE and U+FFFF begin with EF in UTF-8.
    """
    body = request.body
    return b"\\" not in body and b"\xef" not in body and TARGET in request.head.headers


def write(result: Any, request_id: str) -> Response:
    """Return the response of an action."""
    body = b"{}" if result is None else _encode(result)
    return Response(200, body, CONTENT_TYPE, ((REQUEST_ID, request_id),))


def escaped(text: str) -> bytes:
    """Return a string as it is written within a JSON string."""
    return _encode(text)[1:-1]


def write_error(error: SqsError, status: int, request_id: str) -> Response:
    """Return an error response: its type for current clients, its code for older ones."""
    kind = error.kind
    body = _encode({"__type": f"com.amazonaws.sqs#{kind.shape}", "message": error.text})
    fault = "Sender" if kind.sender_fault else "Receiver"
    headers = ((REQUEST_ID, request_id), ("x-amzn-query-error", f"{kind.code};{fault}"))
    return Response(status, body, CONTENT_TYPE, headers)
