"""One partition as the promises describe it: plain dictionaries, no indexes, nothing on a disk.

Rows never change: a change replaces the row, so a copy of the dictionaries is a snapshot. Every
question is answered by walking all rows. Ordinals start at 1; `rows` is in their order. Numbers are
counted apart from them: a counter rolls over, and skips numbers that are in use (S8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from onibus.core.errors import (
    InvalidOperation,
    LockLost,
    MessageNotFound,
    SessionLocked,
    SessionLockLost,
)
from onibus.core.message import Message
from onibus.core.settings import AnySettings, QueueSettings, SubscriptionSettings
from tests.simulator.model_fair import FairModel
from tests.simulator.model_rows import (
    FIFO_INTERVAL,
    FOREVER,
    REASONS,
    Lock,
    Prepared,
    Row,
    next_hold,
    time_to_live,
)
from tests.simulator.model_time import Moment


class PartitionModel:
    """The state of one partition."""

    def __init__(self, settings: AnySettings, base: int = 0, bits: int = 63) -> None:
        self.settings: Any = settings
        #: a sequence number is this plus the counter, which has that number of bits
        self.base, self.bits = base, bits
        self.counter = 1
        #: whether a number may have been issued before
        self.rolled = False
        #: the counter skipped numbers before the row of this ordinal: the log has a hole there
        self.hole = 0
        self.rows: dict[int, Row] = {}
        self.locks: dict[str, Lock] = {}
        self.states: dict[str, bytes] = {}
        self.attempts: dict[str, tuple[int, list[int]]] = {}
        #: parts of works that wait for their decision
        self.staged: dict[int, Any] = {}
        #: of messages of a FIFO queue that are ready again, where their groups queue up (F10)
        self.turns: dict[int, tuple[int, int, int]] = {}
        self.receives = 0
        #: how often the counter was set: the bus's ordinals, which say these places, skip with it
        self.skips = 0
        self.ids: dict[Any, tuple[int, int]] = {}
        self.trace: list[tuple[str | None, int, int]] = []
        self.duplicates = 0
        self.next = 1
        #: what its receivers have and had, in a queue with fair delivery (B10)
        self.fair: FairModel | None = None
        self.follow_settings()
        #: number and body of every row that was ever stored; shared by all snapshots
        self.history: dict[int, tuple[int, bytes]] = {}
        #: ordinals below are durable, and may be seen
        self.shown = 1
        self.stamp = 0
        self.seen = 0
        #: nothing happens by itself before this bus time, and this moment of the wall clock
        self.calm = self.calm_schedule = 0

    def copy(self) -> PartitionModel:
        """Return a snapshot."""
        new = PartitionModel(self.settings, self.base, self.bits)
        self.fill(new)
        new.shown = self.next
        return new

    def fill(self, new: PartitionModel) -> None:
        new.__dict__.update(self.__dict__)
        for name in ("rows", "locks", "states", "attempts", "ids", "trace", "staged"):
            setattr(new, name, getattr(self, name).copy())
        new.calm = 0
        # Nothing of these is durable.
        new.turns = {}
        new.fair = None
        new.follow_settings(read=True)

    def follow_settings(self, read: bool = False) -> None:
        """Write receives down while the settings ask for fair delivery."""
        fair = isinstance(self.settings, QueueSettings) and self.settings.fair_delivery
        if fair != (self.fair is not None):
            self.fair = FairModel(self.rows, read) if fair else None

    def show(self, below: int) -> None:
        """Ordinals below are durable."""
        self.shown = below

    def put(self, row: Row, **changes: Any) -> Row:
        self.calm = 0
        before = self.rows.get(row.ordinal)
        new = self.rows[row.ordinal] = replace(row, **changes)
        if self.settings.fifo and before and new.deliveries and new.is_ready > before.is_ready:
            self.turns[row.ordinal] = (self.next - 1, self.skips, self.receives)
        return new

    # Numbers

    def issue(self) -> tuple[int, int]:
        """Return the ordinal and the number of the next row."""
        ordinal, self.next = self.next, self.next + 1
        while self.rolled and self.in_use(self.base + self.counter):
            self.count_on()
            self.hole = ordinal
        number = self.base + self.counter
        self.count_on()
        return ordinal, number

    def before_issue(self, at: Moment) -> None:
        """A message is about to get its number."""

    def count_on(self) -> None:
        self.counter += 1
        if self.counter == 1 << self.bits:
            self.counter, self.rolled = 0, True

    def set_counter(self, counter: int) -> None:
        """The next row gets that number."""
        self.counter, self.hole = counter, self.next
        self.skips += 1

    def ordinal_of(self, number: int) -> int | None:
        """Return the youngest ordinal that has a number, or the next one."""
        if number == self.base + self.counter:
            return self.next
        ordinals = range(self.next - 1, 0, -1)
        return next((at for at in ordinals if self.history[at][0] == number), None)

    def in_use(self, number: int) -> bool:
        return any(row.number == number for row in self.rows.values())

    # Sending

    def send(self, prepared: Prepared, at: Moment) -> tuple[int, int | None]:
        """Store a message unless it is a duplicate; return (number, number it repeats)."""
        self.seen = now = at.now
        for identity in prepared.identities:
            number, recorded = self.ids.get(identity, (0, -FOREVER))
            if now - recorded < self.settings.duplicate_detection_window_ms:
                self.duplicates += 1
                self.trace.append((prepared.message.message_id, now, number))
                return number, number
        number = self.store(prepared.message, prepared.ttl, at)
        for identity in prepared.identities:
            self.ids[identity] = (number, now)
        return number, None

    def store(self, message: Message, ttl: int | None, at: Moment) -> int:
        self.before_issue(at)
        ordinal, number = self.issue()
        self.stamp = max(self.stamp, at.wall)
        row = Row(ordinal, number, message, self.stamp, FOREVER if ttl is None else at.now + ttl)
        due = message.scheduled_enqueue_time_ms or 0
        if due > at.due:
            row = replace(row, expires=FOREVER, state="scheduled", due=due)
        self.arrive(row, at.now)
        return number

    def arrive(self, row: Row, now: int) -> None:
        """A message is there; in a subscription with sessions it needs one."""
        self.history[row.ordinal] = (row.number, row.message.body)
        row = self.put(row, arrived=now, expires_anyhow=row.expires)
        if self.fair is not None:
            self.fair.sent(row, now)
        if isinstance(self.settings, SubscriptionSettings):
            self._age(row)
            if self.settings.requires_session and row.message.session_id is None:
                self.kill(self.rows[row.ordinal], *REASONS["no session"])

    def arrived(self, at: Moment) -> None:
        """Everything that came together is there."""

    def _age(self, row: Row) -> None:
        """A subscription's own time to live counts from when the message came."""
        after = self.settings.default_time_to_live_ms
        if isinstance(self.settings, SubscriptionSettings):
            aged = FOREVER if after is None else row.arrived + after
            self.put(row, expires=min(row.expires_anyhow, aged))

    def change_settings(self, settings: AnySettings, now: int) -> None:
        """Ids outside the old window or the new one are forgotten (D4)."""
        if isinstance(settings, SubscriptionSettings):
            self.settings = settings
            for row in [*self.rows.values()]:
                self._age(row)
            return
        window = min(
            settings.duplicate_detection_window_ms, self.settings.duplicate_detection_window_ms
        )
        self.ids = {name: id_ for name, id_ in self.ids.items() if now - id_[1] < window}
        self.settings = settings
        self.follow_settings()

    # Time

    def is_calm(self, at: Moment) -> bool:
        """Tell whether nothing happens by itself yet."""
        return at.now < self.calm and at.due < self.calm_schedule

    def advance(self, at: Moment) -> None:
        """Do what happens by itself up to now."""
        if self.is_calm(at):
            return
        now = at.now
        for session in [name for name, lock in self.locks.items() if lock.until <= now]:
            self.end_session(session, now, counted=True)
        for row in [*self.rows.values()]:
            if row.lock is not None and row.lock.until <= now:
                self.give_back(row, now)
        for row in [*self.rows.values()]:
            if row.due and row.due <= now and row.lock is None and row.state != "scheduled":
                self.put(row, state="active", due=0)
        # Delays are durations; a schedule is a moment of the wall clock.
        due = [row for row in self.rows.values() if row.state == "scheduled" and row.due <= at.due]
        for row in sorted(due, key=lambda row: (row.due, row.ordinal)):
            self._activate(row, at)
        self.arrived(at)
        for row in due:
            # Only now are their old numbers free.
            del self.rows[row.ordinal]
        for row in [*self.rows.values()]:
            if not row.dead and row.lock is None and row.expires <= now:
                self.expire(row)
        for attempt in [name for name, (until, _) in self.attempts.items() if until <= now]:
            del self.attempts[attempt]
        self.calm = min(self._deadlines(), default=FOREVER)
        scheduled = [row.due for row in self.rows.values() if row.state == "scheduled"]
        self.calm_schedule = min(scheduled, default=FOREVER)

    def _activate(self, row: Row, at: Moment) -> None:
        """Enqueue a scheduled message as if it were sent now (S6)."""
        ttl = time_to_live(row.message, self.settings)
        self.stamp = max(self.stamp, at.wall)
        expires = FOREVER if ttl is None else at.now + ttl
        self.before_issue(at)
        self.arrive(Row(*self.issue(), row.message, self.stamp, expires), at.now)

    def _deadlines(self) -> Iterator[int]:
        for row in self.rows.values():
            delay = FOREVER if row.state == "scheduled" else row.due or FOREVER
            yield row.lock.until if row.lock else min(row.expires, delay)
        yield from (lock.until for lock in self.locks.values())
        yield from (until for until, _ in self.attempts.values())

    def expire(self, row: Row) -> None:
        if self.settings.dead_letter_on_expiration:
            self.kill(row, *REASONS["expired"])
        else:
            del self.rows[row.ordinal]

    def kill(self, row: Row, reason: str | None, description: str | None) -> None:
        """Put a message into the dead-letter queue."""
        self.put(
            row, dead=True, state="active", due=0, lock=None, reason=reason, description=description
        )

    # Giving out

    def ready(self, session: str | None = None, dead: bool = False) -> list[Row]:
        """Return what a receiver could get, in order; of one session as its barriers allow."""
        found = []
        for row in self.rows.values():
            if row.ordinal >= self.shown or row.dead != dead:
                continue
            if session is not None and row.message.session_id != session:
                continue
            if session is not None and row.state == "delayed" and not row.lock:
                break
            if session is not None and self.settings.fifo and row.lock and row.lock.by == session:
                break
            if row.state == "active" and row.lock is None:
                found.append(row)
        return [] if session is not None and self.blocked(session) else found

    def in_order(self, now: int, dead: bool = False) -> list[Row]:
        """Return what a receiver could get from a queue without sessions, in fair order (B10)."""
        ready = self.ready(dead=dead)
        if self.fair is None or dead:
            return ready
        return self.fair.order(ready, self.rows, now)

    def locks_of(self, session: str) -> list[Lock]:
        """Return the locks by which messages hold their session, or group."""
        return [row.lock for row in self.rows.values() if row.lock and row.lock.by == session]

    def blocked(self, session: str) -> bool:
        """Return whether no message of a session is delivered, not even an earlier one (F10)."""
        strict = self.settings.fifo and self.settings.strict_groups
        return any(strict or lock.work for lock in self.locks_of(session))

    def in_flight(self, session: str) -> bool:
        """Return whether a message of a session, or group, is in flight or will be changed."""
        return any(self.settings.fifo or lock.work for lock in self.locks_of(session))

    def free_sessions(self, whole: bool = True) -> list[str]:
        """Return the sessions that could be received, the one that has waited longest first.

        With `whole`, none of their messages is in flight.
        """
        names = dict.fromkeys(
            row.message.session_id for row in self.rows.values() if row.message.session_id
        )
        heads = []
        for name in names:
            rows = [] if name in self.locks else self.ready(name)
            if rows and not (whole and self.in_flight(name)):
                first = rows[0].ordinal
                place = self.turns.get(first)
                heads.append(((first, -1, -1) if place is None else place, first, name))
        return [name for _, _, name in sorted(heads)]

    def receive(
        self,
        limit: int,
        now: int,
        *,
        session: str | None = None,
        dead: bool = False,
        take: bool = False,
    ) -> list[Row]:
        """Lock the first messages that are ready, or take them for good."""
        return self.hand_out(self.ready(session, dead)[:limit], now, session, take)

    def hand_out(self, rows: list[Row], now: int, session: str | None, take: bool) -> list[Row]:
        if take:
            for row in rows:
                del self.rows[row.ordinal]
            return rows
        duration = self.settings.lock_duration_ms
        until = now + duration if session is None else FOREVER
        lock = Lock(next_hold(), until, duration, session, since=now)
        given = [self.put(row, lock=lock) for row in rows]
        if self.fair is not None:
            self.fair.given([r for r in given if r.state == "active" and not r.dead], now)
        return given

    def receive_groups(
        self, limit: int, visibility: int, attempt: str | None, now: int
    ) -> list[Row]:
        """Give out messages group by group (F10), or again for the same attempt (F9)."""
        _, ids = self.attempts.get(attempt or "", (0, None))
        if ids is not None:
            same = {
                row.lock.id: row
                for row in self.rows.values()
                if row.lock and row.lock.attempt == attempt
            }
            if all(id_ in same for id_ in ids):
                return [self.relock(same[id_], now + visibility, visibility) for id_ in ids]
            if self.settings.strict_attempts:
                raise InvalidOperation("the attempt's messages changed")
            del self.attempts[attempt or ""]
        chosen: list[Row] = []
        for name in self.free_sessions(whole=False):
            most = 1 if self.settings.one_message_per_group else limit
            chosen += self.ready(name)[: min(most, limit - len(chosen))]
        received = [
            self.put(
                row,
                lock=Lock(
                    next_hold(), now + visibility, visibility, row.message.session_id, attempt
                ),
            )
            for row in chosen
        ]
        self.receives += bool(received)
        if attempt is not None and received:
            self.calm = 0
            ids = [row.lock.id for row in received if row.lock]
            self.attempts[attempt] = (now + FIFO_INTERVAL, ids)
        return received

    def relock(self, row: Row, until: int, duration: int, **changes: Any) -> Row:
        assert row.lock is not None
        lock = replace(row.lock, until=until, duration=duration, **changes)
        return self.put(row, lock=lock)

    # Settling

    def by_number(self, number: int) -> Row | None:
        """Return the row that has a number."""
        return next((row for row in self.rows.values() if row.number == number), None)

    def held(self, number: int, lock: int) -> Row:
        row = self.by_number(number)
        if row is None or row.lock is None or row.lock.id != lock:
            raise LockLost("not held")
        return row

    def complete(self, row: Row) -> None:
        """A message is gone; its receive cannot be repeated, which is told only if strict (F9)."""
        del self.rows[row.ordinal]
        if row.lock is not None and not self.settings.strict_attempts:
            _, ids = self.attempts.get(row.lock.attempt or "", (0, []))
            if row.lock.id in ids:
                del self.attempts[row.lock.attempt or ""]

    def give_back(
        self, row: Row, now: int, delay: int = 0, *, counted: bool = True, defer: bool = False
    ) -> None:
        """A lock ends without completing (B1, B2, X4, L2)."""
        deliveries = row.deliveries + (counted and not row.dead)
        row = replace(row, deliveries=deliveries, lock=None)
        limit = self.settings.max_delivery_count
        if counted and not row.dead and deliveries >= limit:
            reason, description = REASONS["deliveries"]
            self.kill(row, reason, description.format(limit))
        elif not row.dead and row.expires <= now:
            self.expire(row)
        elif defer:
            self.put(row, state="deferred", due=now + delay if delay else 0)
        elif counted and row.state == "active":
            backoff = self.settings.retry_backoff_ms * 2 ** max(deliveries - 1, 0)
            delay = max(delay, min(backoff, self.settings.retry_backoff_ms_max))
            delayed = {"state": "delayed", "due": now + delay} if delay else {}
            self.put(row, **delayed)
        else:
            self.put(row)

    def dead_letter(self, row: Row, reason: str | None, description: str | None) -> None:
        if row.dead:
            raise InvalidOperation("it is in the dead-letter queue already")
        self.kill(row, reason, description)

    def renew(self, row: Row, now: int, visibility: int | None) -> int:
        """Hold one message longer; the others of its receive are not touched."""
        assert row.lock is not None
        if row.lock.by is not None and not self.settings.fifo:
            raise InvalidOperation("the session's lock holds it")
        until = now + (row.lock.duration if visibility is None else visibility)
        self.relock(row, until, row.lock.duration, attempt=None)
        return until

    def pin(self, row: Row, work: int) -> None:
        """A work holds a message instead of its receiver, and its session with it."""
        active = row.state == "active" and not row.dead and self.settings.requires_session
        by = row.message.session_id if active else None
        self.put(row, lock=Lock(next_hold(), FOREVER, 0, by, None, work))

    def unpin(self, work: int) -> None:
        """A work will not happen: what it held goes back, and no delivery is counted."""
        for row in [*self.rows.values()]:
            if row.lock is not None and row.lock.work == work:
                self.put(row, lock=None)

    # By number

    def find(self, number: int, allowed: Callable[[Row], bool]) -> Row:
        row = self.by_number(number)
        if row is None or row.ordinal >= self.shown or not allowed(row):
            raise MessageNotFound(str(number))
        return row

    def find_deferred(self, number: int, dead: bool, session: str | None) -> Row:
        return self.find(
            number,
            lambda row: (
                row.state == "deferred"
                and not row.lock
                and row.dead == dead
                and session in (None, row.message.session_id)
            ),
        )

    # Sessions

    def accept(self, session: str | None, now: int, sharing: int | None = None) -> str | None:
        """Lock a session, named or the next that is free; for `sharing` see `BusModel.accept`."""
        if session is None:
            session = next(iter(self.free_sessions()), None)
            if session is None:
                return None
        elif sharing:
            return self._take_over(session, sharing, now)
        elif session in self.locks or self.in_flight(session):
            raise SessionLocked(session)
        duration = self.settings.lock_duration_ms
        hold = next_hold()
        takeover = 0 if sharing is None else hold
        self.locks[session] = Lock(hold, now + duration, duration, takeover=takeover)
        self.calm = 0
        return session

    def _take_over(self, session: str, takeover: int, now: int) -> str:
        """Give a non-exclusive lock to another receiver; the messages stay locked (B9)."""
        held = self.locks.get(session)
        if held is None:
            raise SessionLockLost(session)
        if held.takeover != takeover:
            raise SessionLocked(session)
        self.locks[session] = replace(held, id=next_hold(), until=now + held.duration)
        return session

    def held_session(self, session: str, lock: int) -> Lock:
        held = self.locks.get(session)
        if held is None or held.id != lock:
            raise SessionLockLost(session)
        return held

    def renew_session(self, session: str, now: int) -> int:
        lock = self.locks[session]
        self.locks[session] = replace(lock, until=now + lock.duration)
        return now + lock.duration

    def end_session(self, session: str, now: int, counted: bool) -> None:
        """What a session's lock held goes back; closing counts no delivery (B1)."""
        del self.locks[session]
        for row in [*self.rows.values()]:
            if row.lock is not None and row.lock.by == session and not row.lock.work:
                self.give_back(row, now, counted=counted)

    def set_state(self, session: str, state: bytes | None) -> None:
        self.states.pop(session, None)
        if state is not None:
            self.states[session] = state
