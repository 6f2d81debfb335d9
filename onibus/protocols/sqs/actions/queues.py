"""Queues: created, found, listed, deleted, purged."""

from __future__ import annotations

import asyncio
from typing import Any

from onibus.core.errors import EntityExists
from onibus.core.inspection import Filter
from onibus.directory.entity import Entity
from onibus.gateway import settling
from onibus.protocols.sqs import errors, queue_attributes
from onibus.protocols.sqs.actions import naming, redrive, tags
from onibus.protocols.sqs.actions.paging import paged
from onibus.protocols.sqs.call import ANY_RIGHT, Action, SqsCall
from onibus.protocols.sqs.changing import PAUSE_SECONDS, TRIES, in_turn
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.queues import (
    SPELLING,
    check_new_name,
    entity_name,
    queue_name,
    settings_of,
)
from onibus.protocols.sqs.shapes import (
    CreateQueueIn,
    GetQueueUrlIn,
    ListQueuesIn,
    ListQueuesOut,
    QueueIn,
    QueueUrlOut,
)
from onibus.security.rights import Right

#: A queue can be purged once in this many milliseconds.
PURGE_MS = 60_000


async def create_queue(call: SqsCall, given: CreateQueueIn) -> QueueUrlOut:
    """Create a queue; an existing queue with the same attributes is not an error."""
    attributes = queue_attributes.spelled(given.attributes)
    if attributes.get("FifoQueue") == "false":
        text = "Invalid value for the parameter FifoQueue. Reason: Only 'true' is allowed."
        raise SqsError(errors.INVALID_ATTRIBUTE_VALUE, text)
    fifo = "FifoQueue" in attributes
    queue_attributes.check(attributes, call.app.profile, fifo=fifo)
    redrive.check_allow_policy(attributes.get("RedriveAllowPolicy", ""))
    name = check_new_name(given.queue_name, fifo)
    tagged = tags.check(given.tags or {})
    for left in range(TRIES, -1, -1):
        found = call.queues.find(name)
        if found is not None:
            _check_same(call, found, attributes)
            break
        try:
            await _create(call, name, attributes, tagged, fifo=fifo)
            break
        except EntityExists:
            # A topic has that name, or another client is creating the queue.
            if not left or entity_name(name) in call.bus.broker.namespace.entities:
                raise
            await asyncio.sleep(PAUSE_SECONDS)
    return QueueUrlOut(queue_url=call.url(call.queues.by_name(name)))


async def _create(
    call: SqsCall, name: str, attributes: dict[str, str], tagged: dict[str, str], *, fifo: bool
) -> None:
    given = queue_attributes.defaults(call.app.profile, fifo=fifo) | attributes
    given = queue_attributes.with_content_rule(given, call.app.profile)
    policy = given.pop("RedrivePolicy", "")
    settings = queue_attributes.to_settings(given, None, fifo=fifo)
    settings |= redrive.settings_of_policy(call, name, policy, fifo=fifo)
    texts = settings["attributes"]
    texts[SPELLING] = name
    tags.keep(texts, tagged)
    await call.bus.create_queue(entity_name(name), **settings)


def _check_same(call: SqsCall, entity: Entity, attributes: dict[str, str]) -> None:
    """Reject a second creation of a queue with different attributes."""
    now = queue_attributes.of_queue(call.queues, entity, call.region)
    for name, value in attributes.items():
        if not queue_attributes.same(name, now.get(name, ""), value):
            raise SqsError(
                errors.QUEUE_NAME_EXISTS,
                "A queue already exists with the same name and a different value for attribute "
                f"{name}",
            )


async def get_queue_url(call: SqsCall, given: GetQueueUrlIn) -> QueueUrlOut:
    """Return the URL of a queue."""
    assert given.queue_name is not None
    if given.owner not in (None, call.queues.account):
        raise errors.no_queue()
    return QueueUrlOut(queue_url=call.url(call.queues.by_name(given.queue_name)))


async def list_queues(call: SqsCall, given: ListQueuesIn) -> ListQueuesOut:
    """Return the URLs of queues whose names begin with a prefix."""
    prefix = given.queue_name_prefix or ""
    names = [one for one in call.queues.all() if queue_name(one).startswith(prefix)]
    page, token = paged(names, given.max_results, given.next_token)
    return ListQueuesOut(queue_urls=[call.url(one) for one in page], next_token=token)


async def delete_queue(call: SqsCall, given: QueueIn) -> None:
    """Delete a queue with everything in it."""
    name = call.queues.by_url(given.queue_url).name
    await in_turn(lambda: call.bus.delete_queue(name))


async def purge_queue(call: SqsCall, given: QueueIn) -> None:
    """Delete all messages, also those that are in flight or delayed."""
    entity = call.queues.by_url(given.queue_url)
    now = call.bus.broker.clock.now()
    purged = call.app.purged
    for incarnation in [one for one, when in purged.items() if now - when >= PURGE_MS]:
        del purged[incarnation]
    if entity.incarnation in purged:
        raise SqsError(
            errors.PURGE_IN_PROGRESS,
            f"Only one PurgeQueue operation on {queue_name(entity)} is allowed every 60 seconds.",
        )
    purged[entity.incarnation] = now
    settings = settings_of(entity)
    forget = queue_attributes.kept(settings, "OnibusPurgeForgetsIds") == "true"

    def command(reply: Any) -> None:
        settling.purge_all(call.bus.broker, entity.name, Filter(), forget, reply, held=True)

    try:
        await call.bus.ask(command)
    except BaseException:
        # It was not purged, or the outcome is unknown: a client may retry at once.
        purged.pop(entity.incarnation, None)
        raise


ACTIONS: dict[str, Action] = {
    "CreateQueue": Action(
        takes=CreateQueueIn, rights=(Right.MANAGE,), entity=naming.by_name, slow=create_queue
    ),
    "GetQueueUrl": Action(
        takes=GetQueueUrlIn, rights=ANY_RIGHT, entity=naming.by_name, slow=get_queue_url, reads=True
    ),
    "ListQueues": Action(
        takes=ListQueuesIn, rights=ANY_RIGHT, entity=naming.everything, slow=list_queues, reads=True
    ),
    "DeleteQueue": Action(
        takes=QueueIn, rights=(Right.MANAGE,), entity=naming.by_url, slow=delete_queue
    ),
    "PurgeQueue": Action(
        takes=QueueIn, rights=(Right.MANAGE,), entity=naming.by_url, slow=purge_queue
    ),
}
