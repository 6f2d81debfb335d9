"""Formats of bodies: as users name them, as a lake records them, and what decodes them."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from onibus.core.errors import InvalidArgument
from onibus.spark.decoding.avro_bodies import AvroBodies
from onibus.spark.decoding.cloud_events import CloudEvents
from onibus.spark.decoding.fields import parse_fields
from onibus.spark.decoding.json_bodies import JsonBodies
from onibus.spark.decoding.protobuf_bodies import ProtobufBodies
from onibus.spark.decoding.values import Decoded, Problems
from onibus.spark.delta_schema import arrow_type, schema_string

FORMATS = ("none", "text", "json", "avro", "protobuf", "cloudevents")


class BodyFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How the bodies of a lake are decoded."""

    format: str = "none"
    #: fields as Delta writes them, an Avro schema in JSON, or a descriptor set in base64
    schema: str = ""
    #: the Protobuf message
    type: str = ""
    #: fields are added as captures find them
    inferred: bool = False

    @property
    def fields(self) -> pa.StructType | None:
        """The fields of JSON bodies, or of the data of CloudEvents."""
        return arrow_type(json.loads(self.schema)) if self.schema else None


class Decoder(Protocol):
    """Decodes the bodies of rows."""

    kind: pa.DataType

    def __call__(self, rows: pa.Table) -> Decoded:
        """Return a column, and what could not be decoded; rows have the columns of the log."""


def body_format(body: str | None, schema: str | None, message: str | None) -> BodyFormat | None:
    """Return the format that a user names; None for the format of the lake."""
    if body is None:
        if schema is not None or message is not None:
            raise InvalidArgument("a schema needs the format of the bodies: add --body")
        return None
    word = body.strip().lower()
    if word not in FORMATS and " " in word and schema is None:
        word, schema = "json", body
    if word not in FORMATS:
        raise InvalidArgument(
            f"body format {body!r} is unknown: use one of {', '.join(FORMATS)}, or the fields of "
            "JSON bodies such as 'id INT, total DOUBLE'"
        )
    if message is not None and word != "protobuf":
        raise InvalidArgument("only Protobuf bodies have a message type: omit --type")
    found = _named(word, schema, message)
    # Reject a bad schema before anything is captured.
    decoder_of(found)
    return found


def _named(word: str, schema: str | None, message: str | None) -> BodyFormat:
    if word in ("none", "text"):
        if schema is not None:
            raise InvalidArgument(f"body format {word} has no schema: omit --schema")
        return BodyFormat(format=word)
    if word in ("json", "cloudevents"):
        if schema is None:
            return BodyFormat(format=word, inferred=word == "json")
        return json_format(word, parse_fields(schema))
    if schema is None:
        raise InvalidArgument(f"body format {word} needs a schema: name its file with --schema")
    if word == "avro":
        inline = schema.lstrip().startswith(("{", "[", '"'))
        text = schema if inline else _file(schema).decode("utf-8", "replace")
        return BodyFormat(format=word, schema=text)
    if message is None:
        raise InvalidArgument(
            "body format protobuf needs the message's name: add --type, such as --type shop.Order"
        )
    return BodyFormat(format=word, schema=b64encode(_file(schema)).decode(), type=message)


def json_format(word: str, fields: pa.StructType, *, inferred: bool = False) -> BodyFormat:
    """Return the format of JSON bodies, or of CloudEvents, with these fields."""
    schema = schema_string(fields) if fields.num_fields else ""
    return BodyFormat(format=word, schema=schema, inferred=inferred)


def _file(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"cannot read the schema {name!r}: {error.strerror}. Name an existing file"
        ) from None


def decoder_of(how: BodyFormat) -> Decoder | None:
    """Return what decodes bodies of a format; None if they stay as they are."""
    match how.format:
        case "text":
            return TextBodies()
        case "json":
            return None if how.fields is None else JsonBodies(how.fields)
        case "avro":
            return AvroBodies(how.schema)
        case "protobuf":
            return ProtobufBodies(how.schema, how.type)
        case "cloudevents":
            return CloudEvents(how.fields)
    return None


class TextBodies:
    """Decodes UTF-8."""

    kind = pa.string()

    def __call__(self, rows: pa.Table) -> Decoded:
        problems = Problems()
        bodies = rows.column("body")
        try:
            return Decoded(bodies.cast(pa.string()).combine_chunks(), [])
        except pa.ArrowInvalid:
            values: list[Any] = []
            for at, body in enumerate(bodies.to_pylist()):
                problems.begin(at)
                try:
                    values.append(None if body is None else body.decode())
                except UnicodeDecodeError as error:
                    values.append(problems.null(None, f"is not UTF-8 at byte {error.start}"))
            return Decoded(pa.array(values, self.kind), problems.found)
