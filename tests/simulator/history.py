"""A black-box history of what clients did and were told, and a checker that walks it once.

A client writes two records for every operation: what it asks (`invoke`) and what it was told
(`complete`: ok, refused or unknown). One that was never answered is unknown. Only ok and refused
bind; an unknown operation may have happened or not. After the last fault everything is drained: the
messages that are left are received, or peeked at, and completed (`drain` records).

A client may record a delivery long after the server sent it. So of two holds the one that ends
later is the newer one. A delivery whose lock ended before its message was completed is late, and
not a redelivery.

| anomaly | rule |
| --- | --- |
| lost | a send was ok, and the message was never received, drained, cancelled or expired |
| ghost | a message was received whose send was refused, or was never asked |
| altered | body or session differ from what was sent |
| duplicate stored | two numbers for one identity inside the window |
| redelivered after settle | a delivery after its message was completed |
| double hold | two holds on a message, or on a session, at one time |
| order | first deliveries in a session are not in the order of their numbers |
| gap | numbers of a partition are not 1…n |
| reuse | one number has two messages |
| stale settle | a settlement was ok after its hold had ended, or while another receiver held it |
| time | stamps run backwards, a delivery before its schedule or after its expiry |
| stuck | after faults stopped an entity was not drained |
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
NEVER = 1 << 62
#: What ends a hold.
SETTLES = ("complete", "abandon", "defer", "dead-letter")


class Event(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One record. Times are bus time in milliseconds, of one clock for the whole history."""

    #: invoke, complete, or fault (a kill: holds may end early after it)
    phase: str
    #: send, schedule, cancel, receive, accept, close, drain, and what settles a message
    kind: str = ""
    operation: int = 0
    client: str = ""
    entity: str = ""
    time: int = 0
    outcome: str = UNKNOWN
    #: of a send, in its invoke
    identity: str | None = None
    body: str | None = None
    session: str | None = None
    due: int | None = None
    expires: int | None = None
    #: of what was sent, received, settled or held
    number: int | None = None
    duplicate_of: int | None = None
    stamp: int | None = None
    until: int | None = None
    #: the earliest end of a hold, if the client knows only that it ends by `until`
    until_least: int | None = None
    token: str | None = None

    @property
    def surely_until(self) -> int:
        """When the hold of a delivery ends at the earliest."""
        least = self.until if self.until_least is None else self.until_least
        return 0 if least is None else least


class Anomaly(msgspec.Struct, frozen=True):
    """A rule that was broken, and by what."""

    rule: str
    words: str


class _Message:
    """What is known of one body: bodies are unique in a history."""

    __slots__ = (
        "asked", "cancelled", "completed", "gone", "outcome", "received", "repeats", "stored",
    )  # fmt: skip

    def __init__(self, asked: Event) -> None:
        self.asked = asked
        self.outcome = UNKNOWN
        self.received = 0
        self.completed: Event | None = None
        #: perhaps, and surely
        self.cancelled = self.gone = False
        self.repeats = False
        #: it was stored at this time at the latest
        self.stored = NEVER


