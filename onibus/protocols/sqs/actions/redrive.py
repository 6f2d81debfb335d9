"""Dead-letter queues: which queues redrive to which, and which queues allow it.

A queue with a redrive policy dead-letters a message after `max_delivery_count` receives and
forwards it (`forward_dead_letters_to`). Without a redrive policy it redelivers a message without
limit.
"""

from __future__ import annotations

from typing import Any

import msgspec

from onibus.directory.entity import Entity
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.actions import naming
from onibus.protocols.sqs.actions.paging import paged
from onibus.protocols.sqs.call import ANY_RIGHT, Action, SqsCall
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.queue_attributes import ENDLESS, kept
from onibus.protocols.sqs.queues import entity_name, settings_of
from onibus.protocols.sqs.shapes import ListSourcesIn, ListSourcesOut
from onibus.security.rights import Right

RECEIVES_MAX = 1_000
SOURCES_MAX = 10


def settings_of_policy(call: SqsCall, name: str, text: str, *, fifo: bool) -> dict[str, Any]:
    """Return what a redrive policy means for a queue; an empty one removes it."""
    if not text:
        return {"forward_dead_letters_to": None, "max_delivery_count": ENDLESS}
    policy = _policy(text)
    for key in ("maxReceiveCount", "deadLetterTargetArn"):
        if key not in policy:
            raise _bad(text, f"Redrive policy does not contain mandatory attribute: {key}.")
    count = str(policy["maxReceiveCount"])
    if not (count.isascii() and count.isdigit()) or not 1 <= int(count[:9]) <= RECEIVES_MAX:
        text_of_count = (
            f"Invalid value for maxReceiveCount: {count[:40]}, valid values are from 1 to"
        )
        raise _bad(text, f"{text_of_count} {RECEIVES_MAX} both inclusive.")
    arn = policy["deadLetterTargetArn"]
    target = _target(call, arn) if isinstance(arn, str) else None
    if target is None:
        raise _bad(text, "Dead letter target does not exist.")
    if target.name == entity_name(name):
        raise _bad(text, "Dead-letter target must not be the source queue.")
    if settings_of(target).fifo != fifo:
        raise _bad(text, "Dead-letter target must be same type of queue as the source.")
    if not _allows(call, target, name):
        raise _bad(text, "Queue is not allowed by the redrive allow policy of its target.")
    return {"forward_dead_letters_to": target.name, "max_delivery_count": int(count)}


def _target(call: SqsCall, arn: str) -> Entity | None:
    """Return the queue of an ARN; the client needs Manage on a dead-letter queue, too."""
    name = call.queues.name_in_arn(arn)
    if name is None:
        return None
    call.grant(Right.MANAGE, entity_name(name))
    return call.queues.find(name)


def _policy(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise _bad(text, "Redrive policy is not a valid JSON map.") from None


def _bad(text: str, reason: str) -> SqsError:
    return errors.invalid("RedrivePolicy", text, reason)


def check_allow_policy(text: str) -> None:
    """Reject an invalid policy of the queues that may redrive here."""
    if not text:
        return
    try:
        policy = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        policy = {}
    permission = policy.get("redrivePermission")
    sources = policy.get("sourceQueueArns", [])
    good = permission in ("allowAll", "denyAll") and not sources
    by_queue = isinstance(sources, list) and 0 < len(sources) <= SOURCES_MAX
    if not good and not (permission == "byQueue" and by_queue):
        raise errors.invalid(
            "RedriveAllowPolicy",
            text,
            "redrivePermission is allowAll, denyAll, or byQueue with 1 to 10 sourceQueueArns.",
        )


def _allows(call: SqsCall, target: Entity, name: str) -> bool:
    text = kept(settings_of(target), "RedriveAllowPolicy")
    if text is None:
        return True
    policy = msgspec.json.decode(text, type=dict[str, Any])
    if policy["redrivePermission"] == "byQueue":
        wanted = entity_name(name)
        names = [call.queues.name_in_arn(str(arn)) for arn in policy["sourceQueueArns"]]
        return wanted in [entity_name(one) for one in names if one is not None]
    return bool(policy["redrivePermission"] == "allowAll")


def sources_of(call: SqsCall, target: Entity) -> list[Entity]:
    """Return the source queues of a dead-letter queue."""
    return [
        one
        for one in call.queues.all()
        if (settings_of(one).forward_dead_letters_to or "").lower() == target.name
    ]


async def list_sources(call: SqsCall, given: ListSourcesIn) -> ListSourcesOut:
    """Return the source queues of a dead-letter queue."""
    found = sources_of(call, call.queues.by_url(given.queue_url))
    page, token = paged(found, given.max_results, given.next_token)
    return ListSourcesOut(queue_urls=[call.url(one) for one in page], next_token=token)


ACTIONS: dict[str, Action] = {
    "ListDeadLetterSourceQueues": Action(
        takes=ListSourcesIn, rights=ANY_RIGHT, entity=naming.by_url, slow=list_sources, reads=True
    ),
}
