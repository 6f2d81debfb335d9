"""Deliberate mistakes: each replaces one function of the bus by one that is a little wrong.

`MUTANTS` names them: what is replaced, by what (made from the original), and the kinds of queues on
which it shows. The simulation must catch every one of them.
"""

from __future__ import annotations

from typing import Any

from onibus.core import marks, remembered_ids, runs, sessions, subscription
from onibus.core import partition as partition_module
from onibus.core.commands import Purge
from onibus.core.errors import LockLost
from onibus.core.handlers import HANDLERS
from onibus.core.holds import TOKEN
from onibus.core.lifecycle import DEAD, HELD, Input, State
from onibus.core.message import Sent
from onibus.core.path import (
    admit,
    compact,
    dead_letter,
    enqueue,
    expire,
    peek,
    receive,
    receive_fifo,
    recover,
    schedule,
    session,
    settle,
)
from onibus.directory import routing
from onibus.gateway import broker as broker_module
from onibus.gateway import receiving, ticking
from onibus.shard import commits as commit_loop
from onibus.shard.replies import answer
from tests.simulation.mutating import Mutant

# Commits


def answer_before_commit(original: Any) -> Any:
    def answer_after(self: Any, reply: Any, value: Any) -> None:
        original(self, reply, value)
        answer(reply, value)

    return answer_after


def acknowledge_failed_commit(original: Any) -> Any:
    def abandon(self: Any, error: BaseException) -> None:
        for reply, value in self._committing_answers + self._answers:
            answer(reply, value)
        original(self, error)

    return abandon


def show_before_commit(original: Any) -> Any:
    def commit_started(self: Any) -> None:
        original(self)
        self.log.visible_below = self.log.next_ordinal

    return commit_started


def lose_every_tenth_write(original: Any) -> Any:
    count = 0

    def write(self: Any, records: Any) -> None:
        nonlocal count
        count += 1
        if count % 10:
            original(self, records)

    return write


def sleep_through(original: Any) -> Any:
    return lambda self, entity: None


def give_up_at_once(original: Any) -> Any:
    def give_up(broker: Any, waiter: Any) -> None:
        if waiter in waiter.entity.waiters:
            del waiter.entity.waiters[waiter]
        original(broker, waiter)

    return give_up


def refuse_to_fail_over(original: Any) -> Any:
    def reroute(broker: Any, request: Any, error: Any) -> None:
        request.keyless = False
        original(broker, request, error)

    return reroute


def route_by_another_hash(original: Any) -> Any:
    return lambda key, count: (original(key, count) + 1) % count


# Duplicates


def forget_one_id(original: Any) -> Any:
    count = 0

    def record_all(self: Any, hashes: Any, ordinals: Any, now: int) -> None:
        nonlocal count
        count += 1
        if count % 10 or len(hashes) < 1:
            original(self, hashes, ordinals, now)
        else:
            original(self, hashes[1:], ordinals[1:], now)

    return record_all


def extend_the_window(original: Any) -> Any:
    def send(
        partition: Any,
        batch: Any,
        originals: Any,
        now: int,
        wall: int,
        out: Any,
        *rest: Any,
        **more: Any,
    ) -> Any:
        for prepared, ordinal in zip(batch, originals, strict=True):
            hashes = list(prepared.identities) if ordinal > 0 else []
            partition.ids.record_all(hashes, [ordinal] * len(hashes), now)
            partition.ids.write(out)
        return original(partition, batch, originals, now, wall, out, *rest, **more)

    return send


def do_not_count_duplicates(original: Any) -> Any:
    return lambda *given: None


def store_duplicates(original: Any) -> Any:
    return lambda batch, *rest: [-1] * len(batch)


def hide_duplicates(original: Any) -> Any:
    def send(*given: Any, **more: Any) -> Any:
        answers = original(*given, **more)
        return [Sent(answer.sequence_number) for answer in answers]

    return send


def shorten_the_window(original: Any) -> Any:
    return lambda self, now: original(self, now) + 2_500


def match_the_first_identity_only(original: Any) -> Any:
    def identities(message: Any, settings: Any, secret: bytes) -> Any:
        message, found = original(message, settings, secret)
        return message, found[:1]

    return identities