class Checker:
    """Walks a history, record by record; `finish` returns every anomaly."""

    def __init__(
        self,
        window_ms: int = 0,
        partitioned: frozenset[str] = frozenset(),
        drained: frozenset[str] = frozenset(),
        slack_ms: int = 0,
        repeatable: frozenset[str] = frozenset(),
    ) -> None:
        self._window = window_ms
        self._partitioned = partitioned
        #: entities of which nothing may be left at the end
        self._to_be_drained = drained
        #: how far apart the clocks of clients and bus may be
        self._slack = slack_ms
        #: entities that accept the completion of a message that is gone, as SQS queues do
        self._repeatable = repeatable
        #: how many such completions there were
        self.repeats = 0
        self._anomalies: list[Anomaly] = []
        self._asked: dict[int, Event] = {}
        self._by_body: dict[str, _Message] = {}
        self._by_number: dict[tuple[str, int], str] = {}
        self._holds: dict[tuple[str, int], Event] = {}
        #: holds that their holder has asked to end, by the operation that asks it
        self._ending: dict[int, Event] = {}
        #: operations that complete a message, without those that were refused
        self._completing: dict[tuple[str, int], set[int]] = defaultdict(set)
        #: the last operation that was asked before the last fault
        self._last_asked = self._before_fault = -1
        self._held_by_session: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._sessions: dict[tuple[str, str], Event] = {}
        self._in_session: dict[tuple[str, str], int] = {}
        self._delivered: set[tuple[str, int]] = set()
        self._stamps: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self._numbers: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._schedules: dict[str, int] = defaultdict(int)
        self._drained: set[str] = set()

    def check(self, history: Iterable[Event]) -> list[Anomaly]:
        """Return the anomalies of a whole history."""
        for event in history:
            self.add(event)
        return self.finish()

    def add(self, event: Event) -> None:
        """Take one more record."""
        if event.phase == "fault":
            self._holds.clear()
            self._sessions.clear()
            self._held_by_session.clear()
            self._before_fault = self._last_asked
        elif event.phase == "invoke":
            self._invoke(event)
        else:
            self._complete(event)

    def _found(self, rule: str, words: str) -> None:
        self._anomalies.append(Anomaly(rule, words))

    # Records

    def _invoke(self, event: Event) -> None:
        self._asked[event.operation] = event
        self._last_asked = max(self._last_asked, event.operation)
        if event.kind in ("send", "schedule") and event.body is not None:
            self._by_body[event.body] = _Message(event)
            self._schedules[event.entity] += event.due is not None
        elif event.kind in SETTLES and event.number is not None:
            key = (event.entity, event.number)
            if event.kind == "complete":
                self._completing[key].add(event.operation)
            hold = self._holds.get(key)
            if hold is not None:
                self._ending[event.operation] = hold
                if hold.token == event.token:
                    # From now on another receiver may get it, whatever the response, and when.
                    del self._holds[key]
        elif event.kind == "cancel":
            self._cancel(event, True)
        elif event.kind == "close":
            session = (event.entity, event.session or "")
            self._sessions.pop(session, None)
            for number in self._held_by_session.pop(session, ()):
                self._holds.pop((event.entity, number), None)

    def _complete(self, event: Event) -> None:
        asked = self._asked.get(event.operation)
        if asked is None:
            self._found("ghost", f"an answer to nothing: {event}")
        elif event.kind in ("send", "schedule"):
            self._sent(asked, event)
        elif event.kind == "cancel" and event.outcome == REFUSED:
            self._cancel(event, False)
        elif event.kind == "complete" and event.outcome == REFUSED:
            self._completing[event.entity, event.number or 0].discard(event.operation)
        elif event.outcome == OK:
            if event.kind in ("receive", "drain"):
                self._received(asked, event)
            elif event.kind in ("accept", "close"):
                self._session_held(event)
            elif event.kind == "cancel":
                self._cancelled(event)
            elif event.kind == "drained":
                self._drained.add(event.entity)
            else:
                self._settled(asked, event)

    def _sent(self, asked: Event, event: Event) -> None:
        assert asked.body is not None
        message = self._by_body[asked.body]
        message.outcome = event.outcome
        if event.outcome == REFUSED or event.duplicate_of is not None:
            message.repeats = event.duplicate_of is not None
            self._schedules[event.entity] -= asked.due is not None
            return
        if event.outcome != OK or event.number is None:
            return
        self._schedules[event.entity] -= asked.due is not None
        self._number(event.entity, event.number, asked.body)
        message.stored = min(message.stored, event.time)

    def _number(self, entity: str, number: int, body: str) -> None:
        known = self._by_number.setdefault((entity, number), body)
        if known != body:
            self._found("reuse", f"number {number} of {entity} is {known!r} and {body!r}")
        partition = number >> 48 if entity in self._partitioned else 0
        self._numbers[entity, partition].add(number - (partition << 48))

    def _received(self, receive: Event, event: Event) -> None:
        assert event.number is not None
        words = f"{event.number} of {event.entity}: {event.body!r}"
        message = self._by_body.get(event.body or "")
        if message is None:
            self._found("altered", f"{words} was never sent")
            return
        asked = message.asked
        if (asked.entity, asked.session) != (event.entity, event.session):
            self._found("altered", f"{words} was sent as {asked}")
        if message.outcome == REFUSED:
            self._found("ghost", f"{words} was refused")
        if message.repeats:
            self._found("ghost", f"{words} was dropped as a duplicate")
        if message.completed is not None and not self._is_late(receive, event, message.completed):
            self._found("redelivered after settle", f"{words} was completed")
        if message.gone:
            self._found("redelivered after settle", f"{words} was cancelled")
        self._number(event.entity, event.number, event.body or "")
        message.received += 1
        message.stored = min(message.stored, event.time)
        self._check_time(event, asked, words)
        self._hold(event, words)
        self._check_order(event, words)

    def _check_time(self, event: Event, asked: Event, words: str) -> None:
        if asked.due is not None and event.time + self._slack < asked.due:
            self._found("time", f"{words} was due at {asked.due}, received at {event.time}")
        if asked.expires is not None and event.time > asked.expires + self._slack:
            self._found("time", f"{words} expired at {asked.expires}, received at {event.time}")
        if event.stamp is not None:
            assert event.number is not None
            partition = event.number >> 48 if event.entity in self._partitioned else 0
            self._stamps[event.entity, partition].append((event.number, event.stamp))

    def _is_late(self, receive: Event, event: Event, completed: Event) -> bool:
        """Return whether a delivery was on its way when another receiver completed its message."""
        unsure = event.until is None or event.until_least is not None
        if receive.operation <= self._before_fault or unsure:
            # When it was sent is not known: perhaps by a server that is dead by now, or from a
            # store that has failed since.
            return receive.time <= completed.time
        return event.until is not None and event.until <= completed.time

    def _hold(self, event: Event, words: str) -> None:
        if event.until is None or event.number is None:
            return
        key = (event.entity, event.number)
        held = self._holds.get(key)
        if held is not None:
            older, newer = sorted((held, event), key=lambda one: one.surely_until)
            if older.surely_until > newer.time + self._slack:
                until = older.surely_until
                self._found("double hold", f"{words} at {newer.time} is held until {until}")
            event = newer
        self._holds[key] = event
        if event.session is not None:
            self._held_by_session[event.entity, event.session].add(key[1])

    def _check_order(self, event: Event, words: str) -> None:
        assert event.number is not None
        key = (event.entity, event.number)
        if event.session is None or key in self._delivered:
            return
        self._delivered.add(key)
        session = (event.entity, event.session)
        if self._in_session.get(session, 0) > event.number:
            self._found("order", f"{words} after {self._in_session[session]}, in one session")
        self._in_session[session] = max(self._in_session.get(session, 0), event.number)

    def _session_held(self, event: Event) -> None:
        key = (event.entity, event.session or "")
        held = self._sessions.get(key)
        if event.kind == "close":
            return
        if held is not None and held.surely_until > event.time + self._slack:
            self._found("double hold", f"session {key} at {event.time}, held until {held.until}")
        self._sessions[key] = event

    def _settled(self, asked: Event, event: Event) -> None:
        assert event.number is not None
        key = (event.entity, event.number)
        words = f"{event.kind} of {event.number} of {event.entity}"
        held = self._ending.pop(event.operation, None)
        if event.entity in self._repeatable and self._completing[key] - {event.operation}:
            # Another client may have completed it: then this changed nothing.
            self.repeats += 1
        elif held is not None:
            newer = self._holds.get(key)
            if held.token != event.token:
                self._found("stale settle", f"{words}, which {held.token} holds")
            elif held.until is not None and asked.time > held.until + self._slack:
                self._found("stale settle", f"{words} at {asked.time}, held until {held.until}")
            elif event.kind == "complete" and newer and newer.surely_until > held.surely_until:
                self._found("stale settle", f"{words}, which {newer.token} received since")
        message = self._by_body.get(self._by_number.get(key, ""))
        if event.kind == "complete" and message is not None:
            if message.completed is None:
                message.completed = event
            elif event.entity not in self._repeatable:
                self._found("stale settle", f"{words}, which was completed before")

    def _cancel(self, event: Event, cancelled: bool) -> None:
        """A message may be gone from when its cancelling was asked, unless that was refused."""
        assert event.number is not None
        message = self._by_body.get(self._by_number.get((event.entity, event.number), ""))
        if message is not None:
            message.cancelled = cancelled

    def _cancelled(self, event: Event) -> None:
        assert event.number is not None
        message = self._by_body.get(self._by_number.get((event.entity, event.number), ""))
        if message is not None:
            message.gone = True
            if message.received:
                self._found("stale settle", f"cancelled {event.number}, which was received")

    # The end

    def finish(self) -> list[Anomaly]:
        """Look at what only the end can tell, and return every anomaly."""
        identities: dict[tuple[str, str], list[_Message]] = defaultdict(list)
        for body, message in self._by_body.items():
            asked = message.asked
            if message.stored != NEVER and asked.identity is not None:
                identities[asked.entity, asked.identity].append(message)
            gone = message.received or message.cancelled or message.repeats
            if message.outcome == OK and not gone and asked.expires is None:
                self._found("lost", f"{body!r}, sent to {asked.entity}")
        for key, messages in identities.items():
            self._check_window(key, messages)
        for (entity, _), stamps in self._stamps.items():
            self._check_stamps(entity, sorted(set(stamps)))
        for (entity, partition), numbers in self._numbers.items():
            missing = max(numbers) - len(numbers)
            if missing > self._schedules[entity] or min(numbers) < 1:
                self._found("gap", f"{entity}, partition {partition}: {missing} are missing")
        for entity in sorted(self._to_be_drained - self._drained):
            self._found("stuck", f"{entity} was not drained")
        return self._anomalies

    def _check_window(self, key: tuple[str, str], messages: list[_Message]) -> None:
        """Of one identity: each was recorded after it was asked, and before it was seen stored."""
        messages.sort(key=lambda message: message.asked.time)
        for first, second in itertools.pairwise(messages):
            if second.stored - first.asked.time < self._window:
                words = f"{first.asked.body!r} and {second.asked.body!r}"
                self._found("duplicate stored", f"{words} as {key}, inside the window")

    def _check_stamps(self, entity: str, stamps: list[tuple[int, int]]) -> None:
        for (number, stamp), (later, next_stamp) in itertools.pairwise(stamps):
            if next_stamp < stamp:
                self._found("time", f"{entity}: {later} is stamped before {number}")


def encode(event: Event) -> bytes:
    """Return a record as a line."""
    return msgspec.json.encode(event) + b"\n"


def decode(lines: Iterable[bytes]) -> list[Event]:
    """Return records of lines; a last line that a kill cut short is left out."""
    events: list[Event] = []
    reader: Any = msgspec.json.Decoder(Event)
    for line in lines:
        try:
            events.append(reader.decode(line))
        except msgspec.DecodeError:
            continue
    return events
