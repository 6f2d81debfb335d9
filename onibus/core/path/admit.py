"""Admit: check a message against its entity's settings, once, before anything is changed.

What passes is prepared for the rest of the path: its bytes, its identities and its time to live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from onibus.core.checks import check_properties, check_whole
from onibus.core.errors import InvalidArgument, InvalidOperation, MessageTooLarge
from onibus.core.limits import HOP_COUNT_MAX, ID_LENGTH_MAX, MESSAGE_BYTES_MAX
from onibus.core.message import FORMATS, Message, encode
from onibus.core.path.route import effective_key
from onibus.core.settings import LogSettings

_TEXTS = ("subject", "correlation_id", "content_type", "to", "reply_to", "reply_to_session_id")


class Prepared(msgspec.Struct, eq=False):
    """A message that was admitted."""

    message: Message
    row: bytes
    #: hashes under which it is a duplicate; none if it never is one
    identities: tuple[bytes, ...]
    time_to_live_ms: int | None
    #: what decides its partition (P3), or None when any will do
    key: str | None = None
    #: how long it waits before it can be received; None: as its queue says
    delay_ms: int | None = None


def admit(message: Message, settings: LogSettings, secret: bytes) -> Prepared:
    """Return the message prepared, or reject it."""
    _check_fields(message, settings)
    key = effective_key(message, settings) if message.session_id is None else message.session_id
    identities: tuple[bytes, ...]
    if settings.fifo:
        if message.message_id is None or settings.content_based_deduplication:
            message, identities = _fifo_identities(message, settings, secret)
        else:
            scope = message.session_id if settings.deduplication_scope == "messageGroup" else None
            identities = (_hash(secret, message.message_id, scope),)
    elif settings.requires_duplicate_detection:
        identities = _identities(message, settings, secret, key)
    else:
        identities = ()
    try:
        row = encode(message)
    except (UnicodeEncodeError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"cannot encode the message: {error}") from None
    if len(row) > settings.max_message_bytes:
        check_size(message, len(row), settings)
    ttl = settings.default_time_to_live_ms
    if message.time_to_live_ms is not None:
        ttl = time_to_live(message, settings)
    return Prepared(message, row, identities, ttl, key)


def check_size(message: Message, row_bytes: int, settings: LogSettings) -> None:
    """Reject a message that is too large.

    A message that came over AMQP is stored twice, as fields and as sent: its size as sent counts.
    """
    size = row_bytes
    if message.as_sent:
        size = max(len(message.as_sent) + len(message.body), row_bytes // 2)
    if size > settings.max_message_bytes:
        raise MessageTooLarge(
            f"the message has {size} bytes; the limit is {settings.max_message_bytes}"
        )


def of_any_size(settings: LogSettings) -> LogSettings:
    """Return settings for a message whose size was checked before the broker added to it."""
    return replace(settings, max_message_bytes=2 * MESSAGE_BYTES_MAX)


def time_to_live(message: Message, settings: LogSettings) -> int | None:
    """Return the time to live of a message: its own or its entity's, whichever is shorter (B2)."""
    own, default = message.time_to_live_ms, settings.default_time_to_live_ms
    if own is None or default is None:
        return default if own is None else own
    return min(own, default)


def _check_fields(message: Message, settings: LogSettings) -> None:
    """Reject fields of wrong types or sizes, and keys that contradict each other."""
    if not isinstance(message, Message):
        raise InvalidArgument(f"send a Message, not a {type(message).__name__}")
    message_id = message.message_id
    session_id, partition_key = message.session_id, message.partition_key
    if type(message.body) is not bytes:
        raise InvalidArgument(f"body must be bytes, not {type(message.body).__name__}")
    if type(message.as_sent) is not bytes:
        raise InvalidArgument(f"as_sent must be bytes, not {type(message.as_sent).__name__}")
    if message_id is not None and (type(message_id) is not str or len(message_id) > ID_LENGTH_MAX):
        raise _no_id("message_id")
    if message_id == "":
        raise InvalidArgument("message_id is empty: omit it instead")
    if session_id is not None and (type(session_id) is not str or len(session_id) > ID_LENGTH_MAX):
        raise _no_id("session_id")
    if partition_key is not None:
        if type(partition_key) is not str or len(partition_key) > ID_LENGTH_MAX:
            raise _no_id("partition_key")
        if session_id is not None and session_id != partition_key:
            raise InvalidOperation(
                "session_id and partition_key differ: use the same value or omit one"
            )
    if message.time_to_live_ms is not None or message.scheduled_enqueue_time_ms is not None:
        _check_times(message)
    if message.properties or type(message.properties) is not dict:
        check_properties(message.properties)
    if not (
        message.subject is None
        and message.correlation_id is None
        and message.content_type is None
        and message.to is None
        and message.reply_to is None
        and message.reply_to_session_id is None
        and message.enqueued_sequence_number is None
        and message.hop_count == 0
        and message.format == ""
        and message.rewritten is False
        and message.dead_letter_of is None
        and message.received_before == 0
    ):
        _check_rare_fields(message)
    if session_id is None and settings.requires_session:
        name = "group (session_id)" if settings.fifo else "session_id"
        raise InvalidOperation(f"this entity requires a {name} on every message")


