"""The state of a timeline, as bytes: a small head, and chunks.

The head is a MessagePack array: the version of this form, what the state is of, and its counters
and chunk numbers. What is read back is of this form or refused: a newer version may keep more than
this one understands.
"""

from __future__ import annotations

from typing import Any

import msgspec

from onibus.core.errors import Damaged, InvalidArgument, NewerFormat
from onibus.core.timeline.partners import Partners
from onibus.core.timeline.timeline import Timeline

VERSION = 1


def encode(timeline: Timeline | Partners) -> bytes:
    """Return the head; what is to be kept besides is in the timeline's chunks."""
    if isinstance(timeline, Partners):
        kind, content = "partners", timeline.encode()
    else:
        kind = "timeline"
        content = [
            timeline.next_ordinal,
            timeline.last_stamp,
            timeline.now,
            timeline.known.encode(),
            timeline.waiting.encode(),
            timeline.mortal.encode(),
        ]
    return msgspec.msgpack.encode([VERSION, kind, timeline.chunks.next_chunk, content])


def decode(head: bytes, timeline: Timeline | Partners) -> None:
    """Take up a state into a timeline that was made anew."""
    try:
        version, kind, next_chunk, content = msgspec.msgpack.decode(head)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise Damaged(f"the state of a timeline cannot be read: {error}") from error
    if version != VERSION:
        raise NewerFormat(f"the state is of version {version}, and this one reads {VERSION}")
    if kind != ("partners" if isinstance(timeline, Partners) else "timeline"):
        raise InvalidArgument(f"the state is of another operator ({kind}): take a new checkpoint")
    timeline.chunks.next_chunk = next_chunk
    if isinstance(timeline, Partners):
        timeline.decode(content)
    else:
        _decode_timeline(content, timeline)


def _decode_timeline(content: Any, timeline: Timeline) -> None:
    ordinal, stamp, now, known, waiting, mortal = content
    timeline.next_ordinal, timeline.last_stamp, timeline.now = ordinal, stamp, now
    timeline.known.decode(known)
    timeline.waiting.decode(waiting)
    timeline.mortal.decode(mortal)
