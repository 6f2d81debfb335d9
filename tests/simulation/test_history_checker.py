"""Each rule of the history checker fires on a bad history, and none on a good one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.simulator.history import OK, REFUSED, UNKNOWN, Checker, Event, decode, encode

WINDOW_MS = 1_000


class Story:
    """A history in the making: each line is an operation with its two records."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.time = 0

    def tell(self, kind: str, outcome: str = OK, *, later: int = 1, **facts: Any) -> Story:
        self.ask(kind, later=later, **facts)
        return self.answer(len(self.events) - 1, outcome, **facts)

    def ask(self, kind: str, *, later: int = 1, **facts: Any) -> Story:
        """Record only what is asked; its operation is the place of the record."""
        results = ("stamp", "until", "until_least")
        asked = {name: facts[name] for name in facts if name not in results}
        if kind in ("send", "schedule"):
            asked.pop("number", None)
            asked.pop("duplicate_of", None)
        self.time += later
        common: dict[str, Any] = {"kind": kind, "operation": len(self.events), "entity": "q"}
        self.events.append(Event(phase="invoke", time=self.time, **common, **asked))
        return self

    def answer(self, operation: int, outcome: str = OK, **facts: Any) -> Story:
        """Record the outcome of an operation that was asked."""
        self.time += 1
        common: dict[str, Any] = {"operation": operation, "kind": self.events[operation].kind}
        self.events.append(
            Event(phase="complete", time=self.time, outcome=outcome, entity="q", **common, **facts)
        )
        return self

    def send(self, body: str, number: int | None = None, outcome: str = OK, **facts: Any) -> Story:
        return self.tell("send", outcome, body=body, number=number, **facts)

    def receive(self, body: str, number: int, **facts: Any) -> Story:
        return self.tell("receive", body=body, number=number, **facts)

    def fault(self) -> Story:
        self.events.append(Event(phase="fault"))
        return self

    def rules(self, **settings: Any) -> set[str]:
        lines = b"".join(encode(event) for event in self.events).split(b"\n")
        checker = Checker(WINDOW_MS, **settings)
        return {anomaly.rule for anomaly in checker.check(decode(lines))}


def story() -> Story:
    return Story()


