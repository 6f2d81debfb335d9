"""HTTP requests from other requests: heads and bodies are changed so that most stay readable.

A body is changed as what it is: JSON as a tree, a form as pairs, XML as tags and strings. All that
is drawn comes from one `random.Random`: the same seed makes the same inputs.
"""

from __future__ import annotations

import gzip
import json
import re
from random import Random
from typing import Any, NamedTuple

BYTES_MAX = 16_384

_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "CONNECT", "x")
_NAMES = (
    *("host", "content-length", "transfer-encoding", "content-type", "content-encoding", "accept"),
    *("authorization", "expect", "connection", "upgrade", "origin", "if-match", "traceparent"),
    *("x-amz-target", "x-amz-date", "x-amz-content-sha256", "range", "te", "trailer", "x"),
)
_VALUES = (
    *("", "0", "-1", "5", "99999999999999999999", "chunked", "gzip", "identity", "br", "close"),
    *("keep-alive", "100-continue", "application/json", "application/x-www-form-urlencoded"),
    *("application/vnd.apache.arrow.stream", "*/*", "localhost", "evil.example", "Upgrade, close"),
    *("SharedAccessSignature sr=x&sig=y&se=1&skn=z", "x" * 3_000, "\x7f", "é", "a\tb", "test"),
    *("00-00000000000000000000000000000001-0000000000000001-01", "http://localhost", "websocket"),
)
#: Parts of paths and queries.
_PARTS = (
    *(
        "v1",
        "entities",
        "queues",
        "topics",
        "subscriptions",
        "rules",
        "q",
        "s",
        "t",
        "p",
        "u",
        "f.fifo",
    ),
    *(
        "%2F",
        "t%2Fsubscriptions%2Fu",
        "%00",
        "%ff",
        "%",
        "..",
        "",
        "$Resources",
        "$DeadLetterQueue",
    ),
    *("messages", "batch", "staged", "receive", "claims", "log", "x" * 300, "0", "-1", "٣", "é"),
    *("api-version=2021-05", "Action=ListQueues", "start=1", "limit=99999999", "partition=0"),
)
_ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**53,
        2**63 - 1,
        2**63,
        2**64,
        10**400,
        1.5,
        -0.0,
        1e308,
    ),
    *("", "a", "q", "0", "\0", "\ud800", "\U0001f600", "x" * 200, "x" * 5_000, "n = 1", "AAEC"),
    *("a LIKE '%" + "a%" * 50 + "'", "(" * 64 + "1" + ")" * 64, "P1D", "2026-01-01T00:00:00Z"),
    *(
        [],
        {},
        [[]],
        [None],
        {"": ""},
        {"k": {"k": []}},
        ["x"] * 50,
        {"binary": "AAEC"},
        {"time": "x"},
    ),
)
_TAGS = re.compile(r"<[^>]*>|[^<]+")


