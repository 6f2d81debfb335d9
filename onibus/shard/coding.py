"""Traffic between a gateway and a shard: commands, results and errors as bytes.

A command is the MessagePack array [its name, its fields], and so is an error. A result is the
MessagePack of its fields: the command says what they are. A message travels as the row that stores
keep (core/message.py), and columns travel as Arrow.

Bytes that are not what `encode_command` and its like return raise `Malformed` and nothing else.
Decoding takes memory in proportion to the bytes, which are at most `TRAFFIC_BYTES_MAX`. Two
commands do not travel, because a plan is an object of the shard's own process: see `LOCAL`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar, get_args

import msgspec
import numpy as np

from onibus.core import commands as c
from onibus.core import errors
from onibus.core.errors import Damaged, OnibusError, Refused
from onibus.core.handlers import HANDLERS
from onibus.core.inspection import Filter
from onibus.core.message import Sent, decode
from onibus.core.path.admit import Prepared
from onibus.core.rules.rule import Rule, from_plain, plain_value, rich_value, to_plain
from onibus.core.settings import QueueSettings, SubscriptionSettings, TopicSettings
from onibus.core.staged import Part, decode_part, encode_part

T = TypeVar("T")
#: Reads a block that was staged in the shard's store.
ReadStaged = Callable[[int], bytes]

#: Larger traffic is rejected: more than the largest batch of messages has.
TRAFFIC_BYTES_MAX = 1 << 30

#: Types that MessagePack has and JSON has not.
_KEPT = (bytes, datetime, timedelta)

#: Commands on a plan, which only the shard's process has.
LOCAL: frozenset[type] = frozenset({c.PlanFanOut, c.RunPlan})


class Malformed(Exception):
    """Bytes that are not traffic between a gateway and a shard."""


def no_blocks(block: int) -> bytes:
    """Reject a reference to a staged block, where no store can read it."""
    raise Damaged(f"staged block {block} cannot be read here")


# Batches


class _Batch(msgspec.Struct, array_like=True):
    """Admitted messages: rows, or columns and the blocks that have them."""

    #: the row, identities, time to live, key and delay of each
    rows: list[tuple[msgspec.Raw, list[bytes], int | None, str | None, int | None]]
    columns: bytes | None = None


class _Stored(msgspec.Struct, array_like=True):
    """The results of messages: one by one, or in columns."""

    each: list[Sent]
    #: int64 in little-endian order, and a byte for each row
    numbers: bytes | None = None
    dropped: bytes = b""


def _batch(batch: c.Batch) -> _Batch:
    if isinstance(batch, list):
        rows = [
            (
                msgspec.Raw(one.row),
                list(one.identities),
                one.time_to_live_ms,
                one.key,
                one.delay_ms,
            )
            for one in batch
        ]
        return _Batch(rows)
    return _Batch([], bytes(batch.encoded or batch.encode(apart=False)))


def _batch_of(batch: _Batch) -> c.Batch:
    if batch.columns is not None:
        # pyarrow takes long to import: only clients that send columns wait for it.
        from onibus.core.path.admit_arrow import decode_prepared

        return decode_prepared(memoryview(batch.columns), [], no_blocks)
    return [
        Prepared(decode(row), bytes(row), tuple(identities), ttl, key, delay_ms)
        for row, identities, ttl, key, delay_ms in batch.rows
    ]


def _stored(stored: c.Stored) -> _Stored:
    if isinstance(stored, list):
        return _Stored(stored)
    return _Stored([], stored.numbers.astype("<i8").tobytes(), stored.dropped.tobytes())


def _stored_of(stored: _Stored) -> c.Stored:
    if stored.numbers is None:
        return stored.each
    from onibus.core.path.bulk import SentRows

    numbers = np.frombuffer(stored.numbers, "<i8").astype(np.int64)
    dropped = np.frombuffer(stored.dropped, np.uint8).astype(bool)
    if len(numbers) != len(dropped):
        raise Malformed("a result in columns contradicts itself")
    return SentRows(numbers, dropped)


# Commands


def _plain(value: Any) -> Any:
    """Return the plain value of a type that extends one, such as an AMQP timestamp."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"a {type(value).__name__} is not plain data")


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode


