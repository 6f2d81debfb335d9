"""Attributes of queues ↔ settings of the bus.

Each attribute is a setting of the queue, or kept with it as it is (`sqs.NAME` in its attributes).
Two are both: the bus bounds a lock more tightly than SQS a visibility timeout, and counts a
message's size with all its fields; there the stored string counts as long as the setting is the one
derived from it. Our own switches have attributes too, which begin with Onibus.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from onibus.core import limits
from onibus.core.commands import Measure
from onibus.core.lifecycle import State
from onibus.core.settings import QueueSettings
from onibus.directory.entity import Entity
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.profile import Profile
from onibus.protocols.sqs.queues import Queues, settings_of

PREFIX = "sqs."
_MAXIMUM = PREFIX + "MaximumMessageSize"
DAY_SECONDS = 86_400
RETENTION_SECONDS = 4 * DAY_SECONDS
#: The most that a message takes in the bus in addition to its body and attributes.
OVERHEAD_BYTES = 16 << 10
#: The most messages that any queue, FIFO or not, has in flight.
IN_FLIGHT_MAX = 120_000
#: A queue without a dead-letter queue never gives up.
ENDLESS = limits.DELIVERY_COUNT_MAX

_WHOLE = re.compile(r"\d{1,9}", re.ASCII)

#: Whole numbers: least, most, default.
NUMBERS: dict[str, tuple[int, int, int]] = {
    "DelaySeconds": (0, 900, 0),
    "MaximumMessageSize": (1_024, 1_048_576, 1_048_576),
    "MessageRetentionPeriod": (60, 14 * DAY_SECONDS, RETENTION_SECONDS),
    "ReceiveMessageWaitTimeSeconds": (0, 20, 0),
    "VisibilityTimeout": (0, 43_200, 30),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400, 300),
}
#: Boolean attributes: the setting of the bus, or None if the attribute is only stored.
SWITCHES: dict[str, str | None] = {
    "FifoQueue": "fifo",
    "ContentBasedDeduplication": "content_based_deduplication",
    "SqsManagedSseEnabled": None,
    "OnibusContentMatchesAnyId": "content_matches_any_id",
    "OnibusStrictAttempts": "strict_attempts",
    "OnibusStrictGroups": "strict_groups",
    "OnibusOneMessagePerGroup": "one_message_per_group",
    "OnibusPurgeForgetsIds": None,
    "OnibusFairDelivery": "fair_delivery",
}
#: One of a few words.
WORDS: dict[str, tuple[str, ...]] = {
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
#: String attributes that an empty string removes.
TEXTS = ("Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId")
READ_ONLY = (
    "QueueArn",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
FIFO_ONLY = (
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoThroughputLimit",
    "OnibusContentMatchesAnyId",
    "OnibusStrictAttempts",
    "OnibusStrictGroups",
    "OnibusOneMessagePerGroup",
)
STANDARD_ONLY = ("OnibusFairDelivery",)
SETTABLE = frozenset([*NUMBERS, *SWITCHES, *WORDS, *TEXTS])
KNOWN = SETTABLE.union(READ_ONLY)
#: Attributes that `All` includes only if a client set them.
_CONTENT_RULE = "OnibusContentMatchesAnyId"
_QUIET = (
    _CONTENT_RULE,
    "OnibusStrictAttempts",
    "OnibusStrictGroups",
    "OnibusOneMessagePerGroup",
)


def kept(settings: QueueSettings, name: str) -> str | None:
    """Return the string that a queue stores for an attribute."""
    return settings.attributes.get(PREFIX + name)


def spelled(given: dict[str, str] | None) -> dict[str, str]:
    """Return attributes with their switches in lower case: case does not matter there."""
    found = given or {}
    return {name: one.lower() if name in SWITCHES else one for name, one in found.items()}


def check(given: dict[str, str], profile: Profile, *, fifo: bool) -> None:
    """Reject unknown attributes, and values that they cannot have."""
    for name, value in given.items():
        if name not in SETTABLE or (name in WORDS and not profile.knows_high_throughput):
            raise SqsError(errors.INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
        if name in FIFO_ONLY and not fifo:
            if name in WORDS:
                text = f"You can specify the {name} only when FifoQueue is set to true."
            else:
                text = f"Unknown Attribute {name}."
            raise SqsError(errors.INVALID_ATTRIBUTE_NAME, text)
        if name in STANDARD_ONLY and fifo:
            raise SqsError(errors.INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
        if not _is_good(name, value, profile):
            text = f"Invalid value for the parameter {name}."
            raise SqsError(errors.INVALID_ATTRIBUTE_VALUE, text)


def _is_good(name: str, value: str, profile: Profile) -> bool:
    if name in NUMBERS:
        low, high, _ = NUMBERS[name]
        if name == "MaximumMessageSize":
            high = profile.message_bytes_max
        return bool(_WHOLE.fullmatch(value)) and low <= int(value) <= high
    if name in SWITCHES:
        return value in ("true", "false")
    if name in WORDS:
        return value in WORDS[name]
    if name in ("Policy", "RedrivePolicy", "RedriveAllowPolicy") and value:
        return isinstance(_json(value), dict)
    return len(value) <= limits.ATTRIBUTES_BYTES_MAX


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def same(name: str, now: str, wanted: str) -> bool:
    """Return whether an attribute already has the requested value."""
    if name in ("Policy", "RedrivePolicy", "RedriveAllowPolicy"):
        return bool(_plain(_json(now or "{}")) == _plain(_json(wanted or "{}")))
    return now == wanted


def _plain(policy: Any) -> Any:
    """Return a policy in which a number and its string are the same."""
    if isinstance(policy, dict) and "maxReceiveCount" in policy:
        return policy | {"maxReceiveCount": str(policy["maxReceiveCount"])}
    return policy


def defaults(profile: Profile, *, fifo: bool) -> dict[str, str]:
    """Return the attributes of a new queue."""
    found = {name: str(default) for name, (_, _, default) in NUMBERS.items()}
    found["MaximumMessageSize"] = str(profile.message_bytes_max)
    found["SqsManagedSseEnabled"] = "true"
    del found["KmsDataKeyReusePeriodSeconds"]
    if fifo:
        found["ContentBasedDeduplication"] = "false"
        if profile.knows_high_throughput:
            found |= {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}
        if profile.one_message_per_group:
            found["OnibusOneMessagePerGroup"] = "true"
        if profile.purge_forgets_ids:
            found["OnibusPurgeForgetsIds"] = "true"
    else:
        found["OnibusFairDelivery"] = _switch(profile.fair_delivery)
    return found


def with_content_rule(
    given: dict[str, str], profile: Profile, old: QueueSettings | None = None
) -> dict[str, str]:
    """Return attributes with the rule for equal content (F7) that content-based ids begin with."""
    wanted = given.get("ContentBasedDeduplication")
    was = old is not None and old.content_based_deduplication
    if _CONTENT_RULE in given or wanted not in ("true", "false") or (wanted == "true") == was:
        return given
    on = wanted == "true" and profile.content_matches_any_id
    return given | {_CONTENT_RULE: _switch(on)}


def unusual(found: dict[str, str], profile: Profile, *, fifo: bool) -> list[str]:
    """Return the names of all attributes but ours that every new queue has here."""
    usual = defaults(profile, fifo=fifo)
    if profile.content_matches_any_id:
        usual[_CONTENT_RULE] = "true"
    return [one for one in found if not one.startswith("Onibus") or found[one] != usual.get(one)]


#: Attributes that are settings, and how their string becomes the setting's value.
_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "DelaySeconds": ("delivery_delay_ms", lambda text: int(text) * 1_000),
    "MessageRetentionPeriod": ("default_time_to_live_ms", lambda text: int(text) * 1_000),
    "DeduplicationScope": ("deduplication_scope", str),
    "MaximumMessageSize": ("max_message_bytes", lambda text: int(text) + OVERHEAD_BYTES),
}


def to_settings(given: dict[str, str], old: QueueSettings | None, *, fifo: bool) -> dict[str, Any]:
    """Return settings of the bus that say what attributes say; `old` are those of a queue."""
    settings: dict[str, Any] = {}
    texts = {} if old is None else dict(old.attributes)
    for name, value in given.items():
        if name in _SETTINGS:
            setting, convert = _SETTINGS[name]
            settings[setting] = convert(value)
        elif name == "VisibilityTimeout":
            settings["lock_duration_ms"] = lock_of(int(value), fifo=fifo)
        elif (switch := SWITCHES.get(name)) is not None:
            settings[switch] = value == "true"
        if name in ("MaximumMessageSize", "VisibilityTimeout") or not _is_setting(name):
            _keep(texts, name, value)
    settings["attributes"] = texts
    return settings


def _is_setting(name: str) -> bool:
    return name in _SETTINGS or SWITCHES.get(name) is not None


def _keep(texts: dict[str, str], name: str, value: str) -> None:
    if value:
        texts[PREFIX + name] = value
    else:
        texts.pop(PREFIX + name, None)


def lock_of(seconds: int, *, fifo: bool) -> int:
    """Return the lock duration of a queue with that visibility timeout."""
    if fifo:
        return seconds * 1_000
    bounds = limits.LOCK_DURATION_MS_MIN, limits.LOCK_DURATION_MS_MAX
    return min(max(seconds * 1_000, bounds[0]), bounds[1])


def visibility_ms(settings: QueueSettings) -> int:
    """Return for how long a queue's messages are not seen by others once they are received."""
    text = kept(settings, "VisibilityTimeout")
    if text is not None and lock_of(int(text), fifo=settings.fifo) == settings.lock_duration_ms:
        return int(text) * 1_000
    return settings.lock_duration_ms


