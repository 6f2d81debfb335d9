"""The Query protocol: parameters of a form or a query string in, XML out, or JSON on request.

Lists are flat and numbered (`Entry.1.Id`, `Entry.2.Id`); numbers only say the order, from wherever
they begin. A queue is named by the path, or by QueueUrl.
"""

from __future__ import annotations

import re
from binascii import a2b_qp
from typing import Any
from urllib.parse import unquote_to_bytes
from xml.sax.saxutils import escape

import msgspec

from onibus.protocols.http.messages import Request, Response
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.errors import SqsError

CONTENT_TYPE = "text/xml"
_JSON = "application/json"
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
#: Parameters of one request; ten messages with ten attributes each have fewer than five hundred.
PARAMETERS_MAX = 2_000

#: Lists that come as their members' name: parameter → member.
_LISTS = {
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "SendMessageBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
    "TagKey": "TagKeys",
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
}
#: Maps that come as lists of pairs: parameter → member, and how key and value are called.
_MAPS = {
    "Attribute": ("Attributes", "Name", "Value"),
    "MessageAttribute": ("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name", "Value"),
    "Tag": ("Tags", "Key", "Value"),
}
#: Lists and maps that are sent as one empty parameter, by either name.
_EMPTY: dict[str, tuple[str, type]] = {
    **{name: (member, list) for name, member in _LISTS.items()},
    **{member: (member, list) for member in _LISTS.values()},
    **{name: (member, dict) for name, (member, _, _) in _MAPS.items()},
    **{member: (member, dict) for member, _, _ in _MAPS.values()},
}
#: Names of the members of a response: one of a list, or key and value of a map.
_ITEMS = {
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}
_PAIRS = {
    "Attributes": ("Attribute", "Name", "Value"),
    "MessageAttributes": ("MessageAttribute", "Name", "Value"),
    "Tags": ("Tag", "Key", "Value"),
}
#: Members that have another name in JSON.
_IN_JSON = {"QueueUrls": "queueUrls", "Messages": "messages"}
_NO_WSDL = " for this wsdl version."
#: A percent sign that does not begin an escape.
_BROKEN = re.compile(rb"%(?![0-9A-Fa-f]{2})")
#: Characters that XML cannot have, not even escaped.
_NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parameters(request: Request) -> dict[str, str]:
    """Return the parameters of query and body; of those that come twice, the last."""
    found: dict[str, str] = {}
    try:
        data = b"&".join([one for one in (request.query_text.encode(), request.body) if one])
        if data.count(b"&") >= PARAMETERS_MAX:
            raise ValueError("there are too many")
        for part in data.split(b"&"):
            if part:
                name, _, value = part.partition(b"=")
                found[_decoded(name)] = _decoded(value)
    except ValueError as error:
        raise SqsError(errors.MALFORMED, f"The parameters cannot be read: {error}") from None
    return found


def _decoded(data: bytes) -> str:
    """Return a part of a form as a string.

    To decode a megabyte of percent escapes one by one takes half a second, while all other clients
    wait. Quoted-printable differs only in its escape sign, and one call decodes it.
    """
    data = data.replace(b"+", b" ")
    if b"%" in data:
        if _BROKEN.search(data):
            data = unquote_to_bytes(data)
        else:
            data = a2b_qp(data.replace(b"=", b"=3D").replace(b"%", b"="))
    return data.decode()


def action_of(given: dict[str, str]) -> str:
    """Return the name of the requested action."""
    action = given.get("Action")
    if not action:
        raise SqsError(
            errors.MISSING_TOKEN if not given else errors.MISSING_PARAMETER,
            "The request must contain the parameter Action.",
        )
    return action


