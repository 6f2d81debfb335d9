"""A mark: the state of one message that is not simply active, or was delivered before."""

from __future__ import annotations

import msgspec

from onibus.core.holds import Hold
from onibus.core.lifecycle import State


class Mark(msgspec.Struct, eq=False, gc=False):
    """The state of a message and its deliveries.

    Every receive makes them: a struct needs no Python call to be made. None is part of a cycle,
    since a hold knows only ordinals.
    """

    state: State = State.ACTIVE
    deliveries: int = 0
    due: int = 0
    reason: str | None = None
    description: str | None = None
    #: fields that replace those of the message (core/message.py)
    overlay: bytes | None = None
    hold: Hold | None = None
    stored: bool = False
