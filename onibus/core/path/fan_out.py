"""Fan out: which subscriptions of a topic get a message, and what they see of it (B3).

A message is stored once. A subscription whose rules select it takes its row; where the rule has an
action, an overlay of the changed fields lies over it there. Rules without an action make one copy
together, each rule with an action one of its own: the first copy is the row itself, further ones,
and those whose SessionId or TimeToLive the action changed, become rows of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from onibus.core.errors import FilterFailed
from onibus.core.fans import Members
from onibus.core.lifecycle import State
from onibus.core.mark import Mark
from onibus.core.message import Message, encode_overlay
from onibus.core.numbering import ordinals_from
from onibus.core.outcomes import Fate
from onibus.core.records import WriteBatch
from onibus.core.rules.rule import CompiledRule
from onibus.core.rules.subject import Subject
from onibus.core.runs import as_runs

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription

#: The property that tells which rule's action made a copy, as in Service Bus.
RULE_NAME = "RuleName"
#: Reasons of messages that are dead letters from the start.
FILTER_FAILED = "FilterEvaluationException"
NO_SESSION = "Session id is null"
NO_SESSION_TEXT = "Session enabled entity doesn't allow a message whose session identifier is null."


class Copy:
    """A message that gets a row of its own, for one subscription."""

    __slots__ = ("message", "number")

    def __init__(self, message: Message, number: int) -> None:
        self.message = message
        self.number = number


class Share:
    """What one subscription gets of a block."""

    __slots__ = ("dead", "overlays", "positions")

    def __init__(self) -> None:
        self.positions: list[int] = []
        #: position → the fields that a rule's action changed
        self.overlays: dict[int, bytes] = {}
        #: position → reason and description of what cannot be delivered
        self.dead: dict[int, tuple[str, str]] = {}


class FanOut:
    """The messages of one block on their way to the subscriptions of a topic."""

    def __init__(
        self,
        partition: Partition,
        messages: list[Message],
        first: int,
        moment: int,
        scheduled: set[int],
        only: list[int] | None = None,
    ) -> None:
        """Choose. With `only`, message i goes to subscription only[i] and no rule is asked."""
        self._partition = partition
        self._messages = messages
        self._first = first
        self._scheduled = sorted(ordinal - first for ordinal in scheduled)
        #: further copies, to be stored after the block
        self.copies: list[Copy] = []
        self._shares: dict[int, Share] = {}
        #: property → its text, None where it has none → positions of messages
        self._by_text: dict[str, dict[str | None, list[int]]] = {}
        number = partition.numbering.number
        subjects = [
            None if first + at in scheduled else Subject(message, number(first + at), moment)
            for at, message in enumerate(messages)
        ]
        for subscription in partition.subscriptions.values():
            if subscription.number == 0:
                continue
            if only is None:
                share = self._choose(subscription, subjects)
            else:
                share = Share()
                share.positions = [
                    at for at, chosen in enumerate(only) if chosen == subscription.number
                ]
            if subscription.settings.requires_session:
                self._need_sessions(share)
            self._shares[subscription.number] = share

    def members(self) -> Members:
        """Return who takes which rows."""
        count = len(self._messages)
        members = Members(ordinals_from(self._first, count))
        members.add(0, self._scheduled)
        for number, share in self._shares.items():
            members.add(number, share.positions)
        return members

    def show(self, due: dict[int, int], out: WriteBatch) -> None:
        """Hand the rows to those who take them, after they were stored."""
        own = self._partition.subscription
        own.pass_over(self._gaps(as_runs([self._first + at for at in self._scheduled])))
        for ordinal, moment in due.items():
            own.schedule(ordinal, moment, out)
        for number, share in self._shares.items():
            subscription = self._partition.subscriptions[number]
            runs = as_runs([self._first + at for at in share.positions])
            subscription.pass_over(self._gaps(runs))
            for at, (reason, description) in share.dead.items():
                overlay = share.overlays.pop(at, None)
                _arrive_dead(subscription, self._first + at, reason, description, overlay, out)
            for at, overlay in share.overlays.items():
                _lay_over(subscription, self._first + at, overlay, out)
            alive = share.positions
            if share.dead:
                alive = [at for at in alive if at not in share.dead]
                runs = as_runs([self._first + at for at in alive])
            subscription.enqueue_runs(runs, [self._messages[at].session_id for at in alive])

    def _gaps(self, taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the runs of rows between those that a subscription takes."""
        gaps = []
        start, end = self._first, self._first + len(self._messages)
        for first, last in taken:
            if start < first:
                gaps.append((start, first - 1))
            start = last + 1
        if start < end:
            gaps.append((start, end - 1))
        return gaps

    def _choose(self, subscription: Subscription, subjects: list[Subject | None]) -> Share:
        """Run a subscription's rules on all messages."""
        share = Share()
        rules = subscription.rules
        if len(rules) == 1 and rules[0].act is None:
            # The usual case, and the one that has to be fast.
            condition = rules[0].condition
            for at in self._candidates(rules[0].needs, subjects):
                subject = subjects[at]
                if subject is None:
                    continue
                try:
                    if condition(subject) is True:
                        share.positions.append(at)
                except FilterFailed as error:
                    _fail(subscription, share, at, error)
            return share
        for at, subject in enumerate(subjects):
            if subject is not None:
                self._run_rules(subscription, share, at, subject)
        return share

    def _candidates(
        self, needs: tuple[str, str] | None, subjects: list[Subject | None]
    ) -> Sequence[int]:
        """Return the positions of the messages that a rule has to be run on.

        A hundred rules that ask for one property are run on the messages with their text only.
        """
        if needs is None:
            return range(len(subjects))
        name, text = needs
        if name not in self._by_text:
            texts: dict[str | None, list[int]] = {}
            for at, subject in enumerate(subjects):
                found = None if subject is None else subject.properties.get(name)
                texts.setdefault(found if type(found) is str else None, []).append(at)
            self._by_text[name] = texts
        texts = self._by_text[name]
        # Without a text of exactly that name, the rule itself knows what it means.
        chosen = texts.get(text, [])
        return sorted(chosen + texts[None]) if None in texts else chosen

    def _run_rules(
        self, subscription: Subscription, share: Share, at: int, subject: Subject
    ) -> None:
        plain = False
        changed: list[Message] = []
        failure: FilterFailed | None = None
        for rule in subscription.rules:
            if plain and rule.act is None:
                continue
            try:
                if rule.selects(subject):
                    if rule.act is None:
                        plain = True
                    else:
                        changed.append(_act(rule, subject))
            except FilterFailed as error:
                failure = error
        if plain:
            share.positions.append(at)
        elif changed and _lies_over(changed[0], subject.message):
            share.positions.append(at)
            share.overlays[at] = _overlay(changed.pop(0), subject.message)
        elif failure is not None and not changed:
            _fail(subscription, share, at, failure)
        for message in changed:
            if message.enqueued_sequence_number is None:
                message.enqueued_sequence_number = subject.sequence_number
            self.copies.append(Copy(message, subscription.number))

    def _need_sessions(self, share: Share) -> None:
        """What has no session cannot be given out where sessions are held."""
        for at in share.positions:
            if self._messages[at].session_id is None and at not in share.dead:
                share.dead[at] = (NO_SESSION, NO_SESSION_TEXT)


