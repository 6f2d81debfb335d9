"""The state of timelines that share their chunks, as bytes: a small head, and the chunks.

The head is a MessagePack array: the version of this format, the next chunk's number, and for each
timeline its kind, counters and chunk numbers. Other versions are rejected: a newer version may keep
more than this one understands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from onibus.core.errors import Damaged, InvalidArgument, NewerFormat
from onibus.core.timeline.partners import Partners
from onibus.core.timeline.timeline import Timeline

VERSION = 1

State = Timeline | Partners


def encode(states: Sequence[State]) -> bytes:
    """Return the head; the rest is in the chunks, which all the states share."""
    told = [[_kind(state), _plain(state)] for state in states]
    return msgspec.msgpack.encode([VERSION, states[0].chunks.next_chunk, told])


def decode(head: bytes, states: Sequence[State]) -> None:
    """Load a state into newly made timelines."""
    try:
        version, next_chunk, told = msgspec.msgpack.decode(head)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise Damaged(f"the state of a timeline cannot be read: {error}") from error
    if version != VERSION:
        raise NewerFormat(
            f"the state has version {version}; this version of onibus reads {VERSION}"
        )
    if [kind for kind, _ in told] != [_kind(state) for state in states]:
        raise InvalidArgument("the state belongs to another operator: use a new checkpoint")
    for state, (_, content) in zip(states, told, strict=True):
        state.chunks.next_chunk = next_chunk
        if isinstance(state, Partners):
            state.decode(content)
        else:
            _decode_timeline(content, state)


def _kind(state: State) -> str:
    return "partners" if isinstance(state, Partners) else "timeline"


def _plain(state: State) -> list[Any]:
    if isinstance(state, Partners):
        return state.encode()
    return [
        state.next_ordinal,
        state.last_stamp,
        state.now,
        state.known.encode(),
        state.waiting.encode(),
        state.mortal.encode(),
    ]


def _decode_timeline(content: Any, timeline: Timeline) -> None:
    ordinal, stamp, now, known, waiting, mortal = content
    timeline.next_ordinal, timeline.last_stamp, timeline.now = ordinal, stamp, now
    timeline.known.decode(known)
    timeline.waiting.decode(waiting)
    timeline.mortal.decode(mortal)
