"""The tiers of Service Bus, and our own tier, as values of one type.

A server has one profile (`service_bus_profile`), which limits what Service Bus clients do over
AMQP and HTTP. The native API and SQS do not change with it. docs/amqp.md compares the profiles.
Sources: the quotas of the service, its errors, and document 002 on partitioning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from onibus.core.errors import InvalidArgument, MessageTooLarge, QuotaExceeded
from onibus.core.limits import MESSAGE_BYTES_MAX
from onibus.core.message import Message
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import Rule
from onibus.core.settings import LogSettings

_KILOBYTE, _MEGABYTE = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class TierQuotas:
    """Sizes and counts that the service limits in every tier, apart from the entities."""

    #: queues and topics of a namespace, and those that are partitioned
    entities: int
    partitioned_entities: int = 100
    #: bytes of one property, and of all fields of a message except its body
    property_bytes: int = 32 * _KILOBYTE
    header_bytes: int = 64 * _KILOBYTE
    #: subscriptions of a topic, and its filters: SQL, true and false ones, and correlation filters
    subscriptions: int = 2_000
    sql_filters: int = 2_000
    correlation_filters: int = 100_000
    #: authorization rules of an entity
    keys: int = 12


@dataclass(frozen=True, slots=True)
class Profile:
    """What one tier allows, and how it calls itself."""

    name: str
    #: MessagingSKU and MessagingUnits of the namespace
    sku: str
    units: int
    #: what every message is limited to, whatever its entity takes
    message_bytes_max: int
    #: the same for a whole batch; None where it is as large as a message
    batch_bytes_max: int | None
    #: from and up to which MaxMessageSizeInKilobytes can be set; None where any value is good
    message_kilobytes: tuple[int, int] | None
    #: the values of MaxSizeInMegabytes; empty where any is good
    entity_megabytes: tuple[int, ...]
    #: entities can be partitioned
    partitions: bool
    #: a batch with several keys is rejected on a partitioned entity (P13)
    strict_batches: bool
    #: what the service counts; None if only the limits of the bus apply
    quotas: TierQuotas | None = None

    def message_bytes(self, settings: LogSettings) -> int:
        """Return how large a message of an entity can be."""
        return min(settings.max_message_bytes, self.message_bytes_max)

    def batch_bytes(self, settings: LogSettings) -> int:
        """Return how large a batch to an entity can be."""
        largest = self.message_bytes(settings)
        return largest if self.batch_bytes_max is None else min(largest, self.batch_bytes_max)

    def check_message(self, size: int, settings: LogSettings) -> None:
        """Reject a message that is too large for the tier."""
        _check_size("message", size, self.message_bytes(settings))

    def check_batch(self, size: int, settings: LogSettings) -> None:
        """Reject a batch that is too large for the tier."""
        _check_size("message batch", size, self.batch_bytes(settings))

    def check_fields(self, message: Message) -> None:
        """Reject a message whose properties are too large for the tier."""
        if (quotas := self.quotas) is None:
            return
        sizes = {name: _bytes_of(value) for name, value in message.properties.items()}
        for name, size in sizes.items():
            if size > quotas.property_bytes:
                raise MessageTooLarge(
                    f"The property '{name}' of {size} bytes exceeds the limit "
                    f"({quotas.property_bytes} bytes)."
                )
        header = sum(map(_bytes_of, sizes)) + sum(sizes.values())
        header += sum(_bytes_of(getattr(message, name)) for name in _FIELDS)
        if header > quotas.header_bytes:
            raise MessageTooLarge(
                "A serialization error occurred while processing the message header stream. The "
                "serialization process return the following message: The size quota for this "
                f"stream ({quotas.header_bytes}) has been exceeded."
            )

    def check_entities(self, partitioned: Iterable[bool], wanted: bool) -> None:
        """Reject one more queue or topic than the tier has.

        `partitioned`: of each existing entity, whether it is partitioned; `wanted`: of the new one.
        """
        if self.quotas is None:
            return
        there = list(partitioned)
        _check_count("Entity", len(there) + 1, self.quotas.entities)
        if wanted:
            most = self.quotas.partitioned_entities
            _check_count("EnablePartitioning == true", sum(there) + 1, most)

    def check_subscriptions(self, count: int) -> None:
        """Reject one more subscription than a topic of the tier has."""
        if self.quotas is not None:
            _check_count("Subscription", count, self.quotas.subscriptions)

    def check_filters(self, rules: Iterable[Rule]) -> None:
        """Reject more filters than a topic of the tier has."""
        if self.quotas is None:
            return
        kinds = [isinstance(rule.filter, CorrelationFilter) for rule in rules]
        correlation = sum(kinds)
        _check_count("CorrelationFilter", correlation, self.quotas.correlation_filters)
        _check_count("SqlFilter", len(kinds) - correlation, self.quotas.sql_filters)

    def check_keys(self, count: int) -> None:
        """Reject more authorization rules than an entity of the tier has."""
        if self.quotas is not None:
            _check_count("AuthorizationRule", count, self.quotas.keys)

    def check_partitioning(self, wanted: bool) -> None:
        """Reject EnablePartitioning where the tier has no partitioned entities."""
        if wanted and not self.partitions:
            raise InvalidArgument(
                f"SubCode=40000. Partitioned entities are not supported in a '{self.sku}' "
                "namespace. The property EnablePartitioning must be set to false."
            )

    def check_entity_size(self, megabytes: int) -> None:
        """Reject a MaxSizeInMegabytes that the tier does not have."""
        if self.entity_megabytes and megabytes not in self.entity_megabytes:
            known = ";".join(map(str, self.entity_megabytes))
            raise InvalidArgument(
                f"SubCode=40000. The specified value {megabytes} is invalid. The property "
                f"'MaxSizeInMegabytes', must be one of the following values: {known}."
            )

    def check_message_size(self, kilobytes: int, namespace: str) -> None:
        """Reject a MaxMessageSizeInKilobytes that the tier does not have."""
        if self.message_kilobytes is None:
            return
        low, high = self.message_kilobytes
        if not low <= kilobytes <= high:
            told = f"between {low} and {high}" if low < high else str(low)
            raise InvalidArgument(
                "SubCode=40000. The property value for 'MaxMessageSizeInKilobytes' must be "
                f"{told} when the namespace '{namespace}' is using '{self.sku}' tier."
            )


def _check_size(what: str, size: int, most: int) -> None:
    if size > most:
        raise MessageTooLarge(f"The {what} of {size} bytes exceeds the limit ({most} bytes).")


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise QuotaExceeded(
            f"SubCode=40300. The maximum number of resources of type {what} has been reached or "
            f"exceeded. The limit is {most}."
        )


#: The fields of a message that belong to its header.
_FIELDS = (
    *("message_id", "session_id", "partition_key", "subject", "correlation_id", "content_type"),
    *("to", "reply_to", "reply_to_session_id"),
)


def _bytes_of(value: Any) -> int:
    """Return how many bytes a value takes, without its type."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    return 0 if value is None else 8


