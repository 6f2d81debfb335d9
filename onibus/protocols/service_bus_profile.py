"""The tiers of Service Bus, and our own tier, as values of one type.

A server has one profile (`service_bus_profile`), which limits what Service Bus clients do over
AMQP and HTTP. The native API and SQS do not change with it. docs/amqp.md compares the profiles.
Sources: the quotas of the service, its errors, and document 002 on partitioning.
"""

from __future__ import annotations

from dataclasses import dataclass

from onibus.core.errors import InvalidArgument, MessageTooLarge
from onibus.core.limits import MESSAGE_BYTES_MAX
from onibus.core.settings import LogSettings

_KILOBYTE, _MEGABYTE = 1 << 10, 1 << 20


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
