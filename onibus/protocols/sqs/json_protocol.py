"""AWS JSON 1.0: the action in the header X-Amz-Target, a JSON object as body."""

from __future__ import annotations

from typing import Any

import msgspec

from onibus.protocols.http.messages import Request, Response
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.errors import SqsError

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET = "x-amz-target"
REQUEST_ID = "x-amzn-RequestId"
_PREFIX = "AmazonSQS."

_encode = msgspec.json.Encoder().encode
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def speaks(request: Request) -> bool:
    """Tell whether a request is in this protocol."""
    return TARGET in request.headers


def action_of(request: Request) -> str:
    """Return the name of the action that is asked for."""
    target = request.headers[TARGET]
    if not target.startswith(_PREFIX):
        raise SqsError(errors.UNKNOWN_OPERATION, "X-Amz-Target names no action of AmazonSQS.")
    return target.removeprefix(_PREFIX)


def read(request: Request, kind: Any) -> Any:
    """Return the body as what the action takes."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(request.body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError(errors.MALFORMED, f"The body cannot be read: {error}") from None


def write(action: str, result: Any, request_id: str) -> Response:
    """Return the answer of an action."""
    return Response(
        200,
        b"{}" if result is None else _encode(result),
        CONTENT_TYPE,
        ((REQUEST_ID, request_id),),
    )


def write_error(error: SqsError, status: int, request_id: str) -> Response:
    """Return a refusal: its type for clients of today, its code for those of before."""
    kind = error.kind
    body = _encode({"__type": f"com.amazonaws.sqs#{kind.shape}", "message": error.text})
    fault = "Sender" if kind.sender_fault else "Receiver"
    headers = ((REQUEST_ID, request_id), ("x-amzn-query-error", f"{kind.code};{fault}"))
    return Response(status, body, CONTENT_TYPE, headers)
