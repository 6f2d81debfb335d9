"""The settings of entities, with their defaults and checks."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

import msgspec

from onibus.core import limits
from onibus.core.checks import check_text
from onibus.core.errors import InvalidArgument, InvalidName, Unchangeable

ACTIVE = "active"
SEND_DISABLED = "send-disabled"
RECEIVE_DISABLED = "receive-disabled"
DISABLED = "disabled"

#: Settings that are fixed when the entity is made (D4, P1).
FIXED = (
    "requires_duplicate_detection",
    "requires_session",
    "enable_partitioning",
    "fifo",
)

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/~-]*[A-Za-z0-9])?")


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a queue. Durations are milliseconds; None means without end."""

    lock_duration_ms: int = limits.LOCK_DURATION_MS_DEFAULT
    max_delivery_count: int = limits.DELIVERY_COUNT_DEFAULT
    default_time_to_live_ms: int | None = None
    dead_letter_on_expiration: bool = False
    requires_duplicate_detection: bool = False
    duplicate_detection_window_ms: int = limits.DEDUPLICATION_WINDOW_MS_DEFAULT
    requires_session: bool = False
    enable_partitioning: bool = False
    #: of the queue, or of each partition if it has several (P1)
    max_size_bytes: int = limits.SIZE_BYTES_DEFAULT
    max_message_bytes: int = limits.MESSAGE_BYTES_DEFAULT
    auto_delete_on_idle_ms: int | None = None
    #: active, send-disabled, receive-disabled or disabled
    status: str = ACTIVE
    #: an SQS-style FIFO queue: sessions are groups, held by messages in flight (F, F10)
    fifo: bool = False
    content_based_deduplication: bool = False
    #: queue or messageGroup
    deduplication_scope: str = "queue"
    #: the document's last rule (F7): id and content hash are both recorded, either one matches
    content_matches_any_id: bool = False
    #: a FIFO receive takes at most one message of a group (F10)
    one_message_per_group: bool = False
    #: an attempt id whose messages changed is an error instead of an ordinary receive (F9)
    strict_attempts: bool = False
    #: any message in flight blocks its whole group, even earlier messages (F10)
    strict_groups: bool = False
    #: messages of noisy groups are delivered after those of quiet ones (B10)
    fair_delivery: bool = False
    #: how long an abandoned message waits: this, doubled each time, up to the maximum (X4)
    retry_backoff_ms: int = 0
    retry_backoff_ms_max: int = limits.HOUR_MS
    #: how long completed messages stay in the log; None: they may go at once (R1)
    retention_ms: int | None = None
    #: the age and size limits of rows kept only for a named reader (R2)
    reader_age_ms_max: int | None = limits.READER_AGE_MS_DEFAULT
    reader_bytes_max: int | None = limits.READER_BYTES_DEFAULT
    #: a batch to several partitions whose messages have several keys is rejected, as in Azure (P13)
    strict_batches: bool = False
    #: the entity that the broker forwards messages, or dead-lettered messages, to (B6)
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    #: how long a new message waits before it can be received
    delivery_delay_ms: int = 0
    #: what a protocol keeps with the entity in its own words: names and strings
    attributes: dict[str, str] = {}
    user_metadata: str = ""

    # What only subscriptions can have.
    dead_letter_on_filter_error: ClassVar[bool] = True
    #: messages older than this expire; a queue's messages carry their own expiry
    expires_after_ms: ClassVar[int | None] = None

    @property
    def sends(self) -> bool:
        return self.status == ACTIVE or self.status == RECEIVE_DISABLED

    @property
    def receives(self) -> bool:
        return self.status == ACTIVE or self.status == SEND_DISABLED


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a topic; each means what it means for a queue."""

    default_time_to_live_ms: int | None = None
    requires_duplicate_detection: bool = False
    duplicate_detection_window_ms: int = limits.DEDUPLICATION_WINDOW_MS_DEFAULT
    enable_partitioning: bool = False
    max_size_bytes: int = limits.SIZE_BYTES_DEFAULT
    max_message_bytes: int = limits.MESSAGE_BYTES_DEFAULT
    auto_delete_on_idle_ms: int | None = None
    status: str = ACTIVE
    retention_ms: int | None = None
    reader_age_ms_max: int | None = limits.READER_AGE_MS_DEFAULT
    reader_bytes_max: int | None = limits.READER_BYTES_DEFAULT
    strict_batches: bool = False
    user_metadata: str = ""
    attributes: dict[str, str] = {}

    # What only queues can have.
    fifo: ClassVar[bool] = False
    requires_session: ClassVar[bool] = False
    content_based_deduplication: ClassVar[bool] = False
    content_matches_any_id: ClassVar[bool] = False
    deduplication_scope: ClassVar[str] = "queue"
    forward_to: ClassVar[str | None] = None
    forward_dead_letters_to: ClassVar[str | None] = None
    delivery_delay_ms: ClassVar[int] = 0

    @property
    def sends(self) -> bool:
        return self.status == ACTIVE or self.status == RECEIVE_DISABLED

    @property
    def receives(self) -> bool:
        return False


class SubscriptionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a subscription; each means what it means for a queue."""

    lock_duration_ms: int = limits.LOCK_DURATION_MS_DEFAULT
    max_delivery_count: int = limits.DELIVERY_COUNT_DEFAULT
    default_time_to_live_ms: int | None = None
    dead_letter_on_expiration: bool = False
    #: a message that a rule cannot be evaluated on goes to the dead-letter queue, else nowhere
    dead_letter_on_filter_error: bool = True
    requires_session: bool = False
    auto_delete_on_idle_ms: int | None = None
    status: str = ACTIVE
    retry_backoff_ms: int = 0
    retry_backoff_ms_max: int = limits.HOUR_MS
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    user_metadata: str = ""
    attributes: dict[str, str] = {}

    # What only queues can have.
    fifo: ClassVar[bool] = False
    one_message_per_group: ClassVar[bool] = False
    strict_attempts: ClassVar[bool] = False
    strict_groups: ClassVar[bool] = False
    fair_delivery: ClassVar[bool] = False

    @property
    def expires_after_ms(self) -> int | None:
        return self.default_time_to_live_ms

    @property
    def receives(self) -> bool:
        return self.status == ACTIVE or self.status == SEND_DISABLED