class Request(NamedTuple):
    """A request as it is written."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def bytes(self, *, told: bool = True) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if told and self.body:
            lines.append(f"content-length: {len(self.body)}")
        return "\r\n".join((*lines, "", "")).encode("utf-8", "replace") + self.body


def read(data: bytes) -> Request | None:
    """Return the request that a stream begins with, if it can be read; its length is left out."""
    head, found, body = data.partition(b"\r\n\r\n")
    line, *lines = head.decode("utf-8", "replace").split("\r\n")
    words = line.split(" ")
    if not found or len(words) != 3:
        return None
    headers = [(name, value) for name, _, value in (one.partition(": ") for one in lines) if name]
    kept = [header for header in headers if header[0].lower() != "content-length"]
    return Request(words[0], words[1], kept, body)


class RequestMutator:
    """Makes streams of requests."""

    def __init__(self, random: Random, corpus: list[bytes]) -> None:
        self.random = random
        self._corpus = corpus
        self._values: list[Any] = list(_ODD)
        for known in corpus:
            found = read(known)
            if found is not None and found.body[:1] == b"{":
                self._learn(_json(found.body))

    def _learn(self, value: Any) -> None:
        self._values.append(value)
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, (dict, list)):
            for one in inner:
                self._learn(one)

    def mutate(self, data: bytes) -> bytes:
        """Return another stream."""
        for _ in range(self.random.choice((1, 1, 1, 2, 2, 3, 4))):
            data = self._change(data)
        return data[:BYTES_MAX]

    def _change(self, data: bytes) -> bytes:
        random = self.random
        request = read(data)
        choice = random.random()
        if request is None or choice < 0.08:
            return self._bytes(data)
        if choice < 0.13:
            return data + random.choice(self._corpus)
        if choice < 0.2:
            request = request._replace(method=random.choice(_METHODS))
        elif choice < 0.36:
            request = request._replace(target=self._target(request.target))
        elif choice < 0.5:
            self._change_headers(request.headers)
        elif choice < 0.53:
            return self._chunked(request)
        elif choice < 0.55:
            headers = [*request.headers, ("content-encoding", "gzip")]
            body = gzip.compress(request.body, 1, mtime=0)
            request = request._replace(headers=headers, body=body)
        elif request.body:
            request = request._replace(body=self._body(request.body))
        else:
            other = read(random.choice(self._corpus))
            request = request._replace(body=b"{}" if other is None else other.body)
        return request.bytes(told=random.random() > 0.01)

    def _target(self, target: str) -> str:
        random = self.random
        path, mark, query = target.partition("?")
        part = random.choice(_PARTS)
        if query and random.random() < 0.5:
            pairs = query.split("&")
            self._change_list(pairs, part if random.random() < 0.5 else f"{part}=1")
            return f"{path}{mark}{'&'.join(pairs)}"
        if random.random() < 0.1:
            return f"{path}?{part}"
        parts = path.split("/")
        self._change_list(parts, part)
        return f"{'/'.join(parts)}{mark}{query}"

    def _change_headers(self, headers: list[tuple[str, str]]) -> None:
        random = self.random
        name, value = random.choice(_NAMES), random.choice(_VALUES)
        choice = random.random()
        if headers and choice < 0.6:
            at = random.randrange(len(headers))
            known, old = headers[at]
            headers[at] = (known, value if choice < 0.25 else self._text(old))
        else:
            self._change_list(headers, (name, value))

    def _text(self, text: str) -> str:
        """Change a part of a string: a word of it, or a character."""
        random = self.random
        words = re.split(r"([,;=&/ ])", text)
        at = random.randrange(len(words))
        if random.random() < 0.6:
            words[at] = random.choice((*_VALUES, "9" * 5_000, "%", "%2", "%zz", words[at] * 2, "="))
        else:
            cut = random.randrange(len(words[at]) + 1)
            words[at] = words[at][:cut] + random.choice("0a=%;,&/ é~") + words[at][cut + 1 :]
        return "".join(words)

    def _change_list(self, items: list[Any], another: Any) -> None:
        random = self.random
        choice = random.random()
        at = random.randrange(len(items) + 1)
        if choice < 0.4 or not items:
            items.insert(at, another)
            return
        at = min(at, len(items) - 1)
        if choice < 0.6:
            items[at] = another
        elif choice < 0.75:
            del items[at]
        elif choice < 0.9:
            items.append(items[at])
        else:
            items.insert(0, items.pop(at))

    def _chunked(self, request: Request) -> bytes:
        random = self.random
        head = Request(
            request.method,
            request.target,
            [*request.headers, ("transfer-encoding", "chunked")],
            b"",
        ).bytes()
        body, pieces = request.body, []
        while body:
            size = random.randrange(1, len(body) + 1)
            pieces.append(b"%x\r\n%b\r\n" % (size, body[:size]))
            body = body[size:]
        if random.random() < 0.2:
            pieces.append(
                random.choice((b"x\r\n", b"-1\r\n", b"ffffffffffffffff\r\n", b"5;a=b\r\nab"))
            )
        return head + b"".join(pieces) + b"0\r\n\r\n"

    # Bodies

    def _body(self, body: bytes) -> bytes:
        random = self.random
        if random.random() < 0.1:
            return self._bytes(body)
        if body[:1] in (b"{", b"["):
            value = _json(body)
            if value is not None:
                return json.dumps(self._json(value)).encode()
        if body[:1] == b"<":
            return self._xml(body)
        pairs = body.split(b"&")
        if len(pairs) > 1:
            part = random.choice(_PARTS).encode()
            self._change_list(pairs, random.choice((part, part + b"=x", b"Attribute.1.Name=x")))
            return b"&".join(pairs)
        return self._bytes(body)

    def _json(self, value: Any, depth: int = 0) -> Any:
        random = self.random
        if isinstance(value, dict) and value and depth < 12 and random.random() < 0.85:
            value = dict(value)
            key = random.choice(list(value))
            choice = random.random()
            if choice < 0.1:
                del value[key]
            elif choice < 0.15:
                value[random.choice(("", "x", "\0", key + "x", key.lower()))] = value[key]
            else:
                value[key] = self._json(value[key], depth + 1)
            return value
        if isinstance(value, list) and depth < 12 and random.random() < 0.8:
            value = list(value)
            if value and random.random() < 0.6:
                at = random.randrange(len(value))
                value[at] = self._json(value[at], depth + 1)
            else:
                self._change_list(value, random.choice(self._values))
            return value
        if random.random() < 0.02:
            for _ in range(random.choice((5, 40, 400))):
                value = [value]
            return value
        return random.choice(self._values)

    def _xml(self, body: bytes) -> bytes:
        random = self.random
        parts = _TAGS.findall(body.decode("utf-8", "replace"))
        at = random.randrange(len(parts)) if parts else 0
        choice = random.random()
        if not parts or choice < 0.05:
            parts.insert(
                0, random.choice(('<!DOCTYPE a [<!ENTITY b "c">]>', "<?xml version='1.1'?>"))
            )
        elif choice < 0.15:
            parts[at] = parts[at] * random.choice((2, 3, 40))
        elif not parts[at].startswith("<"):
            odd = random.choice(
                (*_VALUES, "&b;", "&#0;", "&#x10FFFF;", "]]>", "PT-1S", "P9999999999D")
            )
            parts[at] = odd.replace("<", "")
        elif choice < 0.4:
            del parts[at]
        elif choice < 0.6:
            parts.insert(at, parts[random.randrange(len(parts))])
        elif choice < 0.8:
            parts[at] = parts[at].replace(random.choice(("'", '"', "=", ":", "x", "/")), "")
        else:
            parts.insert(
                at, random.choice(("<![CDATA[x]]>", "<!-- -->", "<a:b/>", "<a b='1' b='2'/>"))
            )
        return "".join(parts).encode("utf-8", "replace")

    # Bytes

    def _bytes(self, data: bytes) -> bytes:
        """Change bytes, whatever they mean."""
        random = self.random
        content = bytearray(data)
        at = random.randrange(len(content) + 1)
        choice = random.randrange(6)
        if choice == 0 or at == len(content):
            content[at:at] = random.choice(
                (b"\r\n", b"\0", b" ", b":", b"\xff", b"\r", b"\n", b"%")
            )
        elif choice == 1:
            del content[at : at + random.choice((1, 1, 2, 8))]
        elif choice == 2:
            del content[at:]
        elif choice == 3:
            content[at] ^= 1 << random.randrange(8)
        elif choice == 4:
            content[at] = random.choice((0, 0x0A, 0x0D, 0x20, 0x7F, 0x80, 0xFF))
        else:
            content[at:at] = random.randbytes(random.choice((1, 2, 4)))
        return bytes(content)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
