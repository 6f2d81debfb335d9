"""Fan out: which subscriptions of a topic get a message, and what they see of it (B3).

A message is stored once. A subscription whose rules select it takes its row; if the rule has an
action, the subscription sees an overlay of the changed fields. All rules without an action make one
copy together, and each rule with an action makes one more. The first copy is the row itself.
Further copies, and those whose SessionId or TimeToLive the action changed, become separate rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from onibus.core.rules.subject import SCANNED, Subject
from onibus.core.runs import Spans, spans_of

if TYPE_CHECKING:
    from onibus.core.partition import Partition
    from onibus.core.subscription import Subscription

#: The property that names the rule whose action made a copy, as in Service Bus.
RULE_NAME = "RuleName"
#: Steps (core/rules/subject.py) after which a run of rules can be interrupted.
BIT_STEPS = 10_000
#: Fixed steps of giving a subscription its share.
SHARE_STEPS = 100
#: Reasons of messages that are dead-lettered on arrival.
FILTER_FAILED = "FilterEvaluationException"
NO_SESSION = "Session id is null"
NO_SESSION_TEXT = "Session enabled entity doesn't allow a message whose session identifier is null."


class Copy:
    """A message that gets a separate row, for one subscription."""

    __slots__ = ("at", "message", "number")

    def __init__(self, message: Message, number: int, at: int) -> None:
        self.message = message
        self.number = number
        #: the position of the message that it is a copy of
        self.at = at


class Share:
    """What one subscription gets of a block."""

    __slots__ = (
        "copies", "count", "dead", "gaps", "overlays", "positions", "rules", "runs", "settings",
        "subscription"
    )  # fmt: skip

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.rules = subscription.rules
        self.settings = subscription.settings
        #: while it is chosen: what the subscription gets
        self.positions: list[int] = []
        # Most have nothing of these: a topic may have thousands of subscriptions.
        #: position → the fields that a rule's action changed
        self.overlays: dict[int, bytes] | None = None
        #: position → reason and description of what cannot be delivered
        self.dead: dict[int, tuple[str, str]] | None = None
        self.copies: list[Copy] | None = None
        #: how many the subscription takes; those that can be received, and those it does not take
        self.count = 0
        self.runs: Spans
        self.gaps: Spans

    def lay_over(self, at: int, overlay: bytes) -> None:
        """Record the changes of a message that the subscription sees."""
        if self.overlays is None:
            self.overlays = {}
        self.overlays[at] = overlay

    def kill(self, at: int, reason: str, description: str) -> None:
        """Dead-letter a message on arrival."""
        if self.dead is None:
            self.dead = {}
        self.dead.setdefault(at, (reason, description))

    def copy(self, message: Message, at: int) -> None:
        """Give the subscription a further copy of a message."""
        if self.copies is None:
            self.copies = []
        self.copies.append(Copy(message, self.subscription.number, at))

    def holds(self, subscription: Subscription) -> bool:
        """Return whether it was chosen by what the subscription is now."""
        return (
            self.subscription is subscription
            and self.rules is subscription.rules
            and self.settings is subscription.settings
        )


class FanOut:
    """The messages of one block on their way to the subscriptions of a topic.

    `ahead` runs the rules before the block has its place, in bits of counted work. `place` runs
    those that are left: all of them where nothing was done ahead, and the rules of a subscription
    that was changed since.
    """

    def __init__(
        self,
        partition: Partition,
        messages: list[Message],
        scheduled: list[int],
        only: list[int] | None = None,
    ) -> None:
        """Take messages, of which those at the positions `scheduled` wait in the topic.

        With `only`, message i goes to subscription only[i] and no rule is asked.
        """
        self._partition = partition
        self._messages = messages
        self._only = only
        self.scheduled = scheduled
        self._first = 0
        #: further copies, to be stored after the block
        self.copies: list[Copy] = []
        self._shares: dict[int, Share] = {}
        #: property → its string, None if it has none → positions of messages
        self._by_text: dict[str, dict[str | None, list[int]]] = {}
        self._subjects: list[Subject | None] = [Subject(message) for message in messages]
        for at in scheduled:
            self._subjects[at] = None
        #: the positions of all messages
        self._everything: Spans = [(0, len(messages) - 1)]
        self.members = Members(ordinals_from(0, len(messages)))
        self.members.add(0, scheduled)

    def ahead(self) -> Iterator[int]:
        """Run rules that need no stamps; yield the steps of each bit of it."""
        yield sum(1 + len(message.properties) for message in self._messages)
        for subscription in list(self._partition.subscriptions.values()):
            if subscription.number and not any(rule.work.stamped for rule in subscription.rules):
                share = Share(subscription)
                yield from self._choose(share)
                self._lay_out(share)
                yield SHARE_STEPS + share.count // SCANNED

    def place(self, first: int, moment: int) -> None:
        """Give the block its place, and run the rules that are left."""
        self._first = first
        self.members.place(first)
        number = self._partition.numbering.number
        for at, subject in enumerate(self._subjects):
            if subject is not None:
                subject.sequence_number = number(first + at)
                subject.enqueued_time_ms = moment
        done, self._shares = self._shares, {}
        for subscription in self._partition.subscriptions.values():
            if subscription.number == 0:
                continue
            share = done.pop(subscription.number, None)
            if share is not None and share.holds(subscription):
                self._shares[subscription.number] = share
            else:
                if share is not None:
                    self.members.remove(subscription.number)
                self._share(subscription)
            if (copies := self._shares[subscription.number].copies) is not None:
                self.copies += copies
        for share in done.values():
            # Its subscription was deleted.
            self.members.remove(share.subscription.number)
        for copy in self.copies:
            if copy.message.enqueued_sequence_number is None:
                copy.message.enqueued_sequence_number = number(first + copy.at)

    def _share(self, subscription: Subscription) -> None:
        share = Share(subscription)
        if self._only is None:
            if _is_usual(share.rules):
                self._select(share, self._candidates(share.rules[0].needs))
            else:
                for _ in self._choose(share):
                    pass
        else:
            chosen = subscription.number
            share.positions = [at for at, number in enumerate(self._only) if number == chosen]
        self._lay_out(share)

    def _lay_out(self, share: Share) -> None:
        """Find out the runs of what a subscription gets, when all of it is chosen."""
        positions, count = share.positions, len(self._messages)
        if share.settings.requires_session:
            self._need_sessions(share)
        if len(positions) == count:
            share.runs, share.gaps = self._everything, []
        elif not positions:
            share.runs, share.gaps = [], self._everything
        else:
            share.runs, share.gaps = spans_of(positions, count)
        if share.dead is not None:
            alive = [at for at in positions if at not in share.dead]
            share.runs, _ = spans_of(alive, count)
        number = share.subscription.number
        self.members.add(number, positions)
        self._shares[number] = share
        share.count, share.positions = len(positions), []

    def show(self, due: dict[int, int], out: WriteBatch) -> None:
        """Show the stored rows to the subscriptions that take them."""
        first, messages = self._first, self._messages

        def session_of(at: int) -> str | None:
            return messages[at].session_id

        own = self._partition.subscription
        rows = len(messages)
        gaps = spans_of(self.scheduled, rows)[1]
        own.gone.extend_by(gaps, first, rows - len(self.scheduled))
        for ordinal, moment in due.items():
            own.schedule(ordinal, moment, out)
        for number, share in self._shares.items():
            subscription = self._partition.subscriptions[number]
            # Nothing is written: the block is stored with its subscriptions (core/fans.py).
            if share.count < rows:
                subscription.gone.extend_by(share.gaps, first, rows - share.count)
            subscription.tally.selected += share.count
            alive = share.count
            if share.dead is not None or share.overlays is not None:
                alive -= _show_changed(subscription, share, first, out)
            if alive:
                subscription.enqueue_runs(share.runs, first, alive, session_of)

    def _choose(self, share: Share) -> Iterator[int]:
        """Run a subscription's rules on all messages; yield the steps of each bit."""
        rules = share.rules
        if _is_usual(rules):
            steps = rules[0].work.steps
            places = self._candidates(rules[0].needs)
            size = BIT_STEPS // steps or 1
            for start in range(0, len(places), size):
                self._select(share, places[start : start + size])
                yield size * steps
            return
        taken = 0
        for at, subject in enumerate(self._subjects):
            if subject is not None:
                for steps in self._run_rules(share, at, subject):
                    taken += steps
                    if taken >= BIT_STEPS:
                        yield taken
                        taken = 0
        yield taken

    def _select(self, share: Share, places: Sequence[int]) -> None:
        """Run the only rule of a subscription on these messages."""
        condition, subjects, positions = share.rules[0].condition, self._subjects, share.positions
        for at in places:
            subject = subjects[at]
            if subject is None:
                continue
            try:
                if condition(subject) is True:
                    positions.append(at)
            except FilterFailed as error:
                _fail(share, at, error)

    def _candidates(self, needs: tuple[str, str] | None) -> Sequence[int]:
        """Return the positions of the messages that a rule has to be run on.

        A hundred rules that compare one property run only on the messages with their string.
        """
        subjects = self._subjects
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
        # If a message has no string of exactly that name, the rule itself decides.
        chosen = texts.get(text, [])
        return sorted(chosen + texts[None]) if None in texts else chosen

    def _run_rules(self, share: Share, at: int, subject: Subject) -> Iterator[int]:
        """Run all rules on one message; yield the steps of each."""
        plain = False
        changed: list[Message] = []
        failure: FilterFailed | None = None
        for rule in share.rules:
            if plain and rule.act is None:
                continue
            subject.steps = 0
            try:
                if rule.selects(subject):
                    if rule.act is None:
                        plain = True
                    else:
                        yield subject.steps
                        changed.append(_act(rule, subject))
            except FilterFailed as error:
                failure = error
            yield rule.work.steps + subject.steps
        if plain:
            share.positions.append(at)
        elif changed and _lies_over(changed[0], subject.message):
            share.positions.append(at)
            share.lay_over(at, _overlay(changed.pop(0), subject.message))
        elif failure is not None and not changed:
            _fail(share, at, failure)
        for message in changed:
            share.copy(message, at)

    def _need_sessions(self, share: Share) -> None:
        """Dead-letter messages without a session, which this subscription cannot deliver."""
        for at in share.positions:
            if self._messages[at].session_id is None:
                share.kill(at, NO_SESSION, NO_SESSION_TEXT)


