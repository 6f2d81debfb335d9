"""Sessions of one subscription: which is given out next, and what is kept to know that."""

from __future__ import annotations

from onibus.core.block import NEVER
from onibus.core.sessions import Sessions

#: Entries kept besides those of sessions that are known.
SPARE = 64


def name_of(ordinal: int) -> str:
    raise AssertionError(f"nothing is cold, {ordinal} neither")


def test_messages_of_a_session_that_is_accepted_by_name_leave_nothing_behind() -> None:
    sessions = Sessions(b"secret")
    session = sessions.get("mine")
    for ordinal in range(1, 10_001):
        sessions.append(ordinal, [session.id])
        assert session.take(1, NEVER) == [ordinal]
        sessions.give_back(session, ordinal)
        assert session.take(1, NEVER) == [ordinal]
    assert len(sessions._available) <= 2 + SPARE


def test_what_is_dropped_leaves_every_session_on_offer_in_order() -> None:
    sessions = Sessions(b"secret")
    count = 200
    for ordinal in range(1, count + 1):
        sessions.append(ordinal, [f"{-ordinal}"])
    for _ in range(10):
        for ordinal in range(1, count + 1, 3):
            session = sessions.get(f"{-ordinal}")
            sessions.remove(session, ordinal)
            sessions.give_back(session, ordinal)
    assert len(sessions._available) <= 2 * count + SPARE
    free = []
    while (found := sessions.next_free(NEVER, name_of)) is not None:
        free.append(found.ready[0])
        found.take(1, NEVER)
    assert free == list(range(1, count + 1))