class _Codec(NamedTuple):
    """How a command becomes bytes, and how bytes become the command again."""

    encode: Callable[[Any], bytes]
    decode: Callable[[msgspec.Raw, ReadStaged], Any]


def _plainly(kind: type[Any]) -> _Codec:
    """Return the codec of a command whose fields are plain data."""
    decoder = msgspec.msgpack.Decoder(kind)
    return _Codec(_encode, lambda content, read: decoder.decode(content))


def _through(
    wire: Any, wrap: Callable[[Any], Any], unwrap: Callable[[Any, ReadStaged], Any]
) -> _Codec:
    """Return the codec of a command that travels as something else."""
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(wire)
    return _Codec(
        lambda command: _encode(wrap(command)),
        lambda content, read: unwrap(decoder.decode(content), read),
    )


def _filtered(kind: type[Any]) -> _Codec:
    """Return the codec of a command with a filter, whose parameters need not be plain values."""
    decoder = msgspec.msgpack.Decoder(kind)

    def encode(command: Any) -> bytes:
        if not command.wanted.sql_parameters:
            return _encode(command)
        given = command.wanted.sql_parameters
        fields = msgspec.structs.asdict(command) | {"type": kind.__name__}
        fields["wanted"] = msgspec.structs.asdict(command.wanted) | {
            "sql_parameters": {name: plain_value(value) for name, value in given.items()}
        }
        return _encode(fields)

    def decode(content: msgspec.Raw, read: ReadStaged) -> Any:
        # Filters compare their parameters when the command is built: they must be rich by then.
        fields = msgspec.msgpack.decode(content)
        parameters = fields["wanted"].get("sql_parameters")
        if not parameters:
            return decoder.decode(content)
        rich = {name: rich_value(value) for name, value in parameters.items()}
        wanted = msgspec.convert(
            fields["wanted"] | {"sql_parameters": rich}, Filter, builtin_types=_KEPT
        )
        return msgspec.convert(fields | {"wanted": wanted}, kind, builtin_types=_KEPT)

    return _Codec(encode, decode)


def _part(part: Part | None) -> bytes | None:
    return None if part is None else encode_part(part)


def _part_of(content: bytes | None, read: ReadStaged) -> Part | None:
    return None if content is None else decode_part(content, read)


def _plain_rules(rules: Sequence[Rule]) -> list[Any]:
    return [to_plain(rule) for rule in rules]


def _rules_of(wire: list[dict[str, Any]]) -> list[Rule]:
    return [from_plain(rule) for rule in wire]


def _settings(command: c.ChangeSettings) -> tuple[bool, msgspec.Raw]:
    settings = command.settings
    return isinstance(settings, TopicSettings), msgspec.Raw(_encode(settings))


def _settings_of(fields: tuple[bool, msgspec.Raw], read: ReadStaged) -> c.ChangeSettings:
    is_topic, content = fields
    kind: type[QueueSettings | TopicSettings] = TopicSettings if is_topic else QueueSettings
    return c.ChangeSettings(msgspec.msgpack.decode(content, type=kind))


_CODECS: dict[str, tuple[type, _Codec]] = {}


