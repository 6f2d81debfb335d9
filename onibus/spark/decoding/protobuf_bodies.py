"""Protobuf bodies: messages of one type of a descriptor set.

`protoc --include_imports --descriptor_set_out=orders.desc orders.proto` makes the set. Messages are
structs, enums strings, repeated fields arrays and maps maps with keys as strings. uint64 is
DECIMAL(20,0). Timestamp is a timestamp, a wrapper its value, and Duration, Struct, Value, ListValue
and Any are strings with their JSON. So is a message type inside itself. Fields without a value are
null where Protobuf knows that they are absent; otherwise they have their defaults.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from onibus.core.errors import InvalidArgument
from onibus.extras import explained
from onibus.spark.decoding.fields import DEPTH_MAX, struct_of
from onibus.spark.decoding.values import UNREADABLE, Decoded, Problems, fitted, reader_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_UINT64 = pa.decimal128(20, 0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_JSON_TYPES = {
    f"google.protobuf.{name}" for name in ("Duration", "Struct", "Value", "ListValue", "Any")
}
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in (
        "Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes",
    )
}  # fmt: skip
#: Returns a value of Protobuf as a column takes it.
Convert = Callable[[Any], Any]


class ProtobufBodies:
    """Decodes messages of one type."""

    def __init__(self, descriptors: str, name: str) -> None:
        with explained():
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        try:
            told = descriptor_pb2.FileDescriptorSet.FromString(b64decode(descriptors))
            pool = descriptor_pool.DescriptorPool()
            for file in told.file:
                pool.Add(file)
            found = pool.FindMessageTypeByName(name)
            self._message = message_factory.GetMessageClass(found)
        except Exception as error:
            # Its errors have no common type.
            raise InvalidArgument(
                f"no Protobuf message {name!r} in the descriptor set: {str(error)[:300]}. Make the "
                "set with protoc --include_imports --descriptor_set_out"
            ) from None
        self.kind, self._convert = _Shape().message(found, ())
        self._read = reader_of(self.kind)

    def __call__(self, rows: pa.Table) -> Decoded:
        from google.protobuf.message import DecodeError

        problems, values = Problems(), []
        for at, body in enumerate(rows.column("body").to_pylist()):
            problems.begin(at)
            try:
                value = None if body is None else self._convert(self._message.FromString(body))
            except (DecodeError, *UNREADABLE) as error:
                value = problems.null(None, f"is not Protobuf of this type: {str(error)[:200]}")
            values.append(value)
        return fitted(values, self.kind, self._read, problems)


class _Shape:
    """Finds the Arrow types of message types, and how values are converted to them."""

    def message(self, found: Descriptor, around: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
        """Return a struct, or what stands for a message type that has its own meaning."""
        name = found.full_name
        if name == "google.protobuf.Timestamp":
            return pa.timestamp("us", "UTC"), _moment
        if name in _WRAPPERS:
            kind, convert = self._plain(found.fields_by_name["value"])
            return kind, lambda value: convert(value.value)
        if name in _JSON_TYPES or name in around or len(around) >= DEPTH_MAX or not found.fields:
            return pa.string(), _json
        inner = (*around, name)
        fields = {one.name: self._field(one, inner) for one in found.fields}
        kind = struct_of((one, kind) for one, (kind, _) in fields.items())
        reads = [(one.name, one.has_presence, fields[one.name][1]) for one in found.fields]

        def struct(value: Any) -> Any:
            return {
                name: None if presence and not value.HasField(name) else read(getattr(value, name))
                for name, presence, read in reads
            }

        return kind, struct

    def _field(
        self, field: FieldDescriptor, around: tuple[str, ...]
    ) -> tuple[pa.DataType, Convert]:
        kind_of = field.message_type
        if kind_of is not None and kind_of.GetOptions().map_entry:
            kind, convert = self._one(kind_of.fields_by_name["value"], around)
            return pa.map_(pa.string(), kind), lambda value: {
                _key(name): convert(one) for name, one in value.items()
            }
        kind, convert = self._one(field, around)
        if field.is_repeated:
            return pa.list_(kind), lambda value: [convert(one) for one in value]
        return kind, convert

    def _one(self, field: FieldDescriptor, around: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
        if field.message_type is not None:
            return self.message(field.message_type, around)
        return self._plain(field)

    def _plain(self, field: FieldDescriptor) -> tuple[pa.DataType, Convert]:
        if field.enum_type is not None:
            names = field.enum_type.values_by_number
            return pa.string(), lambda value: names[value].name if value in names else str(value)
        plain = {
            field.CPPTYPE_INT32: pa.int32(), field.CPPTYPE_INT64: pa.int64(),
            field.CPPTYPE_UINT32: pa.int64(), field.CPPTYPE_DOUBLE: pa.float64(),
            field.CPPTYPE_FLOAT: pa.float32(), field.CPPTYPE_BOOL: pa.bool_(),
        }  # fmt: skip
        if field.cpp_type == field.CPPTYPE_UINT64:
            return _UINT64, Decimal
        if field.cpp_type == field.CPPTYPE_STRING:
            is_bytes = field.type == field.TYPE_BYTES
            return (pa.binary() if is_bytes else pa.string()), _same
        return plain[field.cpp_type], _same


def _same(value: Any) -> Any:
    return value


def _key(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _json(value: Any) -> str:
    from google.protobuf import json_format

    try:
        return str(json_format.MessageToJson(value, indent=None, preserving_proto_field_name=True))
    except (json_format.Error, *UNREADABLE) as error:
        # An Any of a type that is not in the set, or a time outside of its range.
        return f"not JSON: {str(error)[:200]}"


def _moment(value: Any) -> Any:
    try:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
    except OverflowError:
        # A number is not a time: the column rejects it.
        return str(value.seconds)