def read(given: dict[str, str], path: str, kind: Any) -> Any:
    """Return parameters as what the action takes."""
    tree: dict[str, Any] = {}
    for name, value in given.items():
        _put(tree, name.split("."), value)
    if "QueueUrl" not in tree and path.count("/") > 1:
        tree["QueueUrl"] = path
    members = _members(tree)
    if "Tags" in members:
        # CreateQueue has them in lower case.
        members["tags"] = members["Tags"]
    try:
        return msgspec.convert(members, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SqsError(errors.MALFORMED, f"The parameters cannot be read: {error}") from None


def _put(tree: dict[str, Any], path: list[str], value: str) -> None:
    if len(path) > 6:
        raise SqsError(errors.MALFORMED, "A parameter's name has too many parts.")
    for part in path[:-1]:
        inner = tree.setdefault(part, {})
        if not isinstance(inner, dict):
            raise SqsError(errors.MALFORMED, f"Parameter {part} is both a value and more.")
        tree = inner
    if isinstance(tree.get(path[-1]), dict):
        raise SqsError(errors.MALFORMED, f"Parameter {path[-1]} is both a value and more.")
    tree[path[-1]] = value


def _members(tree: dict[str, Any]) -> dict[str, Any]:
    """Return members by the names that JSON has, lists and maps put together."""
    members: dict[str, Any] = {}
    for name, value in tree.items():
        if value == "" and name in _EMPTY:
            member, kind = _EMPTY[name]
            members[member] = kind()
        elif name in _LISTS:
            items = _numbered(value)
            members[_LISTS[name]] = [
                _members(item) if isinstance(item, dict) else item for item in items
            ]
        elif name in _MAPS:
            member, key, content = _MAPS[name]
            members[member] = dict(_pair(name, item, key, content) for item in _numbered(value))
        else:
            members[name] = value
    return members


def _pair(name: str, item: Any, key: str, content: str) -> tuple[str, Any]:
    if not isinstance(item, dict) or not isinstance(item.get(key), str):
        raise SqsError(errors.MISSING_PARAMETER, f"{name} must have a {key}.")
    return item[key], item.get(content, "")


def _numbered(value: Any) -> list[Any]:
    if not isinstance(value, dict):
        return [value]
    if not all(one.isascii() and one.isdigit() and len(one) < 10 for one in value):
        # One pair without a number, as some hand-written clients send it.
        return [value]
    return [value[one] for one in sorted(value, key=int)]


def wants_json(request: Request) -> bool:
    """Return whether a client accepts JSON only, as integrations of API Gateway do."""
    return request.head.headers.get("accept", "").strip().lower() == _JSON


def write_json(action: str, result: Any, request_id: str) -> Response:
    """Return the response of an action in the JSON equivalent of the XML."""
    inner: dict[str, Any] = {}
    if result is not None:
        inner[f"{action}Result"] = _listed(msgspec.to_builtins(result))
    inner["ResponseMetadata"] = {"RequestId": request_id}
    return Response(200, msgspec.json.encode({f"{action}Response": inner}), _JSON)


def _listed(value: Any) -> Any:
    """Return members with their maps as lists of pairs."""
    if isinstance(value, list):
        return [_listed(one) for one in value]
    if not isinstance(value, dict):
        return value
    found: dict[Any, Any] = {}
    for name, inner in value.items():
        if name in _PAIRS and isinstance(inner, dict):
            _, key, content = _PAIRS[name]
            found[name] = [{key: one, content: _listed(it)} for one, it in inner.items()]
        else:
            found[_IN_JSON.get(name) or name] = _listed(inner)
    return found


def write_json_error(error: SqsError, status: int, request_id: str) -> Response:
    """Return an error response in JSON."""
    fault = "Sender" if error.kind.sender_fault else "Receiver"
    told = {"Code": error.kind.code, "Message": _text_of(error), "Type": fault}
    body = msgspec.json.encode({"Error": told, "RequestId": request_id})
    return Response(status, body, _JSON)


def write(action: str, result: Any, request_id: str) -> Response:
    """Return the response of an action."""
    inner = ""
    if result is not None:
        inner = f"<{action}Result>{_struct(msgspec.to_builtins(result), action)}</{action}Result>"
    return _response(
        200,
        f'<{action}Response xmlns="{NAMESPACE}">{inner}<ResponseMetadata>'
        f"<RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>",
    )


def write_error(error: SqsError, status: int, request_id: str) -> Response:
    """Return an error response."""
    text = _text_of(error)
    fault = "Sender" if error.kind.sender_fault else "Receiver"
    return _response(
        status,
        f'<ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{fault}</Type>'
        f"<Code>{error.kind.code}</Code><Message>{_text(text)}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>",
    )


def _text_of(error: SqsError) -> str:
    if error.kind is errors.QUEUE_DOES_NOT_EXIST:
        return error.text.removesuffix(".") + _NO_WSDL
    return error.text


def no_operation() -> Response:
    """Return what a GET gets that names no action, such as that of a browser."""
    return Response(404, b"<UnknownOperationException/>\n", CONTENT_TYPE)


def names_no_action(request: Request) -> bool:
    """Return whether a GET has the path of a queue URL and no action."""
    return request.head.path != "/" and "Action" not in request.head.query_text


def _response(status: int, xml: str) -> Response:
    body = b'<?xml version="1.0"?>' + xml.encode("utf-8", "replace")
    return Response(status, body, CONTENT_TYPE)


def _struct(members: dict[str, Any], action: str) -> str:
    return "".join([_member(name, value, action) for name, value in members.items()])


def _member(name: str, value: Any, action: str) -> str:
    if isinstance(value, list):
        item = _ITEMS.get(name) or f"{action}ResultEntry"
        return "".join([_element(item, one, action) for one in value])
    if isinstance(value, dict) and name in _PAIRS:
        item, key, content = _PAIRS[name]
        return "".join(
            [
                f"<{item}><{key}>{_text(one)}</{key}>{_element(content, inner, action)}</{item}>"
                for one, inner in value.items()
            ]
        )
    return _element(name, value, action)


def _element(name: str, value: Any, action: str) -> str:
    if isinstance(value, dict):
        return f"<{name}>{_struct(value, action)}</{name}>"
    if isinstance(value, bool):
        value = "true" if value else "false"
    return f"<{name}>{_text(str(value))}</{name}>"


def escaped(text: str) -> bytes:
    """Return a string as it is written within an XML element."""
    return _text(text).encode("utf-8", "replace")


def _text(text: str) -> str:
    # One such character makes the whole response unreadable, so no client could receive the
    # message.
    text = _NOT_IN_XML.sub("\ufffd", text)
    # A bare carriage return would be read as a line feed.
    return escape(text, {"\r": "&#xD;"})
