"""A mark: what is known of one message that is not simply waiting, or was delivered before."""

from __future__ import annotations

import msgspec

from onibus.core.holds import Hold
from onibus.core.lifecycle import State


class Mark(msgspec.Struct, eq=False, gc=False):
    """What is known of a message.

    Every receive makes them: as a struct one is made without a call of Python. None is part of a
    cycle, since a hold knows the ordinals only.
    """

    state: State = State.ACTIVE
    deliveries: int = 0
    due: int = 0
    reason: str | None = None
    description: str | None = None
    #: fields that lie over those of the message (core/message.py)
    overlay: bytes | None = None
    hold: Hold | None = None
    stored: bool = False