def _show_changed(subscription: Subscription, share: Share, first: int, out: WriteBatch) -> int:
    """Show dead-lettered or changed messages in a subscription; return how many are dead."""
    overlays, dead = share.overlays or {}, share.dead or {}
    for at, (reason, description) in dead.items():
        overlay = overlays.pop(at, None)
        _arrive_dead(subscription, first + at, reason, description, overlay, out)
    for at, overlay in overlays.items():
        _lay_over(subscription, first + at, overlay, out)
    return len(dead)


def _is_usual(rules: Sequence[CompiledRule]) -> bool:
    """Return whether one rule selects, at a known cost: the case that has to be fast."""
    return len(rules) == 1 and rules[0].act is None and not rules[0].work.costly


def _act(rule: CompiledRule, subject: Subject) -> Message:
    assert rule.act is not None
    message = rule.act(subject)
    message.properties[RULE_NAME] = rule.rule.name
    return message


def _fail(share: Share, at: int, error: FilterFailed) -> None:
    """Handle a rule that cannot be evaluated on a message."""
    if share.subscription.settings.dead_letter_on_filter_error:
        share.positions.append(at)
        share.kill(at, FILTER_FAILED, str(error))


def _lies_over(changed: Message, message: Message) -> bool:
    """Return whether a copy can share the row of its message: same session, same time to live."""
    return (
        changed.session_id == message.session_id
        and changed.time_to_live_ms == message.time_to_live_ms
    )


def _overlay(changed: Message, message: Message) -> bytes:
    before, after = structs.asdict(message), structs.asdict(changed)
    return encode_overlay({name: after[name] for name in after if after[name] != before[name]})


def _lay_over(subscription: Subscription, ordinal: int, overlay: bytes, out: WriteBatch) -> None:
    """Record the fields that a rule's action changed in a message that has just arrived."""
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
    """Dead-letter a message that has arrived and cannot be delivered here."""
    mark = Mark(State.DEAD_LETTERED, reason=reason, description=description, overlay=overlay)
    subscription.marks.hot[ordinal] = mark
    subscription.counts[State.DEAD_LETTERED] += 1
    subscription.tally.dead_lettered(reason)
    subscription.dead.add(ordinal, ordinal)
    subscription.dead_ready.add(ordinal, ordinal)
    subscription.write_mark(ordinal, mark, out)
    if subscription.outcomes.kept:
        subscription.outcomes.note(ordinal, Fate.DEAD_LETTERED, reason, description)
