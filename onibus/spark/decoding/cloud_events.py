"""CloudEvents in the structured and the binary mode, of version 1.0.

In the structured mode the body is a JSON object, and the content type begins with
`application/cloudevents`. In the binary mode the body is the data. The attributes are properties
that begin with `cloudEvents:` or `cloudEvents_` (AMQP) or with `ce-` or `ce_` (HTTP, Kafka).

The data is a string where it is text or JSON, otherwise bytes; or the fields that were given.
Attributes that the specification does not name are extensions.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa

from onibus.spark.decoding.json_bodies import JsonBodies, untyped
from onibus.spark.decoding.values import (
    UNREADABLE,
    Decoded,
    Problems,
    Unreadable,
    json_text,
)

_STRUCTURED, _BATCH = "application/cloudevents", "application/cloudevents-batch"
_PREFIX = re.compile(r"(?i:cloudevents[:_]|ce[-_])")
_REQUIRED = ("id", "source", "specversion", "type")
_TEXTS = (*_REQUIRED, "subject", "datacontenttype", "dataschema")
_JSON_TYPE = re.compile(r"(?i)[^;]*[/+]json\b")


class CloudEvents:
    """Decodes CloudEvents."""

    def __init__(self, data: pa.StructType | None = None) -> None:
        self._data = None if data is None else JsonBodies(data)
        self.kind = pa.struct(
            [
                *((name, pa.string()) for name in _TEXTS),
                ("time", pa.timestamp("us", "UTC")),
                ("data", pa.string() if data is None else data),
                ("data_binary", pa.binary()),
                ("extensions", pa.map_(pa.string(), pa.string())),
            ]
        )

    def __call__(self, rows: pa.Table) -> Decoded:
        problems = Problems()
        values: list[Any] = []
        columns = [rows.column(name).to_pylist() for name in ("body", "content_type", "properties")]
        for at, (body, content_type, properties) in enumerate(zip(*columns, strict=True)):
            problems.begin(at)
            try:
                event = self._event(body or b"", content_type, dict(properties or ()))
            except Unreadable as error:
                values.append(problems.null(None, str(error)))
            else:
                values.append(self._read(event, problems))
        return Decoded(pa.array(values, self.kind), problems.found)

    def _event(
        self, body: bytes, content_type: str | None, properties: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the attributes of an event; its data is bytes, or a value of JSON."""
        told = (content_type or "").lower()
        if told.startswith(_BATCH):
            raise Unreadable("is a batch of CloudEvents: send one per message")
        if told.startswith(_STRUCTURED):
            event = untyped(body)
            if not isinstance(event, dict):
                raise Unreadable("is not a JSON object")
            return event
        event = {
            name[found.end() :].lower(): value
            for name, value in properties.items()
            if (found := _PREFIX.match(name))
        }
        if not event:
            raise Unreadable("is not a CloudEvent: its content type and properties name none")
        if content_type is not None:
            event.setdefault("datacontenttype", content_type)
        return {**event, "data": body}

    def _read(self, event: dict[str, Any], problems: Problems) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(one.name for one in self.kind)
        for name in _TEXTS:
            value = event.get(name)
            if value is None and name in _REQUIRED:
                problems.null(name, "is missing")
            elif value is not None:
                found[name] = _text(name, value, problems)
        found["time"] = _time(event.get("time"), problems)
        self._read_data(event, found, problems)
        more = event.keys() - {*_TEXTS, "time", "data", "data_base64"}
        found["extensions"] = [
            (name, _text(name, event[name], problems)) for name in sorted(more) if _fine(name)
        ] or None
        return found

    def _read_data(self, event: dict[str, Any], found: dict[str, Any], problems: Problems) -> None:
        data: Any = event.get("data")
        if (encoded := event.get("data_base64")) is not None:
            try:
                data = msgspec.convert(encoded, bytes)
            except UNREADABLE:
                problems.null("data_base64", "is not base64", encoded)
        if data is None:
            return
        if self._data is not None:
            content = data if isinstance(data, bytes) else msgspec.json.encode(data)
            inner = Problems()
            inner.begin(problems.row)
            found["data"] = self._data.rescued(content, inner)
            for one in inner.found:
                problems.found.append(one._replace(field=f"data.{one.field or ''}".rstrip(".")))
        elif isinstance(data, bytes):
            try:
                found["data"] = data.decode()
            except UnicodeDecodeError:
                found["data_binary"] = data
        else:
            is_text = isinstance(data, str) and not _JSON_TYPE.match(
                found["datacontenttype"] or "application/json"
            )
            found["data"] = _text("data", data if is_text else json_text(data), problems)


def _text(name: str, value: Any, problems: Problems) -> str | None:
    text = value if isinstance(value, str) else json_text(value)
    if _fine(text):
        return text
    problems.null(name, "is not valid Unicode")
    return None


def _fine(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _time(value: Any, problems: Problems) -> Any:
    if value is None:
        return None
    try:
        return msgspec.convert(value, datetime)
    except UNREADABLE:
        return problems.null("time", "is not a time in ISO 8601", value)