def _no_id(name: str) -> InvalidArgument:
    return InvalidArgument(f"{name} must be a string of at most {ID_LENGTH_MAX} characters")


def _check_times(message: Message) -> None:
    ttl, due = message.time_to_live_ms, message.scheduled_enqueue_time_ms
    if ttl is not None and (type(ttl) is not int or not 0 < ttl <= 2**53):
        raise InvalidArgument("time_to_live_ms must be a whole number above 0")
    if due is not None and (type(due) is not int or not 0 <= due <= 2**53):
        raise InvalidArgument("scheduled_enqueue_time_ms must be milliseconds since 1970")


def _check_rare_fields(message: Message) -> None:
    for name in _TEXTS:
        value = getattr(message, name)
        if value is not None and type(value) is not str:
            raise InvalidArgument(f"{name} must be a string, not {type(value).__name__}")
    if message.format not in FORMATS:
        raise InvalidArgument(f"format is {message.format!r}: use one of {FORMATS}")
    if type(message.rewritten) is not bool:
        raise InvalidArgument("rewritten must be a bool")
    number = message.enqueued_sequence_number
    if number is not None and (type(number) is not int or not 0 <= number < 2**63):
        raise InvalidArgument("enqueued_sequence_number must be a sequence number")
    check_whole("hop_count", message.hop_count, 0, HOP_COUNT_MAX)
    check_whole("received_before", message.received_before, 0)
    origin = message.dead_letter_of
    if origin is not None and not (
        type(origin) is tuple
        and len(origin) == 2
        and all(type(one) is int and 0 <= one < 2**63 for one in origin)
    ):
        raise InvalidArgument("dead_letter_of must be an entity and a sequence number")


def hash_identities(
    secret: bytes, identities: Sequence[bytes], scopes: Sequence[bytes | None] | None
) -> list[bytes]:
    """Return the keyed hashes that stand for ids, each inside its scope if it has one."""
    if scopes is not None:
        identities = list(map(_scoped, identities, scopes))
    copy = _keyed(secret)
    hashes = []
    for one in identities:
        hasher = copy()
        hasher.update(one)
        hashes.append(hasher.digest())
    return hashes


def _scoped(identity: bytes, scope: bytes | None) -> bytes:
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    return identity if scope is None else len(identity).to_bytes(4, "little") + identity + scope


@lru_cache(maxsize=16)
def _keyed(secret: bytes) -> Callable[[], Any]:
    """Return what makes a hasher with that key: a copy, in two thirds of the time of a new one."""
    return blake2b(digest_size=16, key=secret).copy


def _hash(secret: bytes, identity: str, scope: str | None) -> bytes:
    try:
        data = identity.encode()
        if scope is not None:
            data = _scoped(data, scope.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"cannot encode an id: {error}") from None
    hasher = _keyed(secret)()
    hasher.update(data)
    digest: bytes = hasher.digest()
    return digest


def _identities(
    message: Message, settings: LogSettings, secret: bytes, key: str | None
) -> tuple[bytes, ...]:
    if message.message_id is None:
        if settings.enable_partitioning and key is None:
            raise InvalidOperation(
                "a partitioned entity with duplicate detection requires a message_id, "
                "a partition_key or a session_id"
            )
        return ()
    return (_hash(secret, message.message_id, key if settings.enable_partitioning else None),)


def _fifo_identities(
    message: Message, settings: LogSettings, secret: bytes
) -> tuple[Message, tuple[bytes, ...]]:
    """Return the message with its deduplication id, and what makes it a duplicate (F1–F7)."""
    scope = message.session_id if settings.deduplication_scope == "messageGroup" else None
    content = sha256(message.body).hexdigest() if settings.content_based_deduplication else None
    if message.message_id is None:
        if content is None:
            raise InvalidOperation(
                "a FIFO queue requires a deduplication id (message_id) on every message, "
                "or content_based_deduplication"
            )
        message = _with_id(message, content)
    assert message.message_id is not None
    identities = [_hash(secret, message.message_id, scope)]
    if settings.content_matches_any_id and content is not None and content != message.message_id:
        identities.append(_hash(secret, content, scope))
    return message, tuple(identities)


def _with_id(message: Message, message_id: str) -> Message:
    return replace(message, message_id=message_id, rewritten=bool(message.as_sent))