def message_bytes_max(settings: QueueSettings, profile: Profile) -> int:
    """Return how large a message may be, its attributes counted."""
    text, largest = settings.attributes.get(_MAXIMUM), settings.max_message_bytes
    if text is not None and int(text) + OVERHEAD_BYTES == largest:
        return int(text)
    return largest if largest < profile.message_bytes_max else profile.message_bytes_max


def wait_ms(settings: QueueSettings) -> int:
    """Return for how long a receive waits that does not say so itself."""
    return int(kept(settings, "ReceiveMessageWaitTimeSeconds") or 0) * 1_000


def of_queue(queues: Queues, entity: Entity, region: str) -> dict[str, str]:
    """Return all attributes of a queue."""
    settings = settings_of(entity)
    profile = queues.profile
    ttl = settings.default_time_to_live_ms
    longest = NUMBERS["MessageRetentionPeriod"][1]
    found = {
        "QueueArn": queues.arn(entity, region),
        "CreatedTimestamp": str(entity.created // 1_000),
        "LastModifiedTimestamp": kept(settings, "LastModified") or str(entity.created // 1_000),
        "DelaySeconds": str(settings.delivery_delay_ms // 1_000),
        "MaximumMessageSize": str(message_bytes_max(settings, profile)),
        "MessageRetentionPeriod": str(longest if ttl is None else ttl // 1_000),
        "ReceiveMessageWaitTimeSeconds": str(wait_ms(settings) // 1_000),
        "VisibilityTimeout": str(visibility_ms(settings) // 1_000),
        "SqsManagedSseEnabled": kept(settings, "SqsManagedSseEnabled") or "false",
    }
    found |= _counts(queues, entity)
    if settings.fifo:
        found["FifoQueue"] = "true"
        found["ContentBasedDeduplication"] = _switch(settings.content_based_deduplication)
        if profile.knows_high_throughput:
            found["DeduplicationScope"] = settings.deduplication_scope
            found["FifoThroughputLimit"] = kept(settings, "FifoThroughputLimit") or "perQueue"
    elif not settings.requires_session:
        found["OnibusFairDelivery"] = _switch(settings.fair_delivery)
    for name in _QUIET:
        if getattr(settings, SWITCHES[name] or ""):
            found[name] = "true"
    for name in ("Policy", "RedriveAllowPolicy", "KmsMasterKeyId", "OnibusPurgeForgetsIds"):
        if text := kept(settings, name):
            found[name] = text
    period = kept(settings, "KmsDataKeyReusePeriodSeconds")
    if period is not None and "KmsMasterKeyId" in found:
        found["KmsDataKeyReusePeriodSeconds"] = period
    if policy := redrive_policy(queues, entity, region):
        found["RedrivePolicy"] = policy
    return found


def _switch(on: bool) -> str:
    return "true" if on else "false"


def redrive_policy(queues: Queues, entity: Entity, region: str) -> str | None:
    """Return a queue's dead-letter queue, and after how many receives messages go there."""
    settings = settings_of(entity)
    target = settings.forward_dead_letters_to
    if target is None:
        return None
    found = queues.bus.broker.namespace.entities.get(target.lower())
    if found is None or not isinstance(found.settings, QueueSettings):
        return None
    policy = {
        "deadLetterTargetArn": queues.arn(found, region),
        "maxReceiveCount": settings.max_delivery_count,
    }
    return json.dumps(policy, separators=(",", ":"))


def visible_count(queues: Queues, entity: Entity) -> int:
    """Return how many messages can be received now."""
    return int(_counts(queues, entity)["ApproximateNumberOfMessages"])


def _counts(queues: Queues, entity: Entity) -> dict[str, str]:
    visible = hidden = delayed = 0
    broker = queues.bus.broker
    for partition in entity.online_partitions():
        measured = broker.use(entity, partition, Measure(entity.number))
        hidden += measured.count([State.LOCKED])
        delayed += measured.count([State.DELAYED, State.SCHEDULED])
        visible += measured.available
    return {
        "ApproximateNumberOfMessages": str(visible),
        "ApproximateNumberOfMessagesNotVisible": str(hidden),
        "ApproximateNumberOfMessagesDelayed": str(delayed),
    }
