"""Configure: new settings, rules and readers, as the directory decided them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.commands import (
    ChangeSettings,
    ChangeSubscription,
    KeepFor,
    KeepNoLonger,
    SetRules,
    SetStampsBack,
    Subscribe,
)
from onibus.core.log import Repair
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.partition import Partition


def change_settings(
    partition: Partition, command: ChangeSettings, now: int, wall: int, out: WriteBatch
) -> None:
    """Take new settings of a queue or topic."""
    partition.change_settings(command.settings, now, out)


def change_subscription(
    partition: Partition, command: ChangeSubscription, now: int, wall: int, out: WriteBatch
) -> None:
    """Take new settings of a subscription."""
    partition.subscriptions[command.subscription].change_settings(command.settings)
    partition.write_counters(out)


def subscribe(
    partition: Partition, command: Subscribe, now: int, wall: int, out: WriteBatch
) -> None:
    """Add a subscription to a topic."""
    compiled = [rule.compiled for rule in command.rules]
    partition.subscribe(command.number, command.settings, compiled)


def set_rules(
    partition: Partition, command: SetRules, now: int, wall: int, out: WriteBatch
) -> None:
    """Replace the rules of a subscription."""
    compiled = [rule.compiled for rule in command.rules]
    partition.subscriptions[command.subscription].rules = compiled


def keep_for(partition: Partition, command: KeepFor, now: int, wall: int, out: WriteBatch) -> None:
    """Keep the log from a position on for a named reader."""
    if command.outcomes_of is None:
        partition.keep_for(command.reader, command.position)
    elif command.outcomes_of in partition.subscriptions:
        outcomes = partition.subscriptions[command.outcomes_of].outcomes
        outcomes.readers[command.reader] = command.position
        partition.keep_outcomes()


def keep_no_longer(
    partition: Partition, command: KeepNoLonger, now: int, wall: int, out: WriteBatch
) -> None:
    """Keep nothing for a named reader any longer."""
    if command.outcomes_of is None:
        partition.readers.pop(command.reader, None)
    elif command.outcomes_of in partition.subscriptions:
        outcomes = partition.subscriptions[command.outcomes_of].outcomes
        outcomes.readers.pop(command.reader, None)
        partition.keep_outcomes()


def set_stamps_back(
    partition: Partition, command: SetStampsBack, now: int, wall: int, out: WriteBatch
) -> Repair:
    """Let timestamps follow the wall clock again."""
    return partition.set_stamps_back(wall, out)
