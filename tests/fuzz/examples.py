"""Requests that mean something: one or more for every call of every protocol over HTTP.

They are made from the types by which the server itself reads bodies, so that no call is left out.
"""

from __future__ import annotations

import gzip
import json
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import inspect

from onibus.api.wire import ARROW
from onibus.protocols.atom.xml import ATOM, INSTANCE, SCHEMA, SERVICE_BUS
from onibus.protocols.http.route import Route
from onibus.protocols.http.routes import router
from onibus.protocols.sqs import query_protocol
from onibus.protocols.sqs.actions.table import ACTIONS
from onibus.protocols.sqs.call import Action
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from onibus.security.sas import make_token
from tests.fuzz.requests import Request
from tests.fuzz.service import HANDLE, HELD, SESSION

_FOREVER_S = 1 << 40
#: Good for everything on the server that asks for credentials.
TOKEN = make_token("sb://localhost/", ROOT_NAME, DEVELOPMENT_KEY, _FOREVER_S)

#: Values by the names of fields, where any would mean nothing.
_NAMED: dict[str, Any] = {
    "entity": "q",
    "tokens": [HELD],
    "token": HELD,
    "session_id": "a",
    "message_id": "0",
    "sql": "n = 1",
    "numbers": [1],
    "QueueUrl": "http://localhost/000000000000/q",
    "QueueName": "made",
    "ReceiptHandle": HANDLE,
    "MessageBody": "text",
    "MessageGroupId": "g",
    "MessageDeduplicationId": "d",
    "AttributeNames": ["All"],
    "MessageAttributeNames": ["All"],
    "Attributes": {"VisibilityTimeout": "30"},
    "SourceArn": "arn:aws:sqs:us-east-1:000000000000:q",
    "DataType": "String",
    "StringValue": "text",
    "Id": "one",
    "wait_ms": 5,
    "WaitTimeSeconds": 1,
    "MaxNumberOfMessages": 2,
    "producer": "p",
    "reader": "r",
    "body_base64": "AAEC",
    "start": 1,
    "NextToken": "",
    "name": "made",
    "filter": {"type": "sql", "expression": "n = 1"},
    "availability": "available",
}
#: Optional fields without which a request means little: those of SQS are all optional.
_ALWAYS = {
    *("QueueUrl", "QueueName", "ReceiptHandle", "MessageBody", "Entries", "Id", "body"),
    *("SourceArn", "TagKeys", "Tags", "Label", "AWSAccountIds", "Actions", "TaskHandle"),
}
_DEPTH = 5
#: Fields that exclude another one of the same struct.
_INSTEAD = ("body_base64", "body_contains_base64", "state_base64", "forward_to")


def examples(kind: Any) -> list[dict[str, Any]]:
    """Return values of a struct, as they are in JSON: what it needs, and everything it may have."""
    info = inspect.type_info(kind)
    found = [_example(info, "", 0, every) for every in (False, True)]
    return found[:1] if found[0] == found[1] else found


def _example(info: Any, name: str, depth: int, every: bool) -> Any:
    if name in _NAMED:
        return _NAMED[name]
    if isinstance(info, inspect.StructType):
        return _struct(info, depth, every)
    if isinstance(info, inspect.UnionType):
        chosen = [one for one in info.types if not isinstance(one, inspect.NoneType)]
        return _example(chosen[0], name, depth, every)
    if isinstance(info, (inspect.ListType, inspect.VarTupleType)):
        least = info.min_length or 1
        return [_example(info.item_type, "", depth + 1, every)] * least
    if isinstance(info, inspect.DictType):
        return {"k": _example(info.value_type, "", depth + 1, every)}
    if isinstance(info, inspect.IntType):
        return info.ge or 1
    if isinstance(info, inspect.LiteralType):
        return info.values[0]
    if isinstance(info, inspect.EnumType):
        return next(iter(info.cls)).value
    simple: dict[Any, Any] = {
        inspect.BoolType: True,
        inspect.FloatType: 1.5,
        inspect.BytesType: "AAEC",
    }
    return simple.get(type(info), "text")


def _struct(info: inspect.StructType, depth: int, every: bool) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if info.tag_field is not None:
        made[info.tag_field] = info.tag
    if {"session_id", "token"} <= {field.name for field in info.fields}:
        made["token"] = SESSION
    for field in info.fields:
        if field.encode_name in made:
            continue
        if field.required or field.encode_name in _ALWAYS:
            made[field.encode_name] = _example(field.type, field.encode_name, depth + 1, every)
        elif every and depth < _DEPTH and field.encode_name not in _INSTEAD:
            usual = field.default
            if usual is None or not isinstance(usual, (int, str)):
                usual = _example(field.type, field.encode_name, depth + 1, every)
            made[field.encode_name] = usual
    return made