def _act(rule: CompiledRule, subject: Subject) -> Message:
    assert rule.act is not None
    message = rule.act(subject)
    message.properties[RULE_NAME] = rule.rule.name
    return message


def _fail(subscription: Subscription, share: Share, at: int, error: FilterFailed) -> None:
    """A rule cannot be evaluated on a message."""
    if subscription.settings.dead_letter_on_filter_error:
        share.positions.append(at)
        share.dead[at] = (FILTER_FAILED, str(error))


def _lies_over(changed: Message, message: Message) -> bool:
    """Tell whether a copy can share the row of its message: same session, same life."""
    return (
        changed.session_id == message.session_id
        and changed.time_to_live_ms == message.time_to_live_ms
    )


def _overlay(changed: Message, message: Message) -> bytes:
    before, after = structs.asdict(message), structs.asdict(changed)
    return encode_overlay({name: after[name] for name in after if after[name] != before[name]})


def _lay_over(subscription: Subscription, ordinal: int, overlay: bytes, out: WriteBatch) -> None:
    """A message that has just arrived looks different here: a rule's action changed it."""
    mark = subscription.marks.hot[ordinal] = Mark(overlay=overlay)
    subscription.counts[State.ACTIVE] += 1
    subscription.write_mark(ordinal, mark, out)


def _arrive_dead(
    subscription: Subscription,
    ordinal: int,
    reason: str,
    description: str,
    overlay: bytes | None,
    out: WriteBatch,
) -> None:
    """A message has arrived that cannot be delivered here."""
    mark = Mark(State.DEAD_LETTERED, reason=reason, description=description, overlay=overlay)
    subscription.marks.hot[ordinal] = mark
    subscription.counts[State.DEAD_LETTERED] += 1
    subscription.tally.dead_lettered(reason)
    subscription.dead.add(ordinal, ordinal)
    subscription.dead_ready.add(ordinal, ordinal)
    subscription.write_mark(ordinal, mark, out)
    if subscription.outcomes.kept:
        subscription.outcomes.note(ordinal, Fate.DEAD_LETTERED, reason, description)
