"""Sessions: accepting, renewing, taking over and releasing one, and its state (B4, B9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hmac import compare_digest
from typing import TYPE_CHECKING

from onibus.core.commands import (
    AcceptSession,
    DescribeSessions,
    GetSessionState,
    ListSessionIds,
    ListSessions,
    ListSessionStates,
    ReleaseSession,
    RenewSession,
    SetSessionState,
    WarmSessions,
)
from onibus.core.errors import SessionLocked, SessionLockLost
from onibus.core.holds import TOKEN
from onibus.core.inspection import AcceptedSession, SessionInfo
from onibus.core.lifecycle import Input
from onibus.core.numbering import ORDINALS_END
from onibus.core.path.held import held_session
from onibus.core.path.settle import give_back
from onibus.core.records import SESSIONS, WriteBatch
from onibus.core.sessions import Session, SessionLock

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription


def accept_session(
    partition: Partition, command: AcceptSession, now: int, wall: int, out: WriteBatch
) -> AcceptedSession | None:
    """Lock a session by its id, or the next available one; None if no session is available."""
    subscription = partition.subscriptions[command.subscription]
    sessions, session_id = subscription.sessions, command.session_id
    sharing = command.sharing
    if session_id is None:
        free = sessions.next_free(subscription.log.visible_below, subscription.session_name)
        if free is None:
            return None
        session = free
    elif sharing is not None and sharing.takeover is not None:
        return _take_over(subscription, session_id, sharing.takeover, command.owner, now, out)
    else:
        session = sessions.get(session_id)
        if session.in_use:
            raise SessionLocked(f"another receiver holds session {session_id!r}: try again later")
    duration = subscription.settings.lock_duration_ms
    hold = subscription.new_hold(now + duration, duration, None)
    session.lock = SessionLock(hold.epoch, hold.check, hold.until, duration, command.owner)
    if sharing is not None:
        session.lock.takeover = subscription.takeover_token(hold.epoch)
    return _accepted(subscription, session, out)


def _take_over(
    subscription: Subscription,
    session_id: str,
    takeover: bytes,
    owner: str,
    now: int,
    out: WriteBatch,
) -> AcceptedSession:
    """Give a non-exclusive lock, with the messages that it holds, to another receiver (B9)."""
    session = subscription.sessions.find(session_id)
    lock = None if session is None else session.lock
    if session is None or lock is None or lock.until <= subscription.partition.overdue:
        raise SessionLockLost(
            f"session {session_id!r} is not locked: accept it without a lock token"
        )
    if lock.takeover is None or not compare_digest(lock.takeover, takeover):
        raise SessionLocked(f"session {session_id!r} is held by another receiver")
    hold = subscription.new_hold(now + lock.duration, lock.duration, None)
    lock.epoch, lock.check, lock.until, lock.owner = hold.epoch, hold.check, hold.until, owner
    return _accepted(subscription, session, out)


def _accepted(subscription: Subscription, session: Session, out: WriteBatch) -> AcceptedSession:
    """Keep a new lock, and return its token."""
    lock = session.lock
    assert lock is not None
    subscription.timers.set(("session", session.id), lock.until)
    _write(subscription, session, out)
    token = TOKEN.pack(subscription.numbering.number(0), lock.epoch, lock.check)
    shown = subscription.partition.offsets.shown(lock.until)
    return AcceptedSession(session.id, token, shown, lock.takeover)


def renew_session(
    partition: Partition, command: RenewSession, now: int, wall: int, out: WriteBatch
) -> int:
    """Renew the lock of a session and of its messages; return its new end by the wall clock."""
    subscription = partition.subscriptions[command.subscription]
    session = held_session(subscription, command.session)
    assert session.lock is not None
    session.lock.until = now + session.lock.duration
    subscription.timers.set(("session", session.id), session.lock.until)
    _write(subscription, session, out)
    return subscription.partition.offsets.shown(session.lock.until)


def release_session(
    partition: Partition, command: ReleaseSession, now: int, wall: int, out: WriteBatch
) -> None:
    """Release a session and its messages."""
    subscription = partition.subscriptions[command.subscription]
    session = held_session(subscription, command.session)
    end_session_lock(subscription, session, Input.RELEASE, now, out)


def end_session_lock(
    subscription: Subscription, session: Session, event: Input, now: int, out: WriteBatch
) -> None:
    """End the lock of a session, by RELEASE or because it expired (ABANDON)."""
    held = _carried(subscription, session)
    session.lock = None
    subscription.timers.cancel(("session", session.id))
    _write(subscription, session, out)
    for ordinal in held:
        give_back(subscription, ordinal, event, now, out)
    # The session may have lost its last message, and have been forgotten.
    left = subscription.sessions.find(session.id)
    if left is not None:
        subscription.sessions.offer(left)
        subscription.sessions.forget_idle(left)


def expire_session_lock(
    subscription: Subscription, session: Session, now: int, most: int, out: WriteBatch
) -> int:
    """End an expired session lock, or release a slice of its messages; return how many."""
    held = _carried(subscription, session)
    if len(held) <= most:
        end_session_lock(subscription, session, Input.ABANDON, now, out)
        return len(held) + 1
    for ordinal in sorted(held)[:most]:
        give_back(subscription, ordinal, Input.ABANDON, now, out)
    # No receiver can accept the session before all of it is released.
    subscription.timers.set(("session", session.id), now)
    return most


def set_session_state(
    partition: Partition, command: SetSessionState, now: int, wall: int, out: WriteBatch
) -> None:
    """Set the state of a session, which it keeps without messages; None clears it."""
    subscription = partition.subscriptions[command.subscription]
    session = held_session(subscription, command.session)
    session.state = command.state
    session.state_set_ms = subscription.partition.offsets.shown(now)
    _write(subscription, session, out)


def session_state(
    partition: Partition, command: GetSessionState, now: int, wall: int, out: WriteBatch
) -> bytes | None:
    """Return the state of a session."""
    subscription = partition.subscriptions[command.subscription]
    return held_session(subscription, command.session).state


def session_states(
    partition: Partition, command: ListSessionStates, now: int, wall: int, out: WriteBatch
) -> list[str]:
    """Return the sessions whose state was set at this time or later, or before that was kept."""
    subscription = partition.subscriptions[command.subscription]
    return [
        session.id
        for session in subscription.sessions.hot()
        if session.state is not None and not 0 < session.state_set_ms < command.since_ms
    ]


def _write(subscription: Subscription, session: Session, out: WriteBatch) -> None:
    key, lock = (*subscription.key, session.id), session.lock
    if lock is not None:
        held = (lock.until, lock.duration, lock.epoch, lock.check, lock.owner, lock.takeover)
        out.put(SESSIONS, (*key, session.state, *held, session.state_set_ms))
    elif session.state is not None:
        out.put(SESSIONS, (*key, session.state, 0, 0, 0, 0, "", None, session.state_set_ms))
    else:
        out.delete(SESSIONS, key)


def list_sessions(
    partition: Partition, command: ListSessions, now: int, wall: int, out: WriteBatch
) -> list[SessionInfo]:
    """Return the sessions that have messages, a lock or a state, by their ids."""
    subscription = partition.subscriptions[command.subscription]
    every = subscription.sessions.all(subscription.session_name)
    return sorted(describe(subscription, every), key=lambda info: info.session_id)


def describe(subscription: Subscription, sessions: Iterable[Session]) -> Iterator[SessionInfo]:
    """Yield those of the sessions that have messages, a lock or a state."""
    shown = subscription.partition.offsets.shown
    for session in sessions:
        held = _carried(subscription, session) + session.in_flight + session.blocking
        ready = [o for o in session.ready if o < subscription.log.visible_below]
        first = min([*ready[:1], *session.waiting[:1], *held], default=ORDINALS_END)
        if session.lock is None and session.state is None and first == ORDINALS_END:
            continue
        oldest = None if first == ORDINALS_END else _stamp(subscription, first)
        lock = session.lock
        yield SessionInfo(
            session.id,
            len(ready) + len(session.waiting),
            len(held),
            oldest,
            shown(lock.until) if lock else None,
            lock.owner if lock else None,
            session.state,
        )


def warm_sessions(
    partition: Partition, command: WarmSessions, now: int, wall: int, out: WriteBatch
) -> bool:
    """Read the names of some sessions that are not in memory; return whether more are left."""
    subscription = partition.subscriptions[command.subscription]
    return subscription.sessions.warm_some(subscription.session_name, command.looks)


def list_ids(
    partition: Partition, command: ListSessionIds, now: int, wall: int, out: WriteBatch
) -> list[str]:
    """Return the ids of the sessions in memory."""
    sessions = partition.subscriptions[command.subscription].sessions
    return [session.id for session in sessions.hot()]


def describe_some(
    partition: Partition, command: DescribeSessions, now: int, wall: int, out: WriteBatch
) -> list[SessionInfo]:
    """Return sessions by their ids, as far as they still have something."""
    subscription = partition.subscriptions[command.subscription]
    found = [subscription.sessions.find(session_id) for session_id in command.ids]
    return list(describe(subscription, [one for one in found if one is not None]))


def _stamp(subscription: Subscription, ordinal: int) -> int:
    block, position = subscription.log.entry(ordinal)
    return block.entry(position)[1]


def _carried(subscription: Subscription, session: Session) -> list[int]:
    """Return the messages that a session's lock holds, in order."""
    epochs = session.lock.holds if session.lock is not None else ()
    return sorted(ordinal for epoch in epochs for ordinal in subscription.holds[epoch].ordinals)