#: What a log needs to know, and what a receiver's side of it.
LogSettings = QueueSettings | TopicSettings
OutletSettings = QueueSettings | SubscriptionSettings
AnySettings = QueueSettings | TopicSettings | SubscriptionSettings
S = TypeVar("S", bound=QueueSettings | TopicSettings | SubscriptionSettings)


def make(given: dict[str, Any], kind: type[S]) -> S:
    """Return checked settings of that kind, made of what the caller gave."""
    if given.get("fifo"):
        given = given | _fifo(given)
    check_known(given, kind)
    try:
        settings = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"settings: {error}") from None
    _check(settings)
    return settings


def check_known(given: dict[str, Any], kind: type[S]) -> None:
    """Reject unknown settings."""
    known = kind.__struct_fields__
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidArgument(f"unknown setting {name!r}{hint}")


def _fifo(given: dict[str, Any]) -> dict[str, Any]:
    """Return what every FIFO queue has."""
    fixed = {
        "requires_session": True,
        "requires_duplicate_detection": True,
        "enable_partitioning": False,
        "duplicate_detection_window_ms": limits.FIFO_INTERVAL_MS,
    }
    for name, value in fixed.items():
        if given.get(name, value) != value:
            raise InvalidArgument(f"a FIFO queue always has {name}={value}: omit it")
    return fixed


def change(old: S, given: dict[str, Any]) -> S:
    """Return the settings after a change; reject changes to settings fixed at creation."""
    for name in FIXED:
        if name in given and given[name] != getattr(old, name, given[name]):
            raise Unchangeable(f"{name} is fixed when the entity is created: create a new one")
    return make(msgspec.to_builtins(old) | given, type(old))


def check_name(name: object) -> str:
    """Return the name as it is kept: entity names do not tell upper from lower case."""
    if not isinstance(name, str) or not name:
        raise InvalidName("an entity name must be a string that is not empty")
    if len(name) > limits.ENTITY_NAME_LENGTH_MAX:
        raise InvalidName(f"an entity name has at most {limits.ENTITY_NAME_LENGTH_MAX} characters")
    if not _NAME.fullmatch(name) or "//" in name:
        raise InvalidName(
            f"invalid entity name {name!r}: use letters, digits and . - _ ~ / inside, "
            "and begin and end with a letter or a digit"
        )
    if not {".", ".."}.isdisjoint(name.split("/")):
        # In the path of a URL, HTTP clients remove such a part and the one before it.
        raise InvalidName(f"invalid entity name {name!r}: no part between slashes is . or ..")
    return name.lower()