def forget_ids_at_restart(original: Any) -> Any:
    def recover_ids(self: Any, recent: Any, runs: Any) -> None:
        original(self, list(recent)[:-1], runs)

    return recover_ids


# Numbers and stamps


def skip_a_number(original: Any) -> Any:
    def stamp(partition: Any, count: int, wall: int, out: Any) -> Any:
        log = partition.log
        if log.next_ordinal % 7 == 0:
            log.next_ordinal += 1
            for subscription in partition.subscriptions.values():
                subscription.depart([log.next_ordinal - 1], out)
        return original(partition, count, wall, out)

    return stamp


def reuse_a_number(original: Any) -> Any:
    def count_live(partition: Any, places: Any) -> None:
        original(partition, places)
        log = partition.log
        if log.next_ordinal - 1 in partition.subscription.gone:
            log.next_ordinal -= 1
            log.visible_below = log.next_ordinal

    return count_live


def stamp_backwards(original: Any) -> Any:
    def stamp(partition: Any, count: int, wall: int, out: Any) -> Any:
        partition.log.last_stamp = min(partition.log.last_stamp, wall)
        return original(partition, count, wall, out)

    return stamp


# Holds


def release_early(original: Any) -> Any:
    def lock(self: Any, ordinals: Any, hold: Any) -> None:
        original(self, ordinals, hold)
        if self.timers.is_set(("hold", hold.epoch)):
            hold.ordinals.update(dict.fromkeys(ordinals, hold.until - 700))
            self.watch_hold(hold)

    return lock


def accept_stale_tokens(original: Any) -> Any:
    def held(self: Any, token: bytes) -> Any:
        try:
            return original(self, token)
        except LockLost:
            number = TOKEN.unpack(token)[0]
            for ordinal in self.numbering.candidates(number, self.log.next_ordinal):
                mark = self.marks.get(ordinal)
                if mark is not None and mark.hold is not None:
                    return ordinal, mark, mark.hold
            raise

    return held


def hold_twice(original: Any) -> Any:
    def lock(subscription: Any, ordinals: Any, session: Any, *given: Any) -> Any:
        received = original(subscription, ordinals, session, *given)
        if session is None and not subscription.settings.requires_session:
            mark = subscription.marks[ordinals[0]]
            if mark.state is State.LOCKED:
                subscription.ready.add(ordinals[0], ordinals[0])
        return received

    return lock


def lose_holds_at_restart(original: Any) -> Any:
    return lambda partition, rows, attempts: None


def count_on_release(original: Any) -> Any:
    def give_back(partition: Any, ordinal: int, event: Input, *rest: Any) -> None:
        original(partition, ordinal, Input.ABANDON if event is Input.RELEASE else event, *rest)

    return give_back


def do_not_count_abandon(original: Any) -> Any:
    def give_back(partition: Any, ordinal: int, event: Input, *rest: Any) -> None:
        original(partition, ordinal, Input.RELEASE if event is Input.ABANDON else event, *rest)

    return give_back


def no_backoff(original: Any) -> Any:
    return lambda partition, deliveries: 0


def lose_the_reason(original: Any) -> Any:
    def dead(partition: Any, ordinal: int, reason: Any, description: Any, *rest: Any) -> None:
        original(partition, ordinal, None, description, *rest)

    return dead


def deliver_deferred_messages(original: Any) -> Any:
    def change(self: Any, ordinal: int, event: Input, out: Any, **more: Any) -> Any:
        new = original(self, ordinal, event, out, **more)
        if new is State.DEFERRED and event is Input.DEFER and ordinal not in self.ready:
            self.ready.add(ordinal, ordinal)
        return new

    return change


# Sessions and groups


def out_of_order(original: Any) -> Any:
    return lambda self, limit, below: original(self, limit, below)[::-1]


def ignore_what_is_in_flight(original: Any) -> Any:
    return lambda self: self.waiting[0] if self.waiting else 1 << 62


def ignore_what_is_delayed(original: Any) -> Any:
    return lambda self: 0 if self.in_flight else 1 << 62


def forget_session_states(original: Any) -> Any:
    def recover_sessions(partition: Any, rows: Any) -> None:
        original(partition, [(*row[:3], None, *row[4:]) for row in rows])

    return recover_sessions


