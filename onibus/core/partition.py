"""One partition: a log, its recorded ids, and the states of its messages in each subscription.

`apply` is the way in: it carries out a command (core/commands.py) by the handler of its verb
(core/path/). Handlers do no I/O, read no clock and draw no randomness: `now` (bus time, which never
runs backwards) and `wall` (for stamps) are arguments, and the broker keeps the offsets of the wall
clock up to date (core/clock_offsets.py). Every change is written into the WriteBatch, which the
caller commits before it replies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from onibus.core.block import NEVER
from onibus.core.clock_offsets import ClockOffsets
from onibus.core.commands import Command
from onibus.core.errors import EntityNotFound, Refused
from onibus.core.fair_queue import FairQueue
from onibus.core.handlers import CHECKS, HANDLERS
from onibus.core.id_runs import Sizes
from onibus.core.limits import DUPLICATES_LISTED_MAX
from onibus.core.log import Log, Repair
from onibus.core.numbering import ORDINALS_END, Numbering, to_column
from onibus.core.outcomes import OutcomeLog
from onibus.core.pages import Pages
from onibus.core.records import COUNTERS, REPAIRS, WriteBatch
from onibus.core.remembered_ids import RememberedIds
from onibus.core.returns import Returns
from onibus.core.rules.rule import CompiledRule
from onibus.core.settings import LogSettings, QueueSettings, SubscriptionSettings, TopicSettings
from onibus.core.subscription import Subscription
from onibus.core.tally import Tally
from onibus.core.timers import Timers

if TYPE_CHECKING:
    from onibus.core.path.compact import Rewrite

R = TypeVar("R")
_UNKNOWN: tuple[None, int] = (None, NEVER)


class Partition:
    """The state of one partition. Everything here can be read back from its store."""

    #: how large generations of recorded ids are; tests make them small
    id_sizes: ClassVar[Sizes | None] = None

    def __init__(
        self,
        partition_id: int,
        index: int,
        settings: LogSettings,
        pages: Pages,
        secret: bytes,
        boot: int,
        counter_bits: int | None = None,
        offsets: ClockOffsets | None = None,
    ) -> None:
        self.id = partition_id
        self.index = index
        self.settings = settings
        self.secret = secret
        self.offsets = offsets or ClockOffsets()
        #: where ends of deliveries are recorded, if anywhere
        self.returns: Returns | None = None
        #: where a subscription counts, by its number
        self.tallies: Callable[[int], Tally] = lambda number: Tally()
        #: how often the store was opened: keeps tokens of a crashed run from matching
        self.boot = boot
        #: rises with each change, and is higher after each opening of the store
        self.changes = boot << 40
        self.numbering = Numbering(index, settings.enable_partitioning, counter_bits)
        self.log = Log(partition_id, pages)
        self.ids = RememberedIds(partition_id, pages, self.id_sizes)
        #: a queue's only one; in a topic, where its scheduled messages wait
        self.subscription = Subscription(self, 0, _own_settings(settings))
        #: all of them by their numbers
        self.subscriptions = {0: self.subscription}
        #: those of a topic that may have something due earlier than `_dues` knows
        self.stale: dict[int, Subscription] = {}
        self._dues = Timers()
        self._moments = 0
        #: what `next_wake` has found since the last change, and the offset that it holds for
        self._wake: tuple[int | None, int] = _UNKNOWN
        #: bus time by which locks have expired that hold their messages still: a slice is left
        self.overdue = 0
        #: the position of each named reader of the log (R2)
        self.readers: dict[str, int] = {}
        #: outcomes that the next commit takes along, and those that are on their way
        self._outcomes: list[OutcomeLog] = []
        self._committing_outcomes: list[OutcomeLog] = []
        if settings.retention_ms is not None:
            self.log.floor = 0
        self.keep_outcomes()
        self.epoch = 0
        self.duplicates = 0
        self.recent_duplicates: deque[tuple[str | None, int, int]] = deque(
            maxlen=DUPLICATES_LISTED_MAX
        )
        #: ids recorded up to this bus time were forgotten when the window changed (D4)
        self.forgotten_before = 0
        #: ids of ordinals below this were forgotten by a purge
        self.forget_below = 0
        #: states or holds changed since `finish` wrote them
        self.dirty = False
        #: bus time of the last command, and of the last change by a command or by time
        self.accessed = 0
        self.seen = 0
        #: deleted subscriptions whose rows of the log are still counted (path/erase.py)
        self.releasing = 0
        #: blocks that are being rewritten (path/compact.py)
        self.rewrite: Rewrite | None = None
        self._committing_below = 1
        self._committing_ids = 0

    @property
    def is_topic(self) -> bool:
        """Return whether messages go to several subscriptions rather than to one."""
        return isinstance(self.settings, TopicSettings)

    # Commands

    def apply(self, command: Command[R], now: int, wall: int, out: WriteBatch) -> R:
        """Carry out a command on a partition that is up to `now`; return its result.

        `Refused` means that nothing has changed. After any other error the memory of the partition
        is in doubt. The partition knows whether it changed: if it did, `out` has its records.
        """
        self._check_subscription(command)
        try:
            result: R = HANDLERS[type(command)](self, command, now, wall, out)
        except Refused as refusal:
            if out or self.dirty:
                raise AssertionError(f"rejected after a change: {refusal}") from refusal
            raise
        if out or self.dirty:
            assert not command.is_query, f"{type(command).__name__} has changed the partition"
            self.finish(now, out)
        return result

    def check(self, command: Command[R]) -> None:
        """Raise the rejection with which `apply` would end, if it would; change nothing."""
        self._check_subscription(command)
        CHECKS[type(command)](self, command)

    def _check_subscription(self, command: Command[Any]) -> None:
        number = getattr(command, "subscription", 0)
        if not number and command.is_query:
            number = getattr(command, "outcomes_of", 0)
        if number and number not in self.subscriptions:
            raise EntityNotFound("the subscription was deleted")

    # Settings and time

    def change_settings(self, settings: LogSettings, now: int, out: WriteBatch) -> None:
        """Take new settings. A shorter window forgets at once, a longer one revives nothing."""
        self.forgotten_before = max(
            self.forget_before(now), now - settings.duplicate_detection_window_ms
        )
        self.settings = settings
        self.subscription.settings = _own_settings(settings)
        self.subscription.follow_settings()
        if settings.retention_ms is not None and self.log.floor == ORDINALS_END:
            self.log.floor = self.log.next_ordinal
        self.keep_outcomes()
        self.write_counters(out)

    def subscribe(
        self, number: int, settings: SubscriptionSettings, rules: list[CompiledRule]
    ) -> Subscription:
        """Add a subscription to a topic; it gets the messages sent from now on."""
        subscription = Subscription(self, number, settings)
        subscription.rules = rules
        subscription.tally = self.tallies(number)
        if self.log.next_ordinal > 1:
            # Nothing is written: each block is stored with its subscriptions (core/fans.py).
            subscription.gone.add(1, self.log.next_ordinal - 1)
        self.subscriptions[number] = subscription
        self.keep_outcomes()
        return subscription

    # Rows kept for readers

    def keep_outcomes(self) -> None:
        """Keep outcomes in all subscriptions with a retention, else in those with readers."""
        retained = self.settings.retention_ms is not None
        for subscription in self.subscriptions.values():
            outcomes = subscription.outcomes
            outcomes.kept = retained or bool(outcomes.readers)

    def keep_for(self, reader: str, ordinal: int) -> None:
        """Keep the rows from that ordinal on for a named reader."""
        self.readers[reader] = ordinal
        self.log.floor = min(self.log.floor, ordinal)

    def trim_outcomes(self, now: int, out: WriteBatch) -> bool:
        """Delete some of the outcomes that are no longer kept; return whether more are left."""
        more = [one.outcomes.trim(self.settings, now, out) for one in self.subscriptions.values()]
        return any(more)

    def in_use(self, ordinal: int) -> bool:
        """Return whether a message still has this ordinal."""
        return any(one.is_live(ordinal) for one in self.subscriptions.values())

    def forget_before(self, now: int) -> int:
        """Return the bus time up to which recorded ids no longer count (D5)."""
        return max(self.forgotten_before, now - self.settings.duplicate_detection_window_ms)

    def next_wake(self) -> int:
        """Return the bus time of the next change that time brings."""
        moments, due = self._wake
        if moments != self.offsets.moments:
            due = min(self.subscription.next_due(), self.log.next_expiry())
            if len(self.subscriptions) > 1:
                due = min(due, self._next_due_of_all())
            self._wake = (self.offsets.moments, due)
        return due

    def _next_due_of_all(self) -> int:
        """Return the same of a topic's subscriptions, without asking all of them each time."""
        if self._moments != self.offsets.moments:
            # The wall clock was set, which moves scheduled messages.
            self._moments = self.offsets.moments
            self.stale = dict(self.subscriptions)
        for number, subscription in self.stale.items():
            self._dues.set(("", number), subscription.next_due())
        self.stale.clear()
        while True:
            due, key = self._dues.peek()
            if key is None:
                return due
            # A deadline that was taken back or has passed is noticed here.
            one = self.subscriptions.get(key[1])
            now_due = NEVER if one is None else one.next_due()
            if now_due == due:
                return due
            self._dues.set(key, now_due)

    def due(self, now: int) -> list[Subscription]:
        """Return the subscriptions in which something may be due, in the order of their numbers."""
        if len(self.subscriptions) == 1:
            return [self.subscription]
        self._next_due_of_all()
        found = [0]
        while (key := self._dues.pop(now)) is not None:
            found.append(key[1])
        there = [self.subscriptions[one] for one in sorted(found) if one in self.subscriptions]
        self.stale.update({one.number: one for one in there if one.number})
        return there

    def keeps_for_a_time(self) -> bool:
        """Return whether the partition keeps ids, rows or outcomes for a limited time."""
        return (
            self.ids.count > 0
            or self.settings.retention_ms is not None
            or bool(self.readers)
            or any(one.outcomes.readers for one in self.subscriptions.values())
        )

    def next_epoch(self) -> int:
        """Return what tells a new hold from all others."""
        self.epoch = (self.epoch + 1) & 0xFFFFFFFF
        return self.epoch

    # Committing

    def write_counters(self, out: WriteBatch) -> None:
        out.put(
            COUNTERS,
            (
                self.id,
                to_column(self.log.next_ordinal),
                self.log.last_stamp,
                self.epoch,
                self.forgotten_before,
                to_column(self.forget_below),
                self.duplicates,
                self.accessed,
                self.seen,
            ),
        )

    def finish(self, now: int, out: WriteBatch, by_itself: bool = False) -> None:
        """Write what a command, or time passing, left behind; called once after each.

        Bus time continues from `seen` after a restart: ids forgotten by then stay forgotten.
        """
        self.dirty = False
        self.changes += 1
        self._wake = _UNKNOWN
        self.seen = now
        if not by_itself:
            self.accessed = now
        for subscription in self.subscriptions.values():
            if subscription.changed_holds:
                subscription.write_holds(out)
            if type(subscription.ready) is FairQueue:
                subscription.ready.noise.finish(now)
            if subscription.outcomes.noted:
                # No outcome is stamped before the message whose outcome it is.
                self.log.last_stamp = max(now + self.offsets.wall, self.log.last_stamp)
                subscription.outcomes.write(now, self.log.last_stamp, out)
                self._outcomes.append(subscription.outcomes)
        self.write_counters(out)

    def set_stamps_back(self, wall: int, out: WriteBatch) -> Repair:
        """Let stamps follow the wall clock again, after a wrong one put them into the future."""
        log = self.log
        repair = Repair(log.next_ordinal, log.last_stamp, wall)
        # Set back twice without a message in between: the first one says what the log shows.
        if log.repairs and log.repairs[-1].ordinal == repair.ordinal:
            repair = log.repairs.pop()._replace(after=wall)
        log.repairs.append(repair)
        log.last_stamp = wall
        out.put(REPAIRS, (self.id, to_column(repair.ordinal), repair.before, repair.after))
        self.write_counters(out)
        return repair

    def commit_started(self) -> None:
        """Note that the store commit of all that was written so far has started."""
        self._committing_below = self.log.next_ordinal
        self._committing_ids = self.ids.mark()
        self.log.commit_started()
        self._committing_outcomes, self._outcomes = self._outcomes, []
        for outcomes in self._committing_outcomes:
            outcomes.commit_started()

    def commit_finished(self) -> None:
        """Note that the commit is durable: its messages become visible."""
        self.log.commit_finished(self._committing_below)
        self.ids.settled(self._committing_ids)
        for outcomes in self._committing_outcomes:
            outcomes.commit_finished()


def _own_settings(settings: LogSettings) -> QueueSettings | SubscriptionSettings:
    """Return the settings of the subscription that every partition has."""
    return settings if isinstance(settings, QueueSettings) else SubscriptionSettings()
