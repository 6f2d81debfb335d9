"""A topic as the promises describe it: its log, and what each subscription has of it (B3).

Rules come from a fixed list, `RULES`: each as the bus is told it, and as a function in Python that
does the same. So nothing here depends on how the bus reads filters or deals messages out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from onibus.core.message import Message
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter
from onibus.core.settings import SubscriptionSettings, TopicSettings
from tests.simulator.model import PartitionModel
from tests.simulator.model_rows import FOREVER, Row, time_to_live
from tests.simulator.model_time import Moment

FILTER_FAILED = "FilterEvaluationException"
DIVIDED = "a whole number is divided by zero"
KEYS_DIFFER = "the action makes SessionId and PartitionKey differ"

#: True, False, or None where it is unknown.
Condition = Callable[[Message], bool | None]
Action = Callable[[Message], Message]


class Known(msgspec.Struct, frozen=True):
    """A rule as the bus is told it, and what it means."""

    rule: Rule
    selects: Condition
    act: Action | None = None


def _colour(message: Message) -> Any:
    return message.properties.get("colour")


def _n(message: Message) -> Any:
    return message.properties.get("n")


def _with(message: Message, fields: dict[str, Any] | None = None, **properties: Any) -> Message:
    return replace(message, properties=message.properties | properties, **(fields or {}))


def _without_colour(message: Message) -> Message:
    left = {name: value for name, value in message.properties.items() if name != "colour"}
    return replace(message, properties=left | {"mark": "plain"})


def _divided(message: Message) -> bool | None:
    return None if _n(message) is None else 10 // _n(message) > 2


def _not_red(message: Message) -> bool | None:
    return None if _colour(message) is None else _colour(message) != "red"


def _large_or_plain(message: Message) -> bool | None:
    if _colour(message) is None:
        return True
    return None if _n(message) is None else _n(message) > 2


_ALL: list[Known] = [
    Known(Rule("all"), lambda message: True),
    Known(Rule("none", FalseFilter()), lambda message: False),
    Known(
        Rule("red", CorrelationFilter(properties={"colour": "red"})),
        lambda message: _colour(message) == "red",
    ),
    Known(Rule("not-red", SqlFilter("NOT colour = 'red'")), _not_red),
    Known(Rule("large", SqlFilter("n > 2 OR colour IS NULL")), _large_or_plain),
    Known(Rule("divided", SqlFilter("10 / n > 2")), _divided),
    Known(
        Rule("marked", TrueFilter(), SqlAction("SET mark = 'here'")),
        lambda message: True,
        lambda message: _with(message, mark="here"),
    ),
    Known(
        Rule(
            "stripped",
            SqlFilter("colour IS NOT NULL"),
            SqlAction("REMOVE colour; SET mark = 'plain'"),
        ),
        lambda message: _colour(message) is not None,
        _without_colour,
    ),
    Known(
        Rule("moved", SqlFilter("n = 1"), SqlAction("SET sys.SessionId = 's1'")),
        lambda message: None if _n(message) is None else _n(message) == 1,
        lambda message: _with(message, {"session_id": "s1"}),
    ),
    Known(
        Rule("inverse", TrueFilter(), SqlAction("SET share = 10 / n")),
        lambda message: True,
        lambda message: _with(message, share=None if _n(message) is None else 10 // _n(message)),
    ),
]
RULES = {known.rule.name: known for known in _ALL}


class Copies(msgspec.Struct):
    """What a subscription gets of one message."""

    #: the message itself, as it is or as an action changed it; None: not at all
    row: Message | None = None
    #: why the message cannot be told to belong here or not
    failure: str | None = None
    #: messages that get numbers of their own
    others: list[Message] = []


def deal(message: Message, rules: list[str]) -> Copies:
    """Rules without an action make one copy together, each with an action one of its own."""
    plain = False
    failure = None
    changed: list[Message] = []
    for name in rules:
        known = RULES[name]
        try:
            if known.selects(message) is not True:
                continue
            if known.act is None:
                plain = True
                continue
            copy = _with(known.act(message), RuleName=name)
            if len({copy.session_id, copy.partition_key} - {None}) > 1:
                failure = KEYS_DIFFER
                continue
            changed.append(copy)
        except ZeroDivisionError:
            failure = DIVIDED
    if plain:
        return Copies(message, None, changed)
    if changed and changed[0].session_id == message.session_id:
        return Copies(changed[0], None, changed[1:])
    return Copies(None, None if changed else failure, changed)


class TopicPartition(PartitionModel):
    """One partition of a topic: what waits for its time, and what each subscription has."""

    def __init__(
        self, settings: TopicSettings, base: int, bits: int, rules: dict[int, list[str]]
    ) -> None:
        #: the rules of each subscription, by its number, as they are now
        self.rules = rules
        self.outlets: dict[int, PartitionModel] = {}
        #: subscription, ordinal and number of the original, and the copy
        self.copies: list[tuple[int, int, int, Message]] = []
        super().__init__(settings, base, bits)

    @property
    def calm(self) -> int:
        return min([self._calm, *[outlet.calm for outlet in self.outlets.values()]])

    @calm.setter
    def calm(self, value: int) -> None:
        self._calm = value

    def copy(self) -> TopicPartition:
        new = TopicPartition(self.settings, self.base, self.bits, self.rules)
        self.fill(new)
        new.copies = []
        new.outlets = {number: outlet.copy() for number, outlet in self.outlets.items()}
        new.show(self.next)
        return new

    def show(self, below: int) -> None:
        super().show(below)
        for outlet in self.outlets.values():
            outlet.shown = below

    def in_use(self, number: int) -> bool:
        outlets = self.outlets.values()
        return super().in_use(number) or any(outlet.in_use(number) for outlet in outlets)

    def subscribe(self, number: int, settings: SubscriptionSettings) -> None:
        """A subscription gets what is sent from now on; or one of before is found again."""
        outlet = self.outlets.setdefault(number, PartitionModel(settings, self.base, self.bits))
        outlet.shown = self.shown
        outlet.change_settings(settings, 0)

    def advance(self, at: Moment) -> None:
        super().advance(at)
        for outlet in self.outlets.values():
            outlet.advance(at)

    def before_issue(self, at: Moment) -> None:
        # A skipped number divides a batch, and its copies follow each part.
        if self.rolled and self.copies and self.in_use(self.base + self.counter):
            self.arrived(at)

    def arrive(self, row: Row, now: int) -> None:
        """Deal a message out to the subscriptions that want it."""
        self.history[row.ordinal] = (row.number, row.message.body)
        if row.state == "scheduled":
            self.put(row)
            return
        for number in sorted(self.outlets):
            outlet = self.outlets[number]
            found = deal(row.message, self.rules[number])
            if found.row is not None:
                outlet.arrive(replace(row, message=found.row), now)
            elif found.failure is not None and outlet.settings.dead_letter_on_filter_error:
                outlet.arrive(row, now)
                dead = outlet.rows[row.ordinal]
                outlet.kill(dead, FILTER_FAILED, found.failure)
            for message in found.others:
                self.copies.append((number, row.ordinal, row.number, message))

    def arrived(self, at: Moment) -> None:
        """What rules made besides follows everything that came with it."""
        copies, self.copies = sorted(self.copies, key=lambda copy: copy[:2]), []
        for outlet, _, number, message in copies:
            ttl = time_to_live(message, self.settings)
            if message.enqueued_sequence_number is None:
                message = replace(message, enqueued_sequence_number=number)
            expires = FOREVER if ttl is None else at.now + ttl
            self.stamp = max(self.stamp, at.wall)
            row = Row(*self.issue(), message, self.stamp, expires)
            self.history[row.ordinal] = (row.number, message.body)
            self.outlets[outlet].arrive(row, at.now)