def native() -> list[bytes]:
    """Return a request for every route of the native API."""
    return [request.bytes() for route in router().routes for request in _asked(route)]


def _asked(route: Route) -> list[Request]:
    path = route.path
    for name, value in (("number", "1"), ("partition", "0"), ("reader", "r"), ("producer", "p")):
        path = path.replace(f"{{{name}}}", value)
    entities = ("q", "s", "f.fifo", "t", "t/subscriptions/u") if "{entity}" in path else ("q",)
    queries = [""]
    if route.query is not None:
        queries = ["?" + urlencode(one) for one in examples(route.query)]
    bodies = [b""]
    if route.takes is not None:
        bodies = [json.dumps(one).encode() for one in examples(route.takes)]
    headers = [("host", "localhost"), ("authorization", TOKEN)]
    if route.takes is not None:
        headers.append(("content-type", "application/json"))
    if route.gives_arrow:
        headers.append(("accept", ARROW))
    found = []
    for entity in entities:
        target = path.replace("{entity}", quote(entity, safe=""))
        while "{" in target:
            target = target[: target.index("{")] + "t" + target[target.index("}") + 1 :]
        found += [
            Request(route.method, target + query, headers, body)
            for query in queries
            for body in bodies
        ]
    return found


def http() -> list[bytes]:
    """Return the same, and what only HTTP has: chunks, requests sent ahead, offers, coding."""
    ask = Request("GET", "/livez", [("host", "localhost")], b"")
    body = json.dumps({"body": "text", "message_id": "m", "properties": {"n": 1}}).encode()
    send = Request("POST", "/v1/entities/q/messages", [("host", "localhost")], body)
    packed = Request(
        "POST",
        "/v1/entities/q/messages",
        [("host", "localhost"), ("content-encoding", "gzip")],
        gzip.compress(body, mtime=0),
    )
    chunked = (
        b"POST /v1/entities/q/messages HTTP/1.1\r\nhost: localhost\r\n"
        b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\nx-more: y\r\n\r\n" % (len(body), body)
    )
    upgrade = (
        b"GET /$servicebus/websocket HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n"
        b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: AAAAAAAAAAAAAAAA\r\nsec-websocket-protocol: AMQPWSB10\r\n\r\n"
        b"\x82\x88\0\0\0\0AMQP\x03\x01\x00\x00"
    )
    expects = send.bytes().replace(b"host", b"expect: 100-continue\r\nhost")
    return [
        *native(),
        ask.bytes() * 3,
        ask.bytes() + send.bytes() + packed.bytes() + ask.bytes(),
        ask.bytes().replace(b"HTTP/1.1", b"HTTP/1.0"),
        ask.bytes().replace(b"GET", b"HEAD"),
        *(packed.bytes(), chunked, chunked * 2, upgrade, expects),
        b"AMQP\x03\x01\x00\x00" + bytes(8),
    ]


def sqs() -> list[bytes]:
    """Return a request for every action, in both protocols."""
    found = []
    for name, action in ACTIONS.items():
        found += [request.bytes() for request in _sqs_asked(name, action)]
    return found


def _sqs_asked(name: str, action: Action) -> list[Request]:
    signature = (
        "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/sqs/aws4_request, "
        "SignedHeaders=host;x-amz-date, Signature=" + "0" * 64
    )
    date = ("x-amz-date", "20260101T000000Z")
    shared = [("host", "localhost"), ("authorization", signature), date]
    target = ("x-amz-target", f"AmazonSQS.{name}")
    kind = ("content-type", "application/x-amz-json-1.0")
    form = ("content-type", "application/x-www-form-urlencoded")
    found = []
    for whole in examples(action.takes):
        found.append(Request("POST", "/", [*shared, target, kind], json.dumps(whole).encode()))
        text = urlencode({"Action": name, **_flat(name, whole)})
        found.append(Request("POST", "/000000000000/q", [*shared, form], text.encode()))
    presigned = f"/000000000000/q?{text}&X-Amz-Expires=60&X-Amz-Signature=0"
    return [*found, Request("GET", presigned, shared[:1], b"")]


#: Lists and maps by the names that the query protocol has for them.
_FLAT = {member: name for name, member in query_protocol._LISTS.items()}
_FLAT_MAPS = {
    member: (name, key, value) for name, (member, key, value) in query_protocol._MAPS.items()
}