STANDARD = Profile(
    name="standard",
    sku="Standard",
    units=0,
    message_bytes_max=256 * _KILOBYTE,
    batch_bytes_max=256 * _KILOBYTE,
    message_kilobytes=(256, 256),
    entity_megabytes=(1_024, 2_048, 3_072, 4_096, 5_120),
    partitions=True,
    strict_batches=True,
    quotas=TierQuotas(entities=10_000),
)
PREMIUM = Profile(
    name="premium",
    sku="Premium",
    units=1,
    message_bytes_max=100 * _MEGABYTE,
    batch_bytes_max=_MEGABYTE,
    message_kilobytes=(1_024, 102_400),
    entity_megabytes=(*STANDARD.entity_megabytes, 10_240, 20_480, 40_960, 81_920),
    # Document 002; existing partitioned entities continue to work.
    partitions=False,
    strict_batches=True,
    # 1,000 for each messaging unit.
    quotas=TierQuotas(entities=1_000),
)
RELAXED = Profile(
    name="relaxed",
    # The tier that has partitioned entities of 16 partitions.
    sku="Standard",
    units=0,
    message_bytes_max=MESSAGE_BYTES_MAX,
    batch_bytes_max=None,
    message_kilobytes=None,
    entity_megabytes=(),
    partitions=True,
    strict_batches=False,
)

PROFILES = {profile.name: profile for profile in (STANDARD, PREMIUM, RELAXED)}
