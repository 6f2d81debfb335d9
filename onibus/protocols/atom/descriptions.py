"""The elements that describe a queue, a topic and a subscription.

The tables below have the order of Service Bus, which its clients rely on; a request may have any
order. Read-only elements in a request are ignored: clients send back what they got.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

from onibus.api.entities import EntityInfo
from onibus.core.errors import InvalidArgument
from onibus.core.limits import PARTITION_COUNT
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import FalseFilter, Rule, SqlFilter, TrueFilter
from onibus.core.settings import QueueSettings, SubscriptionSettings, TopicSettings
from onibus.protocols.atom.authorization import write_keys
from onibus.protocols.atom.documents import moment
from onibus.protocols.atom.durations import duration, milliseconds
from onibus.protocols.atom.values import flag, whole
from onibus.protocols.atom.xml import COUNTS, escaped, local, tag, text_of
from onibus.protocols.service_bus_profile import RELAXED, Profile
from onibus.security.keys import AccessKey

_MEGABYTE = 1 << 20
_KILOBYTE = 1 << 10


@dataclass(frozen=True, slots=True)
class About:
    """An entity, and the other facts in its description."""

    info: EntityInfo[Any]
    #: the host and port that the client connects to
    host: str
    keys: Sequence[AccessKey] = ()
    #: the rules of all subscriptions of a topic
    rules: Sequence[Rule] = ()
    #: the version of the API that the client asks for, such as 2021-05
    version: str = ""
    profile: Profile = RELAXED


@dataclass(frozen=True, slots=True)
class Field:
    """One element."""

    name: str
    #: returns its content; None leaves the element out
    tell: Callable[[About], str | None]
    #: the setting that it changes, if any, and how to read it
    setting: str = ""
    read: Callable[[str], Any] = str
    #: an update that leaves it out takes the setting back: there is no other way to say so
    cleared: bool = False
    #: it changes nothing here, and is kept as it is given among the attributes
    kept: bool = False


@dataclass(frozen=True, slots=True)
class _Form:
    """How the values of some settings are written."""

    read: Callable[[str], Any]
    write: Callable[[Any, About], str | None]


def _status(text: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", text.strip()).lower()


def _told_status(status: str, about: About) -> str:
    return "".join(word.capitalize() for word in status.split("-"))


def _name_in(address: str) -> str | None:
    """Return the entity in an address such as sb://localhost/orders, or in a bare name."""
    text = urlsplit(address.strip()).path if "://" in address else address.strip()
    return text.strip("/") or None


def _address(name: str | None, about: About) -> str | None:
    return None if name is None else escaped(f"sb://{about.host}/{name}")


