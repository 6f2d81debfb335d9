"""The state of a subscription's messages in one partition's log.

Untouched messages are runs of ordinals (or queues of them, in sessions). Only exceptions have a
`Mark`: messages that are locked, deferred, delayed, scheduled or dead-lettered, or were delivered
before. A queue is a log with one subscription, number 0; a topic has one for each of its
subscriptions, and number 0 is where its scheduled messages wait.

Rules: states change only in `change`, `lock` and `end`, by the lifecycle's table; each change
writes its record into the batch of its commit. A message is in exactly one place: ready, marked, or
gone.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from onibus.core.block import NEVER
from onibus.core.dead_letters import DeadLetters
from onibus.core.errors import LockLost, MessageNotFound, SessionLockLost
from onibus.core.fair_queue import FairQueue
from onibus.core.holds import TOKEN, Attempt, Hold, check_of, takeover_of
from onibus.core.lifecycle import ASIDE, DEAD, HELD, TIMED, UNLOCKED, Input, State, advance
from onibus.core.mark import Mark
from onibus.core.marks import Marks
from onibus.core.message import ReceivedMessage
from onibus.core.numbering import to_column
from onibus.core.outcomes import FATES, OutcomeLog
from onibus.core.records import GONE, HOLDS, MARKS, WriteBatch
from onibus.core.rules.rule import CompiledRule
from onibus.core.runs import Runs, Spans, as_runs
from onibus.core.sessions import Session, Sessions
from onibus.core.settings import OutletSettings
from onibus.core.tally import Tally
from onibus.core.timers import Timers
from onibus.core.views import views

if TYPE_CHECKING:
    from onibus.core.partition import Partition

#: A deferred message that its receiver abandons is deferred as before.
_GIVES_BACK = frozenset({Input.ABANDON, Input.RELEASE, Input.DELAY})


class Subscription:
    """The state of every message of one subscription in one partition."""

    def __init__(self, partition: Partition, number: int, settings: OutletSettings) -> None:
        self.partition = partition
        self.number = number
        #: what the keys of all its rows begin with
        self.key = (partition.id, number)
        self.settings = settings
        #: in a topic: the rules that select its messages
        self.rules: list[CompiledRule] = []
        log = self.log = partition.log
        self.numbering = partition.numbering
        self.ready: Runs | FairQueue = Runs()
        self.sessions = Sessions(partition.secret)
        self.dead = Runs()
        #: deferred or scheduled, held or not
        self.aside = Runs()
        self.dead_ready = DeadLetters()
        self.gone = Runs()
        # A queue asks its only subscription each time.
        changed = self._due_changed if number else None
        self.timers = Timers(changed)
        self.marks = Marks(
            lambda ordinal: log.pages.read_mark(*self.key, to_column(ordinal)), changed
        )
        self.holds: dict[int, Hold] = {}
        #: of these, the holds of claims and multi-partition operations
        self.owned: dict[int, Hold] = {}
        self.attempts: dict[str, Attempt] = {}
        self.counts = [0] * len(State)
        self.tally = Tally()
        self.outcomes = OutcomeLog(self.key)
        #: messages below this ordinal were checked for expiry by age
        self.aged_below = 1
        self.changed_holds: dict[int, Hold] = {}
        self.follow_settings()

    # Looking

    def is_live(self, ordinal: int) -> bool:
        return 0 < ordinal < self.log.next_ordinal and ordinal not in self.gone

    def state(self, ordinal: int) -> State:
        """Return the state of an ordinal that the log has assigned."""
        marked = self.marks.state(ordinal)
        if marked is not None:
            return marked
        return State.ACTIVE if self.is_live(ordinal) else State.GONE

    def _due_changed(self) -> None:
        """Note that a change may be due earlier than before."""
        self.partition.stale[self.number] = self

    def next_due(self) -> int:
        """Return the bus time of the next change that time brings here."""
        due = min(self.timers.next_due(), self.marks.next_due())
        scheduled = self.marks.next_scheduled()
        if scheduled == NEVER:
            return due
        return min(due, scheduled - self.partition.offsets.moments)

    def expires(self, ordinal: int) -> int:
        """Return the bus time at which a message expires here, or NEVER."""
        after = self.settings.expires_after_ms
        if after is None:
            return self.log.expires(ordinal)
        block, position = self.log.entry(ordinal)
        entry = block.entry(position)
        return min(entry[2], entry[6] + after)

    def watch_age(self, ordinal: int, earliest: int = 0) -> None:
        """Come back when a message, the oldest that is left, expires by its age."""
        if self.settings.expires_after_ms is not None and ordinal < self.log.next_ordinal:
            self.timers.set(("age", 0), max(self.expires(ordinal), earliest))

    def change_settings(self, settings: OutletSettings) -> None:
        """Take new settings."""
        self.settings = settings
        self.follow_settings()
        self.aged_below = 1
        self.watch_age(self.gone.next_outside(1))

    def follow_settings(self) -> None:
        """Keep ready messages in the structure that the settings ask for (B10)."""
        ready = self.ready
        if self.settings.fair_delivery and not isinstance(ready, FairQueue):
            self.ready = FairQueue(self, ready)
        elif isinstance(ready, FairQueue) and not self.settings.fair_delivery:
            self.ready = ready.as_runs()
            for hold in self.holds.values():
                hold.fair = None

    def active_count(self) -> int:
        """Return how many messages are waiting to be received, or are locked."""
        live = self.log.next_ordinal - 1 - self.gone.count
        marked = sum(self.counts) - self.counts[State.ACTIVE]
        return live - marked + self.counts[State.LOCKED] + self.counts[State.DELAYED]

    def ordinal(self, number: object) -> int:
        """Return the live, visible ordinal of a sequence number, or reject it."""
        if isinstance(number, int):
            for ordinal in self.numbering.candidates(number, self.log.next_ordinal):
                if ordinal < self.log.visible_below and self.is_live(ordinal):
                    return ordinal
        raise MessageNotFound(f"no message with sequence number {number}")

    def view(self, ordinal: int) -> ReceivedMessage:
        """Return a message as a receiver or peek sees it, read from its block and verified."""
        return self.views([ordinal])[0]

    def views(
        self, ordinals: Sequence[int], hold: Hold | None = None, until: int = 0
    ) -> list[ReceivedMessage]:
        """Return messages as their receiver sees them, under a hold that they have together."""
        return views(self, ordinals, hold, until)

    # Arriving

    def enqueue(self, first: int, sessions: Sequence[str | None]) -> None:
        """Add accepted messages with ordinals from `first` on."""
        if self.settings.expires_after_ms is not None and not self.timers.is_set(("age", 0)):
            self.watch_age(first)
        if not self.settings.requires_session:
            self.ready.add(first, first + len(sessions) - 1)
            return
        self.sessions.append(first, sessions)

    def enqueue_runs(
        self, spans: Spans, first: int, count: int, session_of: Callable[[int], str | None]
    ) -> None:
        """Add runs of positions in a block that begins with the ordinal `first`."""
        if not self.settings.requires_session and self.settings.expires_after_ms is None:
            self.ready.extend_by(spans, first, count)
            return
        pairs = spans if isinstance(spans, list) else spans.T.tolist()
        for start, end in pairs:
            self.enqueue(first + start, list(map(session_of, range(start, end + 1))))

    def schedule(self, ordinal: int, moment: int, out: WriteBatch) -> None:
        """Accept a message that is not to be seen before that moment, by the wall clock."""
        mark = self.marks.hot[ordinal] = Mark(State.SCHEDULED)
        mark.due = moment
        self.counts[State.SCHEDULED] += 1
        self.aside.add(ordinal, ordinal)
        self.marks.watch(ordinal, mark)
        self.write_mark(ordinal, mark, out)

    # Holding

    def new_hold(self, until: int, duration: int, session: str | None, owner: str = "") -> Hold:
        partition = self.partition
        epoch = partition.next_epoch()
        check = check_of(partition.secret, *self.key, partition.boot, epoch)
        return Hold(epoch, check, until, duration, session, owner)

    def takeover_token(self, epoch: int) -> bytes:
        """Return the token that takes over the session lock of an epoch (B9)."""
        partition = self.partition
        return takeover_of(partition.secret, *self.key, partition.boot, epoch)

    def held_ordinal(self, token: bytes, late: bool = False) -> int:
        """Return the ordinal of the message that a token holds, or 0.

        `late`: even one whose lock has expired, while no other receiver has received it.
        """
        number, epoch, check = TOKEN.unpack(token)
        hold = self.holds.get(epoch)
        if hold is None or hold.check != check:
            return 0
        overdue = 0 if late else self.partition.overdue
        for ordinal in self.numbering.candidates(number, self.log.next_ordinal):
            if ordinal in hold.ordinals:
                return 0 if overdue and self._is_overdue(hold, ordinal, overdue) else ordinal
        return 0

    def _is_overdue(self, hold: Hold, ordinal: int, overdue: int) -> bool:
        """Return whether a lock has expired and its message is not released yet."""
        until = hold.ordinals[ordinal]
        if hold.carried:
            session = self.sessions.find(hold.session or "")
            if session is not None and session.lock is not None:
                until = session.lock.until
        return until <= overdue

    def held_by(self, token: bytes) -> tuple[int, Mark, Hold]:
        """Return the message that a lock token holds, or reject the token."""
        ordinal = self.held_ordinal(token)
        if ordinal:
            # Whatever is held has its mark at hand.
            mark = self.marks.hot[ordinal]
            assert mark.hold is not None
            return ordinal, mark, mark.hold
        number = TOKEN.unpack(token)[0]
        if self.settings.requires_session and not self.settings.fifo:
            raise SessionLockLost(f"the session that held message {number} is no longer locked")
        raise LockLost(f"the lock on message {number} expired, or the message was settled")

    def lock(self, ordinals: list[int], hold: Hold) -> None:
        """Hold messages that were taken out of the ready ones."""
        counts, marks, hot = self.counts, self.marks, self.marks.hot
        locked = advance(State.ACTIVE, Input.LOCK)
        mark_of = marks.get if marks.has_cold else hot.get
        fresh = 0
        for ordinal in ordinals:
            mark = mark_of(ordinal)
            if mark is None:
                hot[ordinal] = Mark(locked, hold=hold)
                fresh += 1
                continue
            counts[mark.state] -= 1
            mark.state = advance(mark.state, Input.LOCK)
            mark.hold = hold
            counts[mark.state] += 1
        counts[locked] += fresh
        hold.ordinals.update(dict.fromkeys(ordinals, hold.until))
        self.holds[hold.epoch] = hold
        if hold.owner:
            self.owned[hold.epoch] = hold
        if hold.until != NEVER:
            self.timers.set(("hold", hold.epoch), hold.until)
        self._changed(hold)

    def renew(self, hold: Hold, ordinal: int, until: int) -> None:
        """Hold a message longer, or shorter."""
        hold.ordinals[ordinal] = until
        self.watch_hold(hold)
        self._changed(hold)

    def _changed(self, hold: Hold) -> None:
        """Note that `write_holds` has a hold to write."""
        self.changed_holds[hold.epoch] = hold
        self.partition.dirty = True

    def watch_hold(self, hold: Hold) -> None:
        """Set a timer for the first lock of a hold that expires."""
        self.timers.set(("hold", hold.epoch), min(hold.ordinals.values()))

    def let_go(self, ordinal: int, mark: Mark) -> None:
        """Release a message from its hold."""
        hold = mark.hold
        assert hold is not None
        mark.hold = None
        self._release(hold, (ordinal,))

    def _release(self, hold: Hold, ordinals: Sequence[int]) -> None:
        """Remove messages from a hold."""
        for ordinal in ordinals:
            hold.ordinals.pop(ordinal, None)
        if not hold.ordinals:
            del self.holds[hold.epoch]
            self.owned.pop(hold.epoch, None)
            self.timers.cancel(("hold", hold.epoch))
        self._changed(hold)
        if hold.fair is not None and isinstance(self.ready, FairQueue):
            self.ready.noise.land(hold, ordinals)
        if hold.groups:
            for ordinal in ordinals:
                session = hold.groups.pop(ordinal, None)
                if session is not None:
                    self._land(session, ordinal)
        elif hold.session is not None:
            session = self.sessions.find(hold.session)
            if session is not None and hold.carried:
                for ordinal in ordinals:
                    session.forget_turn(ordinal)
                if not hold.ordinals and session.lock is not None:
                    session.lock.holds.discard(hold.epoch)
                self.sessions.forget_idle(session)
            elif session is not None:
                for ordinal in ordinals:
                    self._land(session, ordinal)

    def _land(self, session: Session, ordinal: int) -> None:
        """Note that a message of a group is no longer in flight (F10)."""
        session.land(ordinal)
        if session.ready and session.ready[0] < session.barrier():
            self.sessions.offer(session)
        self.sessions.forget_idle(session)

    def take_out(self, ordinal: int) -> None:
        """Take a message from the ready ones, or from its holder, so that another can hold it."""
        mark = self.marks.get(ordinal)
        if mark is None or mark.hold is None:
            self._leave(ordinal, State.ACTIVE if mark is None else mark.state)
            return
        self.let_go(ordinal, mark)
        self.counts[mark.state] -= 1
        mark.state = UNLOCKED[mark.state]
        self.counts[mark.state] += 1

    # Changing

    def change(
        self,
        ordinal: int,
        event: Input,
        out: WriteBatch,
        due: int = 0,
        taken: bool = False,
        reason: str | None = None,
        description: str | None = None,
    ) -> State:
        """Take a message to its next state; `taken`: it is out of the ready ones already.

        The caller releases the rows of messages that are gone (`depart`).
        """
        self.partition.dirty = True
        mark = self.marks.get(ordinal)
        old = mark.state if mark is not None else State.ACTIVE
        new = advance(old, event)
        self.tally.inputs[event] += 1
        if self.outcomes.kept and event in FATES:
            self.outcomes.note(ordinal, FATES[event], reason, description)
        if mark is None:
            mark = self.marks.hot[ordinal] = Mark()
        else:
            self.counts[old] -= 1
        if mark.due:
            self.marks.unwatch(ordinal)
        if mark.hold is not None:
            self.let_go(ordinal, mark)
        elif not taken:
            self._leave(ordinal, old)
        mark.state = new
        if event is Input.DEAD_LETTER:
            mark.reason, mark.description = reason, description
            self.tally.dead_lettered(reason)
        if event not in _GIVES_BACK or UNLOCKED[old] is not new:
            mark.due = due
        self._enter(ordinal, mark, old, new, out)
        return new

    def end(self, ordinals: list[int], event: Input, out: WriteBatch) -> None:
        """Remove held messages, all by the same event; see `change`."""
        self.partition.dirty = True
        hot, counts, noted = self.marks.hot, self.counts, self.outcomes.kept
        before: State | None = None
        listed = False
        holds: dict[Hold, list[int]] = {}
        for ordinal in ordinals:
            mark = hot[ordinal]
            old = mark.state
            if old is not before:
                # Nearly always all of them are in one state.
                assert advance(old, event) is State.GONE
                before, listed = old, old in DEAD or old in ASIDE
            counts[old] -= 1
            if noted:
                self.outcomes.note(ordinal, FATES[event], None, None)
            if mark.due:
                self.marks.unwatch(ordinal)
            hold = mark.hold
            assert hold is not None
            several = holds.get(hold)
            if several is None:
                several = holds[hold] = []
            several.append(ordinal)
            if listed:
                self._list(ordinal, old, State.GONE)
            del hot[ordinal]
            if mark.stored:
                out.delete(MARKS, (*self.key, to_column(ordinal)))
        for hold, several in holds.items():
            self._release(hold, several)
        self.tally.inputs[event] += len(ordinals)

    def _leave(self, ordinal: int, old: State) -> None:
        if old is State.ACTIVE:
            if self.settings.requires_session:
                session = self.session_of(ordinal)
                self.sessions.remove(session, ordinal)
                self.sessions.forget_idle(session)
            else:
                self.ready.remove(ordinal)
        elif old is State.DELAYED and self.settings.requires_session:
            session = self.session_of(ordinal)
            session.waiting.remove(ordinal)
            self.sessions.offer(session)
            self.sessions.forget_idle(session)
        elif old is State.DEAD_LETTERED:
            self.dead_ready.remove(ordinal)

    def _list(self, ordinal: int, old: State, new: State) -> None:
        """Update the lists of dead-lettered, deferred and scheduled messages."""
        if old in DEAD and new is State.GONE:
            self.dead.remove(ordinal)
            self.dead_ready.forget(ordinal)
        elif new in DEAD and old not in DEAD:
            self.dead.add(ordinal, ordinal)
        if old in ASIDE:
            if new not in ASIDE:
                self.aside.remove(ordinal)
        elif new in ASIDE:
            self.aside.add(ordinal, ordinal)

    def _enter(self, ordinal: int, mark: Mark, old: State, new: State, out: WriteBatch) -> None:
        self._list(ordinal, old, new)
        if new is State.GONE:
            del self.marks.hot[ordinal]
            if mark.stored:
                out.delete(MARKS, (*self.key, to_column(ordinal)))
            return
        if new is State.ACTIVE:
            if self.settings.requires_session:
                # In a FIFO queue, a message that comes back queues up behind other groups.
                again = self.settings.fifo and mark.deliveries
                behind = self.log.next_ordinal - 1 if again else 0
                self.sessions.give_back(self.session_of(ordinal), ordinal, behind)
            else:
                self.ready.add(ordinal, ordinal)
        elif new is State.DELAYED and self.settings.requires_session:
            insort(self.session_of(ordinal).waiting, ordinal)
        elif new is State.DEAD_LETTERED:
            self.dead_ready.add(ordinal, ordinal)
        if mark.due and new in TIMED:
            self.marks.watch(ordinal, mark)
        self.counts[new] += 1
        self.write_mark(ordinal, mark, out)
        if not mark.stored and new is State.ACTIVE:
            self.counts[new] -= 1
            del self.marks.hot[ordinal]

    def depart(self, ordinals: Iterable[int], out: WriteBatch) -> None:
        """Record that messages have left the subscription, and release their rows."""
        for first, last in as_runs(list(ordinals)):
            self.depart_run(first, last, out)

    def depart_run(self, first: int, last: int, out: WriteBatch) -> None:
        """Do the same for a run of ordinals."""
        run_first, run_last, swallowed = self.gone.add(first, last)
        out.put(GONE, (*self.key, to_column(run_first), to_column(run_last)))
        if swallowed >= 0:
            out.delete(GONE, (*self.key, to_column(swallowed)))
        self.log.release(first, last, out)

    def session_of(self, ordinal: int) -> Session:
        """Return the session that a message belongs to."""
        return self.sessions.get(self.session_name(ordinal))

    def session_name(self, ordinal: int) -> str:
        block, position = self.log.entry(ordinal)
        session_id = block.message(position).session_id
        assert session_id is not None
        return session_id

    # Records

    def write_mark(self, ordinal: int, mark: Mark, out: WriteBatch) -> None:
        base = UNLOCKED[mark.state]
        if base is State.ACTIVE and not mark.deliveries and mark.overlay is None:
            if mark.stored:
                out.delete(MARKS, (*self.key, to_column(ordinal)))
                mark.stored = False
            return
        mark.stored = True
        out.put(
            MARKS,
            (
                *self.key,
                to_column(ordinal),
                int(base),
                mark.deliveries,
                mark.due,
                mark.reason,
                mark.description,
                mark.overlay,
            ),
        )

    def write_holds(self, out: WriteBatch) -> None:
        """Write the holds that changed, each once however many of its messages were settled."""
        for hold in self.changed_holds.values():
            key = (*self.key, hold.epoch)
            if hold.ordinals:
                out.put(HOLDS, (*key, *hold.columns()))
            else:
                out.delete(HOLDS, key)
        self.changed_holds.clear()

    def held(self) -> int:
        """Return how many messages are held."""
        return sum(self.counts[state] for state in HELD)
