"""The inputs and outputs of the actions, one type per action for both protocols.

Names are those of SQS; `rename` derives them from ours. Every member is optional here: each action
checks its required members, so that its error names the missing one. Unknown members are ignored,
as in AWS.
"""

from __future__ import annotations

import msgspec

from onibus.core.message import Message


class _In(msgspec.Struct, rename="pascal", kw_only=True):
    """An input."""


class _Out(msgspec.Struct, rename="pascal", kw_only=True, omit_defaults=True):
    """An output; members without a value are left out."""


class MessageAttribute(msgspec.Struct, rename="pascal", kw_only=True, omit_defaults=True):
    """A typed value sent with a message's body."""

    string_value: str | None = None
    binary_value: bytes | None = None
    data_type: str | None = None


Attributes = dict[str, MessageAttribute]


class QueueIn(_In):
    """An input that names only a queue."""

    queue_url: str | None = None


class CreateQueueIn(_In):
    queue_name: str | None = None
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = msgspec.field(name="tags", default=None)


class GetQueueUrlIn(_In):
    queue_name: str | None = None
    owner: str | None = msgspec.field(name="QueueOwnerAWSAccountId", default=None)


class QueueUrlOut(_Out):
    queue_url: str | None = None


class ListQueuesIn(_In):
    queue_name_prefix: str | None = None
    max_results: int | None = None
    next_token: str | None = None


class ListQueuesOut(_Out):
    queue_urls: list[str] = []
    next_token: str | None = None


class GetAttributesIn(QueueIn):
    attribute_names: list[str] | None = None


class SetAttributesIn(QueueIn):
    attributes: dict[str, str] | None = None


class AttributesOut(_Out):
    attributes: dict[str, str] = {}


class SendIn(QueueIn):
    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: Attributes | None = None
    message_system_attributes: Attributes | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendEntry(SendIn):
    id: str | None = None


class SendBatchIn(QueueIn):
    entries: list[SendEntry] | None = None


class SentEntry(_Out):
    """Of an entry of a batch, or of one message, which has no id."""

    body_md5: str | None = msgspec.field(name="MD5OfMessageBody", default=None)
    attributes_md5: str | None = msgspec.field(name="MD5OfMessageAttributes", default=None)
    system_md5: str | None = msgspec.field(name="MD5OfMessageSystemAttributes", default=None)
    message_id: str | None = None
    sequence_number: str | None = None
    id: str | None = None


class FailedEntry(_Out):
    id: str | None = None
    sender_fault: bool | None = None
    code: str | None = None
    message: str | None = None


class DoneEntry(_Out):
    id: str | None = None


class SendBatchOut(_Out):
    successful: list[SentEntry] = []
    failed: list[FailedEntry] = []


class BatchOut(_Out):
    successful: list[DoneEntry] = []
    failed: list[FailedEntry] = []


class ReceiveIn(QueueIn):
    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class MessageOut(_Out):
    message_id: str | None = None
    receipt_handle: str | None = None
    body_md5: str | None = msgspec.field(name="MD5OfBody", default=None)
    body: str | None = None
    attributes: dict[str, str] = {}
    attributes_md5: str | None = msgspec.field(name="MD5OfMessageAttributes", default=None)
    message_attributes: Attributes = {}


class ReceiveOut(_Out):
    messages: list[MessageOut] = []


class HandleIn(QueueIn):
    receipt_handle: str | None = None


class VisibilityIn(HandleIn):
    visibility_timeout: int | None = None


class HandleEntry(_In):
    id: str | None = None
    receipt_handle: str | None = None


class VisibilityEntry(HandleEntry):
    visibility_timeout: int | None = None


class DeleteBatchIn(QueueIn):
    entries: list[HandleEntry] | None = None


class VisibilityBatchIn(QueueIn):
    entries: list[VisibilityEntry] | None = None


class ListSourcesIn(QueueIn):
    max_results: int | None = None
    next_token: str | None = None


class ListSourcesOut(_Out):
    #: required by the service's model: returned even if it is empty
    queue_urls: list[str] = msgspec.field(name="queueUrls")
    next_token: str | None = None


class TagIn(QueueIn):
    tags: dict[str, str] | None = None


class UntagIn(QueueIn):
    tag_keys: list[str] | None = None


class TagsOut(_Out):
    tags: dict[str, str] = {}


class AddPermissionIn(QueueIn):
    label: str | None = None
    account_ids: list[str] | None = msgspec.field(name="AWSAccountIds", default=None)
    actions: list[str] | None = None


class RemovePermissionIn(QueueIn):
    label: str | None = None


class StartMoveIn(_In):
    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class StartMoveOut(_Out):
    task_handle: str | None = None


class ListMovesIn(_In):
    source_arn: str | None = None
    max_results: int | None = None


class MoveTaskOut(_Out):
    task_handle: str | None = None
    status: str | None = None
    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_moved: int | None = None
    approximate_number_of_messages_to_move: int | None = None
    failure_reason: str | None = None
    started_timestamp: int | None = None


class ListMovesOut(_Out):
    results: list[MoveTaskOut] = []


class CancelMoveIn(_In):
    task_handle: str | None = None


class CancelMoveOut(_Out):
    approximate_number_of_messages_moved: int | None = None


class Ready(msgspec.Struct, eq=False):
    """A message ready to send, and the digests for its sender."""

    message: Message
    delay_ms: int | None
    size: int
    body_md5: str
    attributes_md5: str | None = None
    system_md5: str | None = None