def _told_megabytes(size: int, about: About) -> str:
    """The size of all partitions: the setting is that of each (P1)."""
    partitioned = about.info.settings.enable_partitioning
    return str(-(-size * (PARTITION_COUNT if partitioned else 1) // _MEGABYTE))


_DURATION = _Form(milliseconds, lambda value, about: duration(value))
_WHOLE = _Form(whole, lambda value, about: str(value))
_FLAG = _Form(flag, lambda value, about: str(value).lower())
_TEXT = _Form(str, lambda value, about: escaped(value) or None)
_STATUS = _Form(_status, _told_status)
_NAME = _Form(_name_in, _address)
_MEGABYTES = _Form(lambda text: whole(text) * _MEGABYTE, _told_megabytes)
_KILOBYTES = _Form(
    lambda text: whole(text) * _KILOBYTE,
    lambda n, about: str(-(-min(n, about.profile.message_bytes_max) // _KILOBYTE)),
)


def _set(name: str, setting: str, form: _Form, *, cleared: bool = False) -> Field:
    return Field(
        name,
        lambda about: form.write(getattr(about.info.settings, setting), about),
        setting,
        form.read,
        cleared,
    )


def _tell(name: str, tell: Callable[[About], Any]) -> Field:
    return Field(name, lambda about: escaped(str(tell(about))))


def _always(name: str, text: str) -> Field:
    """Return an element that is always the same here."""
    return Field(name, lambda about: text)


def _keep(name: str, default: bool) -> Field:
    """Return a flag that has no effect here, but is read back as it was written."""

    def tell(about: About) -> str:
        text: str = about.info.settings.attributes.get(_PREFIX + name, str(default).lower())
        return text

    return Field(name, tell, read=lambda text: str(flag(text)).lower(), kept=True)


#: How the names of attributes begin that are kept for these clients.
_PREFIX = "servicebus."


def _message_count(about: About) -> int:
    info = about.info
    return info.active_count + info.deferred_count + info.scheduled_count + info.dead_lettered_count


def _availability(about: About) -> str:
    return about.info.availability.capitalize()


#: The version from which on topics have the counts of their filters.
_COUNTS_FILTERS = "2024-05"


def _count(name: str, *kinds: type) -> Field:
    """Return how many filters of these kinds a topic has, for clients that know the element."""

    def tell(about: About) -> str | None:
        if about.version < _COUNTS_FILTERS:
            return None
        return str(sum(isinstance(rule.filter, kinds) for rule in about.rules))

    return Field(name, tell)


def _counts(about: About) -> str:
    info = about.info
    counts = {
        "ActiveMessageCount": info.active_count,
        "DeadLetterMessageCount": info.dead_lettered_count,
        "ScheduledMessageCount": info.scheduled_count,
        # What cannot be forwarded waits at its source, as an active message.
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": 0,
    }
    return "".join(tag(f"d2p1:{name}", str(count)) for name, count in counts.items())


#: Written with its own XML namespace.
_COUNT_DETAILS = "CountDetails"
_ATTRIBUTES = {_COUNT_DETAILS: f'xmlns:d2p1="{COUNTS}"'}

_CREATED = _tell("CreatedAt", lambda about: moment(about.info.created_ms))
# Not stored: the creation time is returned instead.
_UPDATED = _tell("UpdatedAt", lambda about: moment(about.info.created_ms))
_ACCESSED = _tell("AccessedAt", lambda about: moment(about.info.created_ms))
_MESSAGES = _tell("MessageCount", _message_count)
_SIZE = _tell("SizeInBytes", lambda about: about.info.size_bytes)
_AVAILABILITY = _tell("EntityAvailabilityStatus", _availability)
_COUNT_FIELD = Field(_COUNT_DETAILS, _counts)
_KEYS = Field("AuthorizationRules", lambda about: write_keys(about.keys, about.info.created_ms))
_ANONYMOUS = _always("IsAnonymousAccessible", "false")

_LOCK = _set("LockDuration", "lock_duration_ms", _DURATION)
_LIMIT = _set("MaxSizeInMegabytes", "max_size_bytes", _MEGABYTES)
_LARGEST = _set("MaxMessageSizeInKilobytes", "max_message_bytes", _KILOBYTES)
_DETECTION = _set("RequiresDuplicateDetection", "requires_duplicate_detection", _FLAG)
_WINDOW = _set("DuplicateDetectionHistoryTimeWindow", "duplicate_detection_window_ms", _DURATION)
_SESSIONS = _set("RequiresSession", "requires_session", _FLAG)
_LIVE = _set("DefaultMessageTimeToLive", "default_time_to_live_ms", _DURATION)
_EXPIRED = _set("DeadLetteringOnMessageExpiration", "dead_letter_on_expiration", _FLAG)
_FILTERED = _set("DeadLetteringOnFilterEvaluationExceptions", "dead_letter_on_filter_error", _FLAG)
_DELIVERIES = _set("MaxDeliveryCount", "max_delivery_count", _WHOLE)
_IDLE = _set("AutoDeleteOnIdle", "auto_delete_on_idle_ms", _DURATION)
_PARTITIONING = _set("EnablePartitioning", "enable_partitioning", _FLAG)
_STATUS_FIELD = _set("Status", "status", _STATUS)
_FORWARD = _set("ForwardTo", "forward_to", _NAME, cleared=True)
_FORWARD_DEAD = _set(
    "ForwardDeadLetteredMessagesTo", "forward_dead_letters_to", _NAME, cleared=True
)
_METADATA = _set("UserMetadata", "user_metadata", _TEXT, cleared=True)

_BATCHED = _keep("EnableBatchedOperations", True)
_ORDERED = _keep("SupportOrdering", True)
_EXPRESS = _keep("EnableExpress", False)

_QUEUE = (
    _LOCK,
    _LIMIT,
    _DETECTION,
    _SESSIONS,
    _LIVE,
    _EXPIRED,
    _WINDOW,
    _DELIVERIES,
    _BATCHED,
    _SIZE,
    _MESSAGES,
    _ANONYMOUS,
    _KEYS,
    _STATUS_FIELD,
    _FORWARD,
    _METADATA,
    _CREATED,
    _UPDATED,
    _ACCESSED,
    _ORDERED,
    _COUNT_FIELD,
    _IDLE,
    _PARTITIONING,
    _AVAILABILITY,
    _EXPRESS,
    _FORWARD_DEAD,
    _LARGEST,
)
_TOPIC = (
    _LIVE,
    _LIMIT,
    _DETECTION,
    _WINDOW,
    _BATCHED,
    _SIZE,
    _keep("FilteringMessagesBeforePublishing", False),
    _ANONYMOUS,
    _KEYS,
    _STATUS_FIELD,
    _CREATED,
    _UPDATED,
    _ACCESSED,
    _ORDERED,
    _COUNT_FIELD,
    _tell("SubscriptionCount", lambda about: len(about.info.subscriptions)),
    # True and false filters are SQL filters of the service, 1=1 and 1=0.
    _count("SqlFilterCount", SqlFilter, TrueFilter, FalseFilter),
    _count("CorrelationFilterCount", CorrelationFilter),
    _IDLE,
    _PARTITIONING,
    _AVAILABILITY,
    _keep("EnableSubscriptionPartitioning", False),
    _EXPRESS,
    _METADATA,
    _LARGEST,
)
_SUBSCRIPTION = (
    _LOCK,
    _SESSIONS,
    _LIVE,
    _EXPIRED,
    _FILTERED,
    _MESSAGES,
    _DELIVERIES,
    _BATCHED,
    _STATUS_FIELD,
    _FORWARD,
    _CREATED,
    _UPDATED,
    _ACCESSED,
    _COUNT_FIELD,
    _FORWARD_DEAD,
    _IDLE,
    _AVAILABILITY,
    _METADATA,
)

#: The kinds of descriptions, with their elements, by our settings.
FIELDS: dict[type[Any], tuple[Field, ...]] = {
    QueueSettings: _QUEUE,
    TopicSettings: _TOPIC,
    SubscriptionSettings: _SUBSCRIPTION,
}
NAMES: dict[type[Any], str] = {
    QueueSettings: "QueueDescription",
    TopicSettings: "TopicDescription",
    SubscriptionSettings: "SubscriptionDescription",
}
#: Read elsewhere: the first rule of a new subscription.
DEFAULT_RULE_DESCRIPTION = "DefaultRuleDescription"


def write(about: About) -> str:
    """Return the elements that describe an entity."""
    told = ((field, field.tell(about)) for field in FIELDS[type(about.info.settings)])
    return "".join(
        tag(field.name, text, _ATTRIBUTES.get(field.name, ""))
        for field, text in told
        if text is not None
    )


def read(description: Element, kind: type[Any]) -> dict[str, Any]:
    """Return the settings that a description asks for."""
    given = _given(description, kind)
    settings = {field.setting: _read(field, text) for field, text in given if field.setting}
    kept = {_PREFIX + field.name: _read(field, text) for field, text in given if field.kept}
    return settings | ({"attributes": kept} if kept else {})


def read_changes(description: Element, about: About) -> dict[str, Any]:
    """Return the settings that a description changes in an existing entity."""
    settings = about.info.settings
    changes: dict[str, Any] = {}
    found = _given(description, type(settings))
    given = {field.name: text for field, text in found}
    kept = {_PREFIX + field.name: _read(field, text) for field, text in found if field.kept}
    if kept:
        changes["attributes"] = settings.attributes | kept
    for field in FIELDS[type(settings)]:
        if not field.setting:
            continue
        text, told = given.get(field.name), field.tell(about)
        if text is None and field.cleared:
            changes[field.setting] = "" if field is _METADATA else None
        # A value that the client sends back as it got it is not a change, even if it was rounded.
        elif text is not None and escaped(text) != told:
            changes[field.setting] = _read(field, text)
    if "max_size_bytes" in changes and settings.enable_partitioning:
        changes["max_size_bytes"] //= PARTITION_COUNT
    return changes


def _given(description: Element, kind: type[Any]) -> list[tuple[Field, str]]:
    """Return the known elements of a description; reject all others."""
    known = {field.name: field for field in FIELDS[kind]}
    found: dict[str, tuple[Field, str]] = {}
    for element in description:
        name = local(element)
        if name == DEFAULT_RULE_DESCRIPTION and kind is SubscriptionSettings:
            continue
        if name not in known or name in found:
            raise InvalidArgument(f"{local(description)}: {name!r} is unknown or repeated")
        found[name] = known[name], text_of(element)
    if "IsAnonymousAccessible" in found and flag(found["IsAnonymousAccessible"][1]):
        raise InvalidArgument("IsAnonymousAccessible must be false: clients need a key")
    return list(found.values())


def _read(field: Field, text: str) -> Any:
    try:
        value = field.read(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{field.name}: {error}") from None
    if value is None and field is _LOCK:
        raise InvalidArgument("LockDuration must be finite")
    return value