def _fill() -> None:
    special: Mapping[type, _Codec] = {
        c.Send: _through(
            _Batch,
            lambda command: _batch(command.batch),
            lambda wire, read: c.Send(_batch_of(wire)),
        ),
        c.FindRepeats: _through(
            bytes,
            lambda command: encode_part(command.part),
            lambda part, read: c.FindRepeats(decode_part(part, read)),
        ),
        c.CarryOut: _through(
            tuple[bytes, list[int] | None, int | None],
            lambda command: (encode_part(command.part), command.originals, command.work),
            lambda wire, read: c.CarryOut(decode_part(wire[0], read), *wire[1:]),
        ),
        c.Stage: _through(
            tuple[int, bytes, str],
            lambda command: (command.work, encode_part(command.part), command.decider),
            lambda wire, read: c.Stage(wire[0], decode_part(wire[1], read), wire[2]),
        ),
        # The shard has what was staged.
        c.Publish: _through(
            tuple[int, int],
            lambda command: (command.work, command.piece),
            lambda wire, read: c.Publish(*wire),
        ),
        c.ChangeSettings: _through(tuple[bool, msgspec.Raw], _settings, _settings_of),
        c.Subscribe: _through(
            tuple[int, SubscriptionSettings, list[dict[str, Any]]],
            lambda command: (command.number, command.settings, _plain_rules(command.rules)),
            lambda wire, read: c.Subscribe(wire[0], wire[1], _rules_of(wire[2])),
        ),
        c.SetRules: _through(
            tuple[int, list[dict[str, Any]]],
            lambda command: (command.subscription, _plain_rules(command.rules)),
            lambda wire, read: c.SetRules(wire[0], _rules_of(wire[1])),
        ),
    }
    for kind in HANDLERS:
        if kind in LOCAL:
            continue
        codec = special.get(kind)
        if codec is None:
            codec = _filtered(kind) if "wanted" in kind.__struct_fields__ else _plainly(kind)
        _CODECS[kind.__name__] = kind, codec


def encode_command(command: c.Command[Any]) -> bytes:
    """Return a command as bytes."""
    name = type(command).__name__
    return _encode((name, msgspec.Raw(_CODECS[name][1].encode(command))))


def decode_command(content: bytes, read: ReadStaged = no_blocks) -> c.Command[Any]:
    """Return the command of these bytes; `read` returns a block that was staged in the store."""
    name, fields = _decoded(_HEAD, content)
    if name not in _CODECS:
        raise Malformed(f"no command {name!r}")
    command: c.Command[Any] = _guarded(lambda: _CODECS[name][1].decode(fields, read))
    return command


# Results


class _Error(msgspec.Struct, array_like=True):
    """An error: its code, its words, and its further fields."""

    code: str
    words: str
    fields: dict[str, Any] = {}


#: Errors by their codes, which are stable and distinct.
_ERRORS: dict[str, type[OnibusError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OnibusError)
}
#: The further fields of errors, by the class that has them.
_FIELDS: dict[type[OnibusError], dict[str, Any]] = {
    errors.InvalidFilter: {"position": int | None, "expected": str},
    errors.EntityNotFound: {"entity": str},
    errors.LogGap: {"first": int, "last": int},
}


def _error(error: OnibusError) -> _Error:
    kind = type(error)
    fields = {name: getattr(error, name) for name in _fields_of(kind)}
    return _Error(kind.code, str(error), fields)


def _error_of(wire: _Error) -> OnibusError:
    kind = _ERRORS.get(wire.code)
    if kind is None:
        raise Malformed(f"no error {wire.code!r}")
    known = _fields_of(kind)
    if wire.fields.keys() != known.keys():
        raise Malformed(f"an error {wire.code!r} with other fields")
    error = kind.__new__(kind)
    error.args = (wire.words,)
    for name, value in wire.fields.items():
        setattr(error, name, msgspec.convert(value, known[name]))
    return error


def _fields_of(kind: type[OnibusError]) -> dict[str, Any]:
    return {
        name: wanted
        for base, fields in _FIELDS.items()
        if issubclass(kind, base)
        for name, wanted in fields.items()
    }


class _Repeats(msgspec.Struct, array_like=True):
    originals: list[int]
    batch: _Batch | None = None


def _each(results: list[Any]) -> list[Any]:
    """Return results by token: a value, or a rejection."""
    return [_error(one) if isinstance(one, Refused) else one for one in results]