def _flat(action: str, members: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return members as the query protocol names them."""
    found: dict[str, str] = {}
    for member, value in members.items():
        if isinstance(value, list):
            name = f"{action}RequestEntry" if member == "Entries" else _FLAT[member]
            for number, one in enumerate(value, 1):
                place = f"{prefix}{name}.{number}"
                found |= _flat(action, one, place + ".") if isinstance(one, dict) else {place: one}
        elif isinstance(value, dict) and member.capitalize() in _FLAT_MAPS:
            name, key, content = _FLAT_MAPS[member.capitalize()]
            for number, (one, inner) in enumerate(value.items(), 1):
                place = f"{prefix}{name}.{number}."
                found[place + key] = one
                place += content
                found |= (
                    _flat(action, inner, place + ".") if isinstance(inner, dict) else {place: inner}
                )
        elif isinstance(value, dict):
            found |= _flat(action, value, f"{prefix}{member}.")
        else:
            found[prefix + member] = str(value)
    return found


_DESCRIPTIONS = {
    "QueueDescription": "<LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>1024"
    "</MaxSizeInMegabytes><RequiresDuplicateDetection>true</RequiresDuplicateDetection>"
    "<RequiresSession>false</RequiresSession><DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S"
    "</DefaultMessageTimeToLive><MaxDeliveryCount>10</MaxDeliveryCount><Status>Active</Status>"
    "<AuthorizationRules><AuthorizationRule i:type='SharedAccessAuthorizationRule'><ClaimType>"
    "SharedAccessKey</ClaimType><Rights><AccessRights>Send</AccessRights></Rights><KeyName>k"
    "</KeyName><PrimaryKey>0123456789abcdef</PrimaryKey></AuthorizationRule></AuthorizationRules>"
    "<UserMetadata>x</UserMetadata><ForwardTo>q</ForwardTo>",
    "TopicDescription": "<EnablePartitioning>true</EnablePartitioning><SupportOrdering>true"
    "</SupportOrdering><AutoDeleteOnIdle>PT5M</AutoDeleteOnIdle>",
    "SubscriptionDescription": "<RequiresSession>true</RequiresSession><DefaultRuleDescription>"
    "<Filter i:type='SqlFilter'><SqlExpression>n = @p</SqlExpression><Parameters>"
    "<KeyValueOfstringanyType><Key>@p</Key><Value i:type='x:int' xmlns:x='{schema}'>1</Value>"
    "</KeyValueOfstringanyType></Parameters></Filter><Action i:type='EmptyRuleAction'/>"
    "<Name>$Default</Name></DefaultRuleDescription>",
    "RuleDescription": "<Filter i:type='CorrelationFilter'><CorrelationId>1</CorrelationId><Label>a"
    "</Label><Properties><KeyValueOfstringanyType><Key>k</Key><Value i:type='x:dateTime' "
    "xmlns:x='{schema}'>2026-01-01T00:00:00Z</Value></KeyValueOfstringanyType></Properties>"
    "</Filter><Action i:type='SqlRuleAction'><SqlExpression>SET n = 1</SqlExpression></Action>"
    "<Name>r</Name>",
}


def atom() -> list[bytes]:
    """Return requests for management: descriptions of each kind, and what is asked of paths."""
    paths = {
        "QueueDescription": "made",
        "TopicDescription": "madetoo",
        "SubscriptionDescription": "t/subscriptions/made",
        "RuleDescription": "t/subscriptions/u/rules/made",
    }
    found = []
    for kind, inner in _DESCRIPTIONS.items():
        names = f'xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}"'
        content = f"<{kind} {names}>{inner.replace('{schema}', SCHEMA)}</{kind}>"
        entry = f'<entry xmlns="{ATOM}"><content type="application/xml">{content}</content></entry>'
        found.append(_managed("PUT", paths[kind], entry))
        found.append(_managed("PUT", paths[kind], entry, ("if-match", "*")))
        found.append(_managed("GET", paths[kind]))
    for path in ("q", "t", "t/subscriptions/u", "t/subscriptions/u/rules/r", "$namespaceinfo"):
        found.append(_managed("GET", path))
        found.append(_managed("DELETE", path))
    lists = ("$Resources/queues", "$Resources/topics", "t/subscriptions", "t/subscriptions/u/rules")
    found += [_managed("GET", path + "?$skip=0&$top=10") for path in lists]
    return [request.bytes() for request in found]


def _managed(method: str, path: str, body: str = "", *more: tuple[str, str]) -> Request:
    joint = "&" if "?" in path else "?"
    headers = [("host", "localhost"), ("authorization", TOKEN), *more]
    return Request(method, f"/{path}{joint}api-version=2021-05", headers, body.encode())


def arrow() -> list[bytes]:
    """Return bodies of the routes that take Arrow."""
    from tests.fuzz.arrow_streams import seeds

    return seeds()
