"""Which entity an action is about: for the right that is asked, before anything is looked up."""

from __future__ import annotations

from typing import Any

from onibus.protocols.sqs import errors
from onibus.protocols.sqs.queues import Queues, entity_name, name_in


def by_url(queues: Queues, given: Any) -> str:
    """The queue of QueueUrl."""
    if not given.queue_url:
        raise errors.missing("QueueUrl")
    return name_in(given.queue_url, queues.account)


def by_name(queues: Queues, given: Any) -> str:
    """The queue of QueueName."""
    if not given.queue_name:
        raise errors.missing("QueueName")
    return entity_name(given.queue_name)


def everything(queues: Queues, given: Any) -> str:
    """All queues."""
    return ""