def _between(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidArgument(f"{name} is {value}: it must be from {low} to {high}")


#: The lowest and highest values of most numeric settings.
_BOUNDS: dict[str, tuple[int, int]] = {
    "lock_duration_ms": (limits.LOCK_DURATION_MS_MIN, limits.LOCK_DURATION_MS_MAX),
    "max_delivery_count": (1, limits.DELIVERY_COUNT_MAX),
    "default_time_to_live_ms": (1, 2**53),
    "duplicate_detection_window_ms": (
        limits.DEDUPLICATION_WINDOW_MS_MIN,
        limits.DEDUPLICATION_WINDOW_MS_MAX,
    ),
    "max_size_bytes": (1, limits.SIZE_BYTES_MAX),
    "max_message_bytes": (1, limits.MESSAGE_BYTES_MAX),
    "auto_delete_on_idle_ms": (limits.IDLE_MS_MIN, 2**53),
    "retention_ms": (1, 2**53),
    "retry_backoff_ms": (0, limits.DAY_MS),
    "retry_backoff_ms_max": (0, limits.DAY_MS),
    "reader_age_ms_max": (1, 2**53),
    "reader_bytes_max": (1, 2**53),
    "delivery_delay_ms": (0, limits.DELIVERY_DELAY_MS_MAX),
}


def _check(settings: AnySettings) -> None:
    for name in settings.__struct_fields__:
        if name in _BOUNDS:
            low, high = _BOUNDS[name]
            if settings.fifo and name == "lock_duration_ms":
                low, high = 0, limits.VISIBILITY_MS_MAX
            _between(name, getattr(settings, name), low, high)
    check_text("user_metadata", settings.user_metadata, limits.METADATA_LENGTH_MAX)
    if settings.status not in (ACTIVE, SEND_DISABLED, RECEIVE_DISABLED, DISABLED):
        raise InvalidArgument(
            f"status is {settings.status!r}: use active, send-disabled, "
            "receive-disabled or disabled"
        )
    if not isinstance(settings, TopicSettings):
        _check_forwarding(settings)
    if isinstance(settings, QueueSettings):
        _check_fifo(settings)
    _check_attributes(settings.attributes)


def _check_attributes(attributes: dict[str, str]) -> None:
    size = 0
    for name, text in attributes.items():
        check_text("the name of an attribute", name, limits.ID_LENGTH_MAX, 1)
        check_text(f"attribute {name!r}", text, limits.ATTRIBUTES_BYTES_MAX)
        size += len(name.encode()) + len(text.encode())
    if size > limits.ATTRIBUTES_BYTES_MAX:
        raise InvalidArgument(
            f"attributes take {size} bytes: at most {limits.ATTRIBUTES_BYTES_MAX}"
        )


def _check_forwarding(settings: OutletSettings) -> None:
    for name in ("forward_to", "forward_dead_letters_to"):
        target = getattr(settings, name)
        if target is not None:
            check_name(target)
    if settings.forward_to is not None and settings.requires_session:
        raise InvalidArgument("an entity that requires sessions cannot forward: omit forward_to")


def _check_fifo(settings: QueueSettings) -> None:
    if settings.deduplication_scope not in ("queue", "messageGroup"):
        raise InvalidArgument("deduplication_scope must be queue or messageGroup")
    if not settings.fifo:
        _check_fifo_only(settings)
    elif settings.duplicate_detection_window_ms != limits.FIFO_INTERVAL_MS:
        raise InvalidArgument(
            "the deduplication window of a FIFO queue is always five minutes: omit it"
        )
    if settings.fair_delivery and settings.requires_session:
        raise InvalidArgument("fair_delivery is for queues without sessions: omit it")
    if settings.content_matches_any_id and not settings.content_based_deduplication:
        raise InvalidArgument("content_matches_any_id requires content_based_deduplication")


def _check_fifo_only(settings: QueueSettings) -> None:
    for name in (
        "content_based_deduplication",
        "content_matches_any_id",
        "one_message_per_group",
        "strict_attempts",
        "strict_groups",
    ):
        if getattr(settings, name):
            raise InvalidArgument(f"{name} is only for FIFO queues: set fifo=True as well")
    if settings.deduplication_scope != "queue":
        raise InvalidArgument("deduplication_scope is only for FIFO queues: set fifo=True as well")