def find_nothing(original: Any) -> Any:
    return lambda *given: None


def forget_to_offer(original: Any) -> Any:
    return lambda self, session: None


# Time


def activate_early(original: Any) -> Any:
    return lambda self, ordinal, due, out: original(self, ordinal, due - 300, out)


def keep_the_number(original: Any) -> Any:
    def activate(partition: Any, ordinals: Any, now: int, wall: int, out: Any) -> None:
        subscription = partition.subscription
        for ordinal in ordinals:
            name = None
            if partition.settings.requires_session:
                name = subscription.session_name(ordinal)
            subscription.counts[State.SCHEDULED] -= 1
            del subscription.marks.hot[ordinal]
            subscription.enqueue(ordinal, [name])

    return activate


def expire_what_is_held(original: Any) -> Any:
    def expire_in(partition: Any, place: Any, now: int, out: Any) -> None:
        state = partition.subscription.state
        for ordinal in range(place.first, place.last + 1):
            if state(ordinal) is State.LOCKED and partition.log.expires(ordinal) <= now:
                partition.subscription.change(ordinal, Input.RELEASE, out)
        original(partition, place, now, out)

    return expire_in


def never_expire(original: Any) -> Any:
    return lambda partition, ordinal, out, taken=False: None


def lose_the_time_of_cold_marks(original: Any) -> Any:
    def get(self: Any, ordinal: int) -> Any:
        cold = ordinal not in self.hot
        mark = original(self, ordinal)
        if cold and mark is not None:
            self._timers.cancel(("due", ordinal))
        return mark

    return get


# Owners and the store


def compact_too_much(original: Any) -> Any:
    def encode(entries: Any, rows: Any) -> Any:
        if len(rows) < 2:
            return original(entries, rows)
        return original(entries[:-1], rows[:-1])

    return encode


def peek_misses_scheduled(original: Any) -> Any:
    return lambda wanted, dead: original(wanted, dead) - {State.SCHEDULED}


def purge_too_much(original: Any) -> Any:
    def purged(partition: Any, command: Purge, now: int, wall: int, out: Any) -> Any:
        counted = original(partition, command, now, wall, out)
        subscription = partition.subscriptions[command.subscription]
        held = [
            ordinal for ordinal in subscription.marks if subscription.state(ordinal) in HELD - DEAD
        ]
        for ordinal in held[:1]:
            subscription.change(ordinal, Input.COMPLETE, out)
            subscription.depart([ordinal], out)
        return counted

    return purged


def forget_what_is_gone(original: Any) -> Any:
    def add(self: Any, first: int, last: int) -> Any:
        found, ended, swallowed = original(self, first, last)
        return found, max(found, ended - (ended > found)), swallowed

    return add


def cancel_anything(original: Any) -> Any:
    def find(partition: Any, numbers: Any) -> Any:
        try:
            return original(partition, numbers)
        except Exception:
            return []

    return find


_ANY = ("plain", "sessions", "spread")
_DUPLICATES = ("detecting", "keyed", "everything")
_SESSIONS = ("sessions", "everything", "plain")
_FIFO = ("fifo", "content", "strict")
_TIMED = ("mortal", "plain", "fading")