GOOD = {
    "received and completed": story()
    .send("a", 1)
    .receive("a", 1, until=50, token="t")
    .tell("complete", number=1, token="t"),
    "unknown send that was stored": story().send("a", outcome=UNKNOWN).receive("a", 1),
    "unknown send that was not stored": story().send("a", outcome=UNKNOWN),
    "refused send": story().send("a", outcome=REFUSED),
    "duplicate dropped": story()
    .send("a", 1, identity="i")
    .send("b", 1, identity="i", duplicate_of=1)
    .receive("a", 1),
    "same id after the window": story()
    .send("a", 1, identity="i")
    .send("b", 2, identity="i", later=WINDOW_MS + 5)
    .receive("a", 1)
    .receive("b", 2),
    "redelivered after abandon": story()
    .send("a", 1)
    .receive("a", 1, until=50, token="t")
    .tell("abandon", number=1, token="t")
    .receive("a", 1, until=60, token="u"),
    "redelivered after the lock ended": story()
    .send("a", 1)
    .receive("a", 1, until=9, token="t")
    .receive("a", 1, until=90, later=20),
    "lock ended early by a kill": story()
    .send("a", 1)
    .receive("a", 1, until=500, token="t")
    .fault()
    .receive("a", 1, until=600),
    "late settlement refused": story()
    .send("a", 1)
    .receive("a", 1, until=9, token="t")
    .tell("complete", REFUSED, number=1, token="t", later=30),
    "scheduled, activated under a new number": story()
    .tell("schedule", body="a", number=1, due=20)
    .receive("a", 2, later=40),
    "scheduled with an unknown answer": story()
    .tell("schedule", UNKNOWN, body="a", due=20)
    .receive("a", 2, later=40),
    "cancelled": story().tell("schedule", body="a", number=1, due=99).tell("cancel", number=1),
    "cancelled, perhaps": story()
    .tell("schedule", body="a", number=1, due=99)
    .tell("cancel", UNKNOWN, number=1),
    "expired": story().send("a", 1, expires=5),
    "sessions in order, redelivery too": story()
    .send("a", 1, session="s")
    .send("b", 2, session="s")
    .tell("accept", session="s", until=40)
    .receive("a", 1, session="s", until=40, token="t")
    .receive("b", 2, session="s", until=40, token="u")
    .tell("close", session="s")
    .tell("accept", session="s", until=90)
    .receive("a", 1, session="s", until=90, token="v"),
    "a delivery recorded after its lock ended and another receiver has the message": story()
    .send("a", 1)
    .ask("receive")
    .receive("a", 1, until=90, token="u", later=20)
    .answer(2, body="a", number=1, until=20, token="t")
    .tell("complete", REFUSED, number=1, token="t")
    .tell("complete", number=1, token="u"),
    "a delivery recorded after its lock ended and another receiver completed": story()
    .send("a", 1)
    .ask("receive")
    .receive("a", 1, until=90, token="u", later=20)
    .tell("complete", number=1, token="u")
    .answer(2, body="a", number=1, until=20, token="t"),
    "a delivery of a dead server, recorded after the next one completed": story()
    .send("a", 1)
    .ask("receive")
    .fault()
    .receive("a", 1, until=90, token="u")
    .tell("complete", number=1, token="u")
    .answer(2, body="a", number=1, token="t"),
    "a delivery asked for and recorded while locks are unsure": story()
    .send("a", 1)
    .fault()
    .ask("receive")
    .receive("a", 1, token="u", later=20)
    .tell("complete", number=1, token="u")
    .answer(3, body="a", number=1, token="t")
    .fault(),
    "a hold whose end is not known is not compared before it must have ended": story()
    .send("a", 1)
    .receive("a", 1, until=50, until_least=30, token="t")
    .tell("complete", number=1, token="t", later=40),
    "drained": story().send("a", 1).tell("drain", body="a", number=1).tell("drained"),
}

