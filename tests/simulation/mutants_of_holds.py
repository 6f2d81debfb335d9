"""Deliberate mistakes in what holds messages: changes that no record says, and groups (F10)."""

from __future__ import annotations

from typing import Any

from onibus.core import sessions, subscription
from onibus.core.path import session, settle
from tests.simulation.mutating import Mutant

_LOCKED = ("plain", "fading", "spread")
_GROUPS = ("fifo", "content")
_SESSIONS = ("sessions", "everything")


def renew_and_write_nothing(original: Any) -> Any:
    """A command that changes state and writes nothing."""

    def renew(self: Any, hold: Any, ordinal: int, until: int) -> None:
        hold.ordinals[ordinal] = until
        self.watch_hold(hold)

    return renew


def change_unnoticed(original: Any) -> Any:
    """A partition that does not know that it changed."""

    def changed(self: Any, hold: Any) -> None:
        before = self.partition.dirty
        original(self, hold)
        self.partition.dirty = before

    return changed


def block_what_came_before(original: Any) -> Any:
    return lambda self: 0 if self.in_flight else original(self)


def go_back_to_the_front(original: Any) -> Any:
    return lambda self, session, ordinal, behind=0: original(self, session, ordinal)


def block_later_messages_only(original: Any) -> Any:
    return lambda self, ordinals, strictly: original(self, ordinals, strictly=False)


def lend_what_is_in_flight(original: Any) -> Any:
    def next_free(self: Any, below: int, name_of: Any, whole: bool = True) -> Any:
        return original(self, below, name_of, whole=False)

    return next_free


def take_over_and_keep_both(original: Any) -> Any:
    """A takeover after which the first receiver still has the session."""

    def accepted(subscription: Any, held: Any, out: Any) -> Any:
        lock = held.lock
        known = vars(subscription).setdefault("first_holders", {}) if lock.takeover else {}
        lock.epoch, lock.check = known.setdefault(lock.takeover, (lock.epoch, lock.check))
        return original(subscription, held, out)

    return accepted


def take_over_without_a_token(original: Any) -> Any:
    def compare(known: bytes, given: bytes) -> bool:
        return True

    return compare


def let_anyone_settle(original: Any) -> Any:
    return lambda subscription, held: None


OF_HOLDS = {
    "a renewal is not stored": Mutant(
        subscription.Subscription, "renew", renew_and_write_nothing, _LOCKED
    ),
    "a partition does not notice a change": Mutant(
        subscription.Subscription, "_changed", change_unnoticed, _LOCKED
    ),
    "a message in flight blocks earlier ones": Mutant(
        sessions.Session, "barrier", block_what_came_before, _GROUPS
    ),
    "a group that comes back goes first": Mutant(
        sessions.Sessions, "give_back", go_back_to_the_front, _GROUPS
    ),
    "a strict group delivers earlier messages": Mutant(
        sessions.Session, "fly", block_later_messages_only, ("strict",)
    ),
    "a claim blocks later messages only": Mutant(
        sessions.Session, "fly", block_later_messages_only, ("fifo",)
    ),
    "a claim takes from a group in flight": Mutant(
        sessions.Sessions, "next_free", lend_what_is_in_flight, ("fifo",)
    ),
    "a takeover leaves the session to both": Mutant(
        session, "_accepted", take_over_and_keep_both, _SESSIONS
    ),
    "any token takes a session over": Mutant(
        session, "compare_digest", take_over_without_a_token, _SESSIONS
    ),
    "a receiver that was taken over settles": Mutant(
        settle, "held_session", let_anyone_settle, _SESSIONS
    ),
}
