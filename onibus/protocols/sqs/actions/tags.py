"""Tags of queues: kept with them, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from onibus.directory.entity import Entity
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.actions import naming
from onibus.protocols.sqs.call import ANY_RIGHT, Action, SqsCall
from onibus.protocols.sqs.changing import change_texts
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.queues import settings_of
from onibus.protocols.sqs.shapes import QueueIn, TagIn, TagsOut, UntagIn
from onibus.security.rights import Right

KEPT = "sqs.Tags"
COUNT_MAX = 50
KEY_LENGTH_MAX = 128
VALUE_LENGTH_MAX = 256


def check(tags: dict[str, str]) -> dict[str, str]:
    """Return tags, or reject them."""
    if len(tags) > COUNT_MAX:
        raise SqsError(
            errors.INVALID_PARAMETER, f"Too many tags added for queue: at most {COUNT_MAX}."
        )
    for key, value in tags.items():
        if not 0 < len(key) <= KEY_LENGTH_MAX or len(value) > VALUE_LENGTH_MAX:
            raise SqsError(
                errors.INVALID_PARAMETER,
                f"Tag keys must be between 1 and {KEY_LENGTH_MAX} characters in length, tag values "
                f"at most {VALUE_LENGTH_MAX}.",
            )
    return tags


def keep(texts: dict[str, str], tags: dict[str, str]) -> None:
    """Put tags among what a queue keeps."""
    if tags:
        texts[KEPT] = msgspec.json.encode(tags).decode()
    else:
        texts.pop(KEPT, None)


def tags_of(entity: Entity) -> dict[str, str]:
    """Return the tags of a queue."""
    text = settings_of(entity).attributes.get(KEPT)
    return {} if text is None else msgspec.json.decode(text, type=dict[str, str])


async def _change(
    call: SqsCall, entity: Entity, make: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    def changed(texts: dict[str, str]) -> dict[str, str]:
        keep(texts, check(make(tags_of(entity))))
        return texts

    await change_texts(call.bus, entity, changed)


async def tag_queue(call: SqsCall, given: TagIn) -> None:
    """Add tags, or change them."""
    entity = call.queues.by_url(given.queue_url)
    added = given.tags
    if not added:
        raise errors.missing("Tags")
    await _change(call, entity, lambda tags: tags | added)


async def untag_queue(call: SqsCall, given: UntagIn) -> None:
    """Remove tags; those that are not there are no error."""
    entity = call.queues.by_url(given.queue_url)
    keys = given.tag_keys
    if not keys:
        raise errors.missing("TagKeys")
    await _change(
        call,
        entity,
        lambda tags: {key: value for key, value in tags.items() if key not in keys},
    )


async def list_tags(call: SqsCall, given: QueueIn) -> TagsOut:
    """Return all tags of a queue."""
    return TagsOut(tags=tags_of(call.queues.by_url(given.queue_url)))


ACTIONS: dict[str, Action] = {
    "TagQueue": Action(takes=TagIn, rights=(Right.MANAGE,), entity=naming.by_url, slow=tag_queue),
    "UntagQueue": Action(
        takes=UntagIn, rights=(Right.MANAGE,), entity=naming.by_url, slow=untag_queue
    ),
    "ListQueueTags": Action(
        takes=QueueIn, rights=ANY_RIGHT, entity=naming.by_url, slow=list_tags, reads=True
    ),
}