BAD = {
    "lost": [
        story().send("a", 1),
        story().tell("schedule", body="a", number=1, due=9).tell("cancel", REFUSED, number=1),
    ],
    "ghost": [
        story().send("a", outcome=REFUSED).receive("a", 1),
        story().send("a", 1).send("b", 1, duplicate_of=1).receive("a", 1).receive("b", 2),
    ],
    "altered": [
        story().send("a", 1).receive("x", 1).receive("a", 1),
        story().send("a", 1, session="s").receive("a", 1, session="other"),
    ],
    "duplicate stored": [
        story()
        .send("a", 1, identity="i")
        .send("b", 2, identity="i")
        .receive("a", 1)
        .receive("b", 2),
        story()
        .send("a", outcome=UNKNOWN, identity="i")
        .receive("a", 1)
        .send("b", 2, identity="i")
        .receive("b", 2),
    ],
    "redelivered after settle": [
        story()
        .send("a", 1)
        .receive("a", 1, until=90, token="t")
        .tell("complete", number=1, token="t")
        .receive("a", 1),
        story()
        .tell("schedule", body="a", number=1, due=5)
        .tell("cancel", number=1)
        .receive("a", 2, later=10),
        story()
        .send("a", 1)
        .receive("a", 1, until=90, token="t")
        .tell("complete", number=1, token="t")
        .receive("a", 1, until=200, token="u", later=100),
        story()
        .send("a", 1)
        .receive("a", 1, until=90, token="t")
        .tell("complete", number=1, token="t")
        .receive("a", 1, until=200, until_least=190, token="u", later=100),
    ],
    "double hold": [
        story()
        .send("a", 1)
        .receive("a", 1, until=90, token="t")
        .receive("a", 1, until=95, token="u"),
        story().tell("accept", session="s", until=90).tell("accept", session="s", until=95),
        story()
        .send("a", 1)
        .ask("receive")
        .receive("a", 1, until=90, token="u", later=5)
        .answer(2, body="a", number=1, until=80, token="t"),
        story()
        .send("a", 1)
        .receive("a", 1, until=90, until_least=80, token="t")
        .receive("a", 1, until=95, until_least=85, token="u"),
    ],
    "order": [
        story()
        .send("a", 1, session="s")
        .send("b", 2, session="s")
        .receive("b", 2, session="s")
        .receive("a", 1, session="s"),
    ],
    "gap": [
        story().send("a", 1).send("b", 3).receive("a", 1).receive("b", 3),
        story().send("a", 0).receive("a", 0),
    ],
    "reuse": [story().send("a", 1).send("b", 1).receive("a", 1).receive("b", 1)],
    "stale settle": [
        story()
        .send("a", 1)
        .receive("a", 1, until=9, token="t")
        .tell("complete", number=1, token="t", later=30),
        story()
        .send("a", 1)
        .receive("a", 1, until=90, token="t")
        .tell("complete", number=1, token="other"),
        story()
        .send("a", 1)
        .receive("a", 1, until=90, token="t")
        .tell("complete", number=1, token="t")
        .tell("complete", number=1, token="t"),
        story()
        .send("a", 1)
        .receive("a", 1, until=9, token="t")
        .receive("a", 1, until=90, token="u", later=20)
        .tell("abandon", number=1, token="t"),
        story()
        .send("a", 1)
        .receive("a", 1, until=9, token="t")
        .ask("complete", number=1, token="t")
        .receive("a", 1, until=90, token="u", later=20)
        .answer(4, number=1, token="t"),
        story()
        .tell("schedule", body="a", number=1, due=2)
        .receive("a", 2, later=9)
        .tell("cancel", number=1),
    ],
    "time": [
        story().send("a", 1).send("b", 2).receive("a", 1, stamp=9).receive("b", 2, stamp=8),
        story().tell("schedule", body="a", number=1, due=99).receive("a", 2),
        story().send("a", 1, expires=9).receive("a", 1, later=30),
    ],
    "stuck": [story().send("a", 1).receive("a", 1)],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories_have_no_anomaly(name: str) -> None:
    assert GOOD[name].rules() == set()


@pytest.mark.parametrize(
    ("rule", "at"), [(rule, at) for rule, stories in BAD.items() for at in range(len(stories))]
)
def test_every_rule_fires(rule: str, at: int) -> None:
    drained = frozenset({"q"}) if rule == "stuck" else frozenset()
    assert rule in BAD[rule][at].rules(drained=drained)


def test_a_drained_entity_is_not_stuck() -> None:
    assert GOOD["drained"].rules(drained=frozenset({"q"})) == set()


REPEATS = story().send("a", 1).receive("a", 1, until=9, token="t")
REPEATS.receive("a", 1, until=90, token="u", later=20)


def test_a_repeated_delete_of_sqs_is_not_a_second_settlement() -> None:
    told = copy.deepcopy(REPEATS)
    told.tell("complete", number=1, token="u").tell("complete", number=1, token="t")
    assert told.rules(repeatable=frozenset({"q"})) == set()
    assert told.rules() == {"stale settle"}


def test_a_delete_of_sqs_is_stale_while_another_receiver_holds_the_message() -> None:
    told = copy.deepcopy(REPEATS)
    told.tell("complete", number=1, token="t").tell("complete", number=1, token="u")
    assert told.rules(repeatable=frozenset({"q"})) == {"stale settle"}


def test_numbers_of_partitions_are_counted_apart() -> None:
    second = 1 << 48
    told = story().send("a", 1).send("b", second + 1).receive("a", 1).receive("b", second + 1)
    assert told.rules(partitioned=frozenset({"q"})) == set()
    assert told.rules() == {"gap"}


def test_answers_to_nothing_are_seen() -> None:
    event = Event(phase="complete", kind="receive", operation=7, outcome=OK, number=1)
    assert [anomaly.rule for anomaly in Checker().check([event])] == ["ghost"]


def test_a_line_that_was_cut_short_is_left_out() -> None:
    line = encode(Event(phase="fault"))
    assert len(decode([line, line[:5], b""])) == 1
