"""Holds: what keeps a message from others for a time, and the token that proves it.

A token is 16 bytes, big-endian: sequence number (8), epoch of the hold (4), check (4). The check is
a keyed hash of partition, subscription, boot and epoch: a token of another entity, of an earlier
incarnation, or of a hold that a crash wiped out never matches.
"""

from __future__ import annotations

import struct
from array import array
from hashlib import blake2b
from itertools import chain

from onibus.core.block import NEVER
from onibus.core.numbering import ORDINAL_CODE
from onibus.core.records import Row
from onibus.core.sessions import Session

TOKEN = struct.Struct(">QII")
_SEED = struct.Struct(">QQQQ")


class Hold:
    """Messages delivered together; each is renewed and settled separately."""

    __slots__ = (
        "attempt", "check", "duration", "epoch", "fair", "groups", "ordinals", "owner", "session",
        "until",
    )  # fmt: skip

    def __init__(
        self,
        epoch: int,
        check: int,
        until: int,
        duration: int,
        session: str | None,
        owner: str = "",
    ) -> None:
        self.epoch = epoch
        self.check = check
        #: when their lock expires; NEVER if their session's lock, or an owner, holds them
        self.until = until
        self.duration = duration
        #: their session, on entities with sessions
        self.session = session
        #: the group of each, where a receive from a FIFO queue took them from several
        self.groups: dict[int, Session] = {}
        #: the groups of those in flight from a fair queue; None if this hold does not count (B10)
        self.fair: dict[int, str] | None = None
        #: the ordinals that it still holds, each with the time its lock expires
        self.ordinals: dict[int, int] = {}
        #: the ReceiveRequestAttemptId of the receive that delivered them (F9)
        self.attempt: str | None = None
        #: a claim or a staged change that holds them instead of a receiver; empty if none does
        self.owner = owner

    def columns(self) -> Row:
        """Return the columns of its row that follow the key."""
        # Each ordinal, and until when it is held.
        ordinals = array(ORDINAL_CODE, chain.from_iterable(self.ordinals.items())).tobytes()
        return self.until, self.duration, self.check, self.session, ordinals, self.owner

    @property
    def received(self) -> int:
        """When a receiver got them, where a lock of their own holds them."""
        return self.until - self.duration

    @property
    def carried(self) -> bool:
        """Return whether a session lock holds them."""
        return self.until == NEVER and not self.owner


class Attempt:
    """A FIFO receive that a client can repeat (F9)."""

    __slots__ = ("epochs", "until")

    def __init__(self, until: int, epochs: list[int]) -> None:
        self.until = until
        #: for each of its messages the epoch of its hold
        self.epochs = epochs


def check_of(secret: bytes, partition: int, subscription: int, boot: int, epoch: int) -> int:
    """Return the check that tokens of a hold carry."""
    seed = _SEED.pack(partition, subscription, boot, epoch)
    return int.from_bytes(blake2b(seed, digest_size=4, key=secret).digest(), "big")


def takeover_of(secret: bytes, partition: int, subscription: int, boot: int, epoch: int) -> bytes:
    """Return the token by which a non-exclusive session lock is taken over (B9).

    Its 16 bytes cannot be guessed: a receiver that has them takes the session.
    """
    seed = _SEED.pack(partition, subscription, boot, epoch)
    return blake2b(seed, digest_size=TOKEN.size, key=secret, person=b"takeover").digest()