MUTANTS = {
    "answer before the commit": Mutant(
        commit_loop.CommitLoop, "answer_after", answer_before_commit, _ANY
    ),
    "acknowledge a failed commit": Mutant(
        commit_loop.CommitLoop, "abandon", acknowledge_failed_commit, _ANY
    ),
    "show before the commit": Mutant(
        partition_module.Partition, "commit_started", show_before_commit, _ANY
    ),
    "lose a write": Mutant(commit_loop.CommitLoop, "write", lose_every_tenth_write, _ANY),
    "do not wake those who wait": Mutant(broker_module.Broker, "wake", sleep_through, _ANY),
    "give up without a last look": Mutant(
        ticking, "give_up", give_up_at_once, ("spread", "plain", "fading")
    ),
    "give nothing to those who wait": Mutant(receiving, "_fetch", find_nothing, _TIMED),
    "no fail-over": Mutant(broker_module, "reroute", refuse_to_fail_over, ("spread",)),
    "another partition": Mutant(routing, "partition_of", route_by_another_hash, _DUPLICATES),
    "forget one id": Mutant(remembered_ids.RememberedIds, "record_all", forget_one_id, _DUPLICATES),
    "a duplicate extends the window": Mutant(enqueue, "send", extend_the_window, ("detecting",)),
    "duplicates are not counted": Mutant(
        enqueue, "note_duplicate", do_not_count_duplicates, _DUPLICATES
    ),
    "duplicates are stored": Mutant(enqueue, "deduplicate", store_duplicates, _DUPLICATES),
    "duplicates look new": Mutant(enqueue, "send", hide_duplicates, _DUPLICATES),
    "the window is too short": Mutant(
        partition_module.Partition, "forget_before", shorten_the_window, _DUPLICATES
    ),
    "content is no identity": Mutant(
        admit, "_fifo_identities", match_the_first_identity_only, ("strict",)
    ),
    "an id is forgotten at restart": Mutant(
        remembered_ids.RememberedIds, "recover", forget_ids_at_restart, _DUPLICATES
    ),
    "skip a number": Mutant(enqueue, "stamp", skip_a_number, _ANY),
    "reuse a number after recovery": Mutant(recover, "_count_live", reuse_a_number, _ANY),
    "stamps run backwards": Mutant(enqueue, "stamp", stamp_backwards, _ANY),
    "release a hold early": Mutant(subscription.Subscription, "lock", release_early, _ANY),
    "accept a stale token": Mutant(
        subscription.Subscription, "held_by", accept_stale_tokens, ("plain", "fading", "spread")
    ),
    "hold twice": Mutant(receive, "lock", hold_twice, ("plain", "fading", "spread")),
    "lose holds at restart": Mutant(recover, "_recover_holds", lose_holds_at_restart, _ANY),
    "count a release as a delivery": Mutant(session, "give_back", count_on_release, _SESSIONS),
    "do not count an abandon": Mutant(settle, "give_back", do_not_count_abandon, _ANY),
    "a lock that ran out counts nothing": Mutant(expire, "give_back", do_not_count_abandon, _ANY),
    "no back-off": Mutant(settle, "_backoff", no_backoff, ("fading", "sessions")),
    "lose the dead-letter reason": Mutant(settle, "dead_letter", lose_the_reason, _ANY),
    "lose the reason of an expiry": Mutant(
        dead_letter, "dead_letter", lose_the_reason, ("mortal",)
    ),
    "receive what is deferred": Mutant(
        subscription.Subscription, "change", deliver_deferred_messages, ("plain", "spread")
    ),
    "out of order in a session": Mutant(sessions.Session, "take", out_of_order, _SESSIONS),
    "a group in flight is given out": Mutant(
        sessions.Session, "barrier", ignore_what_is_in_flight, _FIFO
    ),
    "a delayed message blocks nothing": Mutant(
        sessions.Session, "barrier", ignore_what_is_delayed, ("sessions",)
    ),
    "forget session states at restart": Mutant(
        recover, "_recover_sessions", forget_session_states, _SESSIONS
    ),
    "forget attempts": Mutant(receive_fifo, "_repeat", find_nothing, _FIFO),
    "a free session is not offered": Mutant(sessions.Sessions, "offer", forget_to_offer, _SESSIONS),
    "activate early": Mutant(subscription.Subscription, "schedule", activate_early, _TIMED),
    "keep the number at activation": Mutant(expire, "activate", keep_the_number, _TIMED),
    "expire what is held": Mutant(expire, "_expire_in", expire_what_is_held, ("mortal",)),
    "nothing expires": Mutant(expire, "expire_message", never_expire, ("mortal",)),
    "what was looked at is never due": Mutant(
        marks.Marks, "get", lose_the_time_of_cold_marks, _TIMED
    ),
    "compaction drops a row": Mutant(compact, "encode_entries", compact_too_much, _ANY),
    "peek misses what is scheduled": Mutant(peek, "states_of", peek_misses_scheduled, _TIMED),
    "purge takes what is held": Mutant(HANDLERS, Purge, purge_too_much, _ANY),
    "a gone run ends too early": Mutant(runs.Runs, "add", forget_what_is_gone, _ANY),
    "cancel what is not there": Mutant(schedule, "find_scheduled", cancel_anything, _TIMED),
}
