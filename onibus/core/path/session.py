"""Sessions: accepting, renewing, taking over and releasing one, and its state (B4, B9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hmac import compare_digest
from typing import TYPE_CHECKING

from onibus.core.errors import InvalidArgument, SessionLocked, SessionLockLost
from onibus.core.holds import TOKEN
from onibus.core.inspection import AcceptedSession, NonExclusive, SessionInfo
from onibus.core.lifecycle import Input
from onibus.core.limits import SESSION_STATE_BYTES_MAX
from onibus.core.numbering import ORDINALS_END
from onibus.core.path.settle import give_back
from onibus.core.records import SESSIONS, WriteBatch
from onibus.core.sessions import Session, SessionLock

if TYPE_CHECKING:
    from onibus.core.subscription import Subscription


def accept_session(
    subscription: Subscription,
    session_id: str | None,
    owner: str,
    now: int,
    out: WriteBatch,
    sharing: NonExclusive | None = None,
) -> AcceptedSession | None:
    """Lock a session by its id, or the next that is free; None when none is.

    Without `sharing` the lock is exclusive.
    """
    sessions = subscription.sessions
    if session_id is None:
        if sharing is not None and sharing.takeover is not None:
            raise InvalidArgument("name the session that a lock token takes over")
        free = sessions.next_free(subscription.log.visible_below, subscription.session_name)
        if free is None:
            return None
        session = free
    elif sharing is not None and sharing.takeover is not None:
        return _take_over(subscription, session_id, sharing.takeover, owner, now, out)
    else:
        session = sessions.get(session_id)
        if session.in_use:
            raise SessionLocked(f"another receiver holds session {session_id!r}: try again later")
    duration = subscription.settings.lock_duration_ms
    hold = subscription.new_hold(now + duration, duration, None)
    session.lock = SessionLock(hold.epoch, hold.check, hold.until, duration, owner)
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
    if type(takeover) is not bytes:
        raise InvalidArgument("a lock token is bytes")
    session = subscription.sessions.find(session_id)
    lock = None if session is None else session.lock
    if session is None or lock is None:
        raise SessionLockLost(
            f"session {session_id!r} is not locked: accept it without a lock token"
        )
    if lock.takeover is None or not compare_digest(lock.takeover, takeover):
        raise SessionLocked(f"session {session_id!r} is held by another receiver")
    hold = subscription.new_hold(now + lock.duration, lock.duration, None)
    lock.epoch, lock.check, lock.until, lock.owner = hold.epoch, hold.check, hold.until, owner
    return _accepted(subscription, session, out)


def _accepted(subscription: Subscription, session: Session, out: WriteBatch) -> AcceptedSession:
    """Keep a lock that a receiver has just got, and return what proves it."""
    lock = session.lock
    assert lock is not None
    subscription.timers.set(("session", session.id), lock.until)
    _write(subscription, session, out)
    token = TOKEN.pack(subscription.numbering.number(0), lock.epoch, lock.check)
    shown = subscription.partition.offsets.shown(lock.until)
    return AcceptedSession(session.id, token, shown, lock.takeover)


def held_session(subscription: Subscription, session_id: str, token: bytes) -> Session:
    """Return the session that a token holds, or refuse the token."""
    session = subscription.sessions.find(session_id)
    _, epoch, check = TOKEN.unpack(token)
    if session is not None:
        lock = session.lock
        if lock is not None and (lock.epoch, lock.check) == (epoch, check):
            return session
    raise SessionLockLost(
        f"the lock on session {session_id!r} expired, was released or taken over: accept it again"
    )


def renew_session(subscription: Subscription, session: Session, now: int, out: WriteBatch) -> int:
    """Hold a session, and with it its messages, longer; return until when, by the wall clock."""
    assert session.lock is not None
    session.lock.until = now + session.lock.duration
    subscription.timers.set(("session", session.id), session.lock.until)
    _write(subscription, session, out)
    return subscription.partition.offsets.shown(session.lock.until)


def end_session_lock(
    subscription: Subscription, session: Session, event: Input, now: int, out: WriteBatch
) -> None:
    """A session is closed (RELEASE) or its lock ran out (ABANDON): what it held goes back."""
    held = _carried(subscription, session)
    session.lock = None
    subscription.timers.cancel(("session", session.id))
    _write(subscription, session, out)
    for ordinal in held:
        give_back(subscription, ordinal, event, now, out)
    # Giving back may have let go of the session's last message, and of the session with it.
    left = subscription.sessions.find(session.id)
    if left is not None:
        subscription.sessions.offer(left)
        subscription.sessions.forget_idle(left)


def set_session_state(
    subscription: Subscription, session: Session, state: bytes | None, now: int, out: WriteBatch
) -> None:
    """Keep bytes with a session, also when it has no messages; None clears them."""
    if state is not None and type(state) is not bytes:
        raise InvalidArgument("a session state must be bytes or None")
    if state is not None and len(state) > SESSION_STATE_BYTES_MAX:
        raise InvalidArgument(f"a session state has at most {SESSION_STATE_BYTES_MAX} bytes")
    session.state = state
    session.state_set_ms = subscription.partition.offsets.shown(now)
    _write(subscription, session, out)


def states_set_since(subscription: Subscription, since_ms: int) -> list[str]:
    """Return the sessions whose state was set at this time or later, or before that was kept."""
    return [
        session.id
        for session in subscription.sessions.hot()
        if session.state is not None and not 0 < session.state_set_ms < since_ms
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


def list_sessions(subscription: Subscription) -> list[SessionInfo]:
    """Return the sessions that have messages, a lock or a state, by their ids."""
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


def _stamp(subscription: Subscription, ordinal: int) -> int:
    block, position = subscription.log.entry(ordinal)
    return block.entry(position)[1]


def _carried(subscription: Subscription, session: Session) -> list[int]:
    """Return the messages that a session's lock holds, in order."""
    epochs = session.lock.holds if session.lock is not None else ()
    return sorted(ordinal for epoch in epochs for ordinal in subscription.holds[epoch].ordinals)
