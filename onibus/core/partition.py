"""One partition: a log, the ids it remembers, and what its subscription knows of its messages.

Sending is `path/enqueue.send`: deduplicate → stamp → store → show. Receiving is `path/deliver`,
settling `path/settle`, time passing `path/expire`. None of them does I/O, reads a clock or draws
randomness: `now` (bus time, which never runs backwards) and `wall` (for stamps) are arguments, and
every change is written into the WriteBatch that the caller commits before anybody is answered.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from onibus.core.block import NEVER
from onibus.core.errors import LockLost, MessageNotFound, SessionLockLost
from onibus.core.holds import TOKEN, Hold, check_of
from onibus.core.id_runs import Sizes
from onibus.core.lifecycle import State, words
from onibus.core.limits import DUPLICATES_LISTED_MAX
from onibus.core.log import Log
from onibus.core.marks import Mark
from onibus.core.message import Message, ReceivedMessage, decode_properties
from onibus.core.numbering import Numbering
from onibus.core.pages import Pages
from onibus.core.records import COUNTERS, WriteBatch
from onibus.core.remembered_ids import RememberedIds
from onibus.core.settings import QueueSettings
from onibus.core.subscription import Subscription


class Partition:
    """The state of one partition. Everything here can be read back from its store."""

    #: how large generations of remembered ids are, where tests want them small
    id_sizes: ClassVar[Sizes | None] = None

    def __init__(
        self,
        partition: int,
        index: int,
        settings: QueueSettings,
        pages: Pages,
        secret: bytes,
        boot: int,
        counter_bits: int | None = None,
    ) -> None:
        self.partition = partition
        self.index = index
        self.settings = settings
        self.secret = secret
        #: how often the store was opened: keeps tokens of a crashed run from matching
        self.boot = boot
        self.numbering = Numbering(index, settings.enable_partitioning, counter_bits)
        self.log = Log(partition, pages)
        self.ids = RememberedIds(partition, pages, self.id_sizes)
        self.subscription = Subscription(partition, 0, settings, self.log, secret)
        if settings.retention_ms is not None:
            self.log.floor = 0
        self.epoch = 0
        self.duplicates = 0
        self.recent_duplicates: deque[tuple[str | None, int, int]] = deque(
            maxlen=DUPLICATES_LISTED_MAX
        )
        #: ids recorded up to this bus time were forgotten when the window changed (D4)
        self.forgotten_before = 0
        #: ids of ordinals below this were forgotten by a purge
        self.forget_below = 0
        #: bus time of the last command, and of the last change, by itself or not
        self.accessed = 0
        self.seen = 0
        self._committing_below = 1
        self._committing_ids = 0

    # Settings and time

    def change_settings(self, settings: QueueSettings, now: int, out: WriteBatch) -> None:
        """Take new settings. A shorter window forgets at once, a longer one revives nothing."""
        self.forgotten_before = max(
            self.forget_before(now), now - settings.duplicate_detection_window_ms
        )
        self.settings = self.subscription.settings = settings
        if settings.retention_ms is not None and self.log.floor == NEVER:
            self.log.floor = self.log.next_ordinal
        self.write_counters(out)

    def forget_before(self, now: int) -> int:
        """Return the bus time up to which recorded ids are no duplicates any more (D5)."""
        return max(self.forgotten_before, now - self.settings.duplicate_detection_window_ms)

    def next_wake(self) -> int:
        """Return the bus time at which something happens by itself."""
        return min(self.subscription.next_due(), self.log.next_expiry())

    def keeps_for_a_time(self) -> bool:
        """Tell whether something is kept that has to go when its time is over."""
        return self.ids.count > 0 or self.settings.retention_ms is not None

    # Committing

    def write_counters(self, out: WriteBatch) -> None:
        out.put(
            COUNTERS,
            (
                self.partition,
                self.log.next_ordinal,
                self.log.last_stamp,
                self.epoch,
                self.forgotten_before,
                self.forget_below,
                self.duplicates,
                self.accessed,
                self.seen,
            ),
        )

    def finish(self, now: int, out: WriteBatch, by_itself: bool = False) -> None:
        """Write what a command, or time passing, left behind; called once after each.

        Bus time goes on from `seen` after a restart: what was forgotten at a time stays so.
        """
        self.seen = now
        if not by_itself:
            self.accessed = now
        self.subscription.write_holds(out)
        self.write_counters(out)

    def commit_started(self) -> None:
        """What was written so far is on its way to the disk."""
        self._committing_below = self.log.next_ordinal
        self._committing_ids = self.ids.mark()
        self.log.commit_started()

    def commit_finished(self) -> None:
        """What was on its way is durable: its messages may be shown."""
        self.log.commit_finished(self._committing_below)
        self.ids.settled(self._committing_ids)

    # Holds and tokens

    def new_hold(self, until: int, duration: int, session: str | None) -> Hold:
        self.epoch = (self.epoch + 1) & 0xFFFFFFFF
        check = check_of(
            self.secret, self.partition, self.subscription.number, self.boot, self.epoch
        )
        return Hold(self.epoch, check, until, duration, session)

    def token(self, ordinal: int, hold: Hold) -> bytes:
        return TOKEN.pack(self.numbering.number(ordinal), hold.epoch, hold.check)

    def held(self, token: bytes) -> tuple[int, Mark, Hold]:
        """Return the message that a token holds, or refuse the token."""
        number, epoch, check = TOKEN.unpack(token)
        hold = self.subscription.holds.get(epoch)
        if hold is not None and hold.check == check:
            for ordinal in self.numbering.candidates(number, self.log.next_ordinal):
                if ordinal in hold.ordinals:
                    return ordinal, self.subscription.marks[ordinal], hold
        if self.settings.requires_session and not self.settings.fifo:
            raise SessionLockLost(f"the session that held message {number} is locked no more")
        raise LockLost(f"the lock on message {number} was lost: it ran out, or was settled before")

    # Messages

    def ordinal(self, number: int) -> int:
        """Return the live, shown ordinal of a sequence number, or refuse it."""
        if isinstance(number, int):
            for ordinal in self.numbering.candidates(number, self.log.next_ordinal):
                if ordinal < self.log.visible_below and self.subscription.is_live(ordinal):
                    return ordinal
        raise MessageNotFound(f"no message with sequence number {number} is there")

    def view(self, ordinal: int, hold: Hold | None = None, until: int = 0) -> ReceivedMessage:
        """Return a message as a receiver sees it, read from its block and verified."""
        block, position = self.log.entry(ordinal)
        entry = block.entry(position)
        received = ReceivedMessage(
            message=block.message(position),
            sequence_number=self.numbering.number(ordinal),
            enqueued_time_ms=entry[1],
        )
        if entry[2] != NEVER:
            received.expires_at_ms = entry[2]
        if hold is not None:
            received.token = self.token(ordinal, hold)
            received.locked_until_ms = until
        mark = self.subscription.marks.get(ordinal)
        if mark is not None:
            _apply_mark(received, mark)
        return received


def _apply_mark(received: ReceivedMessage, mark: Mark) -> None:
    if mark.state is not State.ACTIVE:
        received.state = words(mark.state)
    received.delivery_count = mark.deliveries
    received.dead_letter_reason = mark.reason
    received.dead_letter_description = mark.description
    if mark.properties is not None:
        message: Message = received.message
        message.properties = message.properties | decode_properties(mark.properties)
