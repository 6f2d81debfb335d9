"""Where SQS of AWS and Message Queue of Yandex differ, as two values of one type.

A server has one profile (`sqs_profile`); docs/sqs.md lists the differences.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """The behaviour of one of the two services where they differ."""

    name: str
    #: how the name of a queue begins that is good everywhere; region and account follow
    arn: str
    #: the default and the highest message size of a queue
    message_bytes_max: int
    #: a new FIFO queue delivers one message of a group at a time
    one_message_per_group: bool
    #: an expired handle of a FIFO message is an error
    refuses_expired_handles: bool
    #: a batch with an entry that lacks its group or its id fails as a whole
    refuses_whole_batches: bool
    #: DeduplicationScope and FifoThroughputLimit are known
    knows_high_throughput: bool
    #: the purge of a new FIFO queue discards its deduplication ids
    purge_forgets_ids: bool
    #: a new queue with content-based deduplication matches equal content under any id (F7)
    content_matches_any_id: bool
    #: on a standard queue, the handle of an earlier receive may change the visibility timeout,
    #: which changes nothing
    accepts_earlier_handles: bool
    #: a new standard queue delivers messages of noisy groups after others (B10)
    fair_delivery: bool
    #: the status of a request that is not allowed
    denied_status: int


AWS = Profile(
    name="aws",
    arn="arn:aws:sqs",
    message_bytes_max=1_048_576,
    one_message_per_group=False,
    refuses_expired_handles=True,
    refuses_whole_batches=True,
    knows_high_throughput=True,
    purge_forgets_ids=True,
    content_matches_any_id=False,
    accepts_earlier_handles=True,
    fair_delivery=True,
    denied_status=403,
)
YANDEX = Profile(
    name="yandex",
    arn="yrn:yc:ymq",
    message_bytes_max=262_144,
    one_message_per_group=True,
    refuses_expired_handles=False,
    refuses_whole_batches=False,
    knows_high_throughput=False,
    purge_forgets_ids=False,
    content_matches_any_id=True,
    accepts_earlier_handles=False,
    fair_delivery=False,
    denied_status=400,
)

PROFILES = {profile.name: profile for profile in (AWS, YANDEX)}