def _each_of(results: list[Any]) -> list[Any]:
    return [_error_of(one) if isinstance(one, _Error) else one for one in results]


class _ResultCodec(NamedTuple):
    """How the result of a command becomes bytes, and a result again."""

    wrap: Callable[[Any], Any]
    decoder: msgspec.msgpack.Decoder[Any]
    unwrap: Callable[[Any, ReadStaged], Any]


_OF_STORED = (_Stored, _stored, lambda wire, read: _stored_of(wire))
_BY_TOKEN = (list[int | _Error | None], _each, lambda wire, read: _each_of(wire))
_RESULTS: dict[str, _ResultCodec] = {}


def _fill_results() -> None:
    special: dict[type, tuple[Any, Callable[[Any], Any], Callable[[Any, ReadStaged], Any]]] = {
        c.Send: _OF_STORED,
        c.CarryOut: _OF_STORED,
        c.Publish: _OF_STORED,
        c.FindRepeats: (
            _Repeats,
            lambda found: _Repeats(
                found.originals, None if found.batch is None else _batch(found.batch)
            ),
            lambda wire, read: c.Repeats(
                wire.originals, None if wire.batch is None else _batch_of(wire.batch)
            ),
        ),
        c.ReadStaged: (bytes | None, _part, _part_of),
        c.Settle: _BY_TOKEN,
        c.Delete: _BY_TOKEN,
        c.Renew: _BY_TOKEN,
        c.ChangeVisibility: _BY_TOKEN,
    }
    for name, (kind, _) in _CODECS.items():
        if kind in special:
            wire, wrap, unwrap = special[kind]
        else:
            wire, wrap, unwrap = _result_type(kind), _same, _same_read
        _RESULTS[name] = _ResultCodec(wrap, msgspec.msgpack.Decoder(wire), unwrap)


def _result_type(kind: type[Any]) -> Any:
    """Return the type of the result of a command: the argument of its base class."""
    [base] = kind.__orig_bases__
    [result] = get_args(base)
    return result


def _same(value: T) -> T:
    return value


def _same_read(value: T, read: ReadStaged) -> T:
    return value


def encode_result(kind: type[c.Command[Any]], result: Any) -> bytes:
    """Return the result of a command of that class as bytes."""
    return _encode(_RESULTS[kind.__name__].wrap(result))


def decode_result(kind: type[c.Command[T]], content: bytes, read: ReadStaged = no_blocks) -> T:
    """Return the result of a command of that class from these bytes."""
    codec = _RESULTS[kind.__name__]
    wire = _decoded(codec.decoder, content)
    result: T = _guarded(lambda: codec.unwrap(wire, read))
    return result


def encode_error(error: OnibusError) -> bytes:
    """Return an error as bytes."""
    return _encode(_error(error))


def decode_error(content: bytes) -> OnibusError:
    """Return the error of these bytes."""
    wire = _decoded(_ERROR, content)
    error: OnibusError = _guarded(lambda: _error_of(wire))
    return error


# Decoding

_HEAD: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_ERROR: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_Error)


def _decoded(decoder: msgspec.msgpack.Decoder[Any], content: bytes) -> Any:
    if len(content) > TRAFFIC_BYTES_MAX:
        raise Malformed(f"traffic has at most {TRAFFIC_BYTES_MAX} bytes, not {len(content)}")
    return _guarded(lambda: decoder.decode(content))


def _guarded(read: Callable[[], Any]) -> Any:
    """Return what `read` returns; any way in which bytes can be wrong raises `Malformed`."""
    try:
        return read()
    except Malformed:
        raise
    except (
        *(msgspec.MsgspecError, OnibusError, ValueError, TypeError, LookupError),
        *(AttributeError, OverflowError, RecursionError),
    ) as error:
        raise Malformed(f"not traffic of this version: {error}") from error


_fill()
_fill_results()
