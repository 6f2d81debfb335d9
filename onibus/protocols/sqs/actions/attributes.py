"""GetQueueAttributes and SetQueueAttributes."""

from __future__ import annotations

import asyncio
from typing import Any

from onibus.core.settings import QueueSettings
from onibus.protocols.sqs import errors, queue_attributes
from onibus.protocols.sqs.actions import naming, redrive
from onibus.protocols.sqs.actions.receiving import ARRIVAL_MS
from onibus.protocols.sqs.call import ANY_RIGHT, Action, SqsCall
from onibus.protocols.sqs.changing import change
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.queues import queue_name, settings_of
from onibus.protocols.sqs.shapes import AttributesOut, GetAttributesIn, SetAttributesIn
from onibus.security.rights import Right


async def get_attributes(call: SqsCall, given: GetAttributesIn) -> AttributesOut:
    """Return the attributes that the client requests."""
    entity = call.queues.by_url(given.queue_url)
    names = given.attribute_names or []
    left = ARRIVAL_MS
    while left and call.bus.broker.forwarding.brings_to(entity.name):
        # The counts include what the last request caused.
        await asyncio.sleep(0.01)
        left -= 10
    for name in names:
        if name != "All" and name not in queue_attributes.KNOWN:
            raise SqsError(errors.INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
    found = queue_attributes.of_queue(call.queues, entity, call.region)
    if "All" in names:
        # What every new queue has here, and no queue of the service, is shown on request only.
        fifo = settings_of(entity).fifo
        names = names + queue_attributes.unusual(found, call.app.profile, fifo=fifo)
    return AttributesOut(attributes={one: found[one] for one in found if one in names})


async def set_attributes(call: SqsCall, given: SetAttributesIn) -> None:
    """Change attributes of a queue."""
    entity = call.queues.by_url(given.queue_url)
    if given.attributes is None:
        raise errors.missing("Attribute.Name")
    attributes = queue_attributes.spelled(given.attributes)
    old = settings_of(entity)
    if attributes.pop("FifoQueue", "true" if old.fifo else "false") != str(old.fifo).lower():
        text = (
            "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not "
            "supported."
        )
        raise SqsError(errors.INVALID_ATTRIBUTE_VALUE, text)
    queue_attributes.check(attributes, call.app.profile, fifo=old.fifo)
    redrive.check_allow_policy(attributes.get("RedriveAllowPolicy", ""))
    policy = attributes.pop("RedrivePolicy", None)
    redriven = {}
    if policy is not None:
        redriven = redrive.settings_of_policy(call, queue_name(entity), policy, fifo=old.fifo)
    seconds = call.bus.broker.clock.wall() // 1_000

    def changed(settings: QueueSettings) -> dict[str, Any]:
        given = queue_attributes.with_content_rule(attributes, call.app.profile, settings)
        wanted = queue_attributes.to_settings(given, settings, fifo=settings.fifo)
        wanted["attributes"][queue_attributes.PREFIX + "LastModified"] = str(seconds)
        return wanted | redriven

    await change(call.bus, entity, changed)


ACTIONS: dict[str, Action] = {
    "GetQueueAttributes": Action(
        takes=GetAttributesIn,
        rights=ANY_RIGHT,
        entity=naming.by_url,
        slow=get_attributes,
        reads=True,
    ),
    "SetQueueAttributes": Action(
        takes=SetAttributesIn, rights=(Right.MANAGE,), entity=naming.by_url, slow=set_attributes
    ),
}
