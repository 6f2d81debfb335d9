"""What must hold of names, rules and forwarding before an entity is made or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from onibus.api.entities import SUBSCRIPTIONS
from onibus.core.errors import (
    EntityExists,
    EntityNotFound,
    InvalidArgument,
    InvalidFilter,
    InvalidOperation,
    QuotaExceeded,
)
from onibus.core.rules.rule import Rule
from onibus.core.rules.sql_action import changes_session
from onibus.core.rules.values import in_range
from onibus.core.settings import AnySettings, LogSettings, SubscriptionSettings, TopicSettings

if TYPE_CHECKING:
    from onibus.directory.entity import Entity
    from onibus.directory.host import Host
    from onibus.directory.namespace import Namespace


def check_rules(rules: Any, most: int) -> list[Rule]:
    """Return the rules of a subscription, each name once."""
    if type(rules) not in (list, tuple) or not all(isinstance(rule, Rule) for rule in rules):
        raise InvalidArgument("rules must be a list of Rule")
    if len(rules) > most:
        raise QuotaExceeded(f"too many rules: a subscription has at most {most}")
    names: set[str] = set()
    for rule in rules:
        if rule.name.casefold() in names:
            raise EntityExists(f"rule {rule.name!r} exists already")
        names.add(rule.name.casefold())
        _check_times(rule)
    return list(rules)


def topic_rules(broker: Host, subscription: str, after: list[Rule]) -> Iterator[Rule]:
    """Return the rules of a topic once one of its subscriptions has the rules `after`."""
    entity = broker.find(subscription, "subscription")
    assert entity.topic is not None
    others = (one.rules for one in entity.topic.subscriptions.values() if one is not entity)
    return chain(chain.from_iterable(others), after)


def check_room(namespace: Namespace, wanted: LogSettings) -> None:
    """Reject one more queue or topic than the quotas allow."""
    quotas = namespace.quotas
    _check_quota(namespace, "entities", quotas.entities, lambda one: True)
    if wanted.enable_partitioning:
        most = quotas.partitioned_entities
        _check_quota(namespace, "partitioned entities", most, lambda one: one.partitioned)


def _check_quota(
    namespace: Namespace, what: str, most: int, counts: Callable[[Entity], bool]
) -> None:
    # Counted only near the quota: thousands of entities are made one after the other.
    if len(namespace.entities) + len(namespace.under_way) < most:
        return
    there = [one for one in namespace.entities.values() if one.topic is None and counts(one)]
    # Entities being created count already, and those being deleted count for another moment.
    if len(namespace.under_way.keys() | {one.name for one in there}) >= most:
        raise QuotaExceeded(f"too many {what}: the namespace allows {most}")


def _check_times(rule: Rule) -> None:
    """Reject an action that would set a value that no message can have."""
    parameters = {} if rule.action is None else rule.action.parameters
    for name, value in parameters.items():
        if isinstance(value, datetime) and not in_range(value):
            raise InvalidFilter(
                f"parameter {name!r} of rule {rule.name!r}: the time is out of range"
            )


def check_sessions(rules: list[Rule], wanted: SubscriptionSettings, partitioned: bool) -> None:
    """Reject actions that would spread one message session over several partitions."""
    if not (wanted.requires_session and partitioned):
        return
    for rule in rules:
        action = rule.action
        if action is not None and changes_session(action.expression, action.parameters):
            raise InvalidOperation(
                f"rule {rule.name!r} changes the SessionId: a partitioned topic keeps each session "
                "in one partition, chosen before the rule runs"
            )


def without_rule(rules: list[Rule], name: str) -> list[Rule]:
    """Return the rules but one; names do not tell upper from lower case."""
    left = [rule for rule in rules if rule.name.casefold() != str(name).casefold()]
    if len(left) == len(rules):
        raise EntityNotFound(f"no rule {name!r}")
    return left


def by_name(rules: Iterable[Rule]) -> list[Rule]:
    """Return rules in the order in which the service lists them."""
    return sorted(rules, key=lambda rule: rule.name.casefold())


def with_rule_changed(rules: list[Rule], changed: Rule) -> list[Rule]:
    """Return the rules with another one in place of the one of its name."""
    if not isinstance(changed, Rule):
        raise InvalidArgument("rules must be a list of Rule")
    name = changed.name.casefold()
    found = [rule.name.casefold() for rule in rules]
    if name not in found:
        raise EntityNotFound(f"no rule {changed.name!r}")
    place = found.index(name)
    return [*rules[:place], changed, *rules[place + 1 :]]


def check_targets(broker: Host, name: str, wanted: AnySettings) -> None:
    """Reject forwarding to a missing entity, to itself, and in a circle (B6)."""
    if isinstance(wanted, TopicSettings):
        return
    # Messages reach a subscription through its topic.
    home = name.split(f"/{SUBSCRIPTIONS}/")[0]
    for target in (wanted.forward_to, wanted.forward_dead_letters_to):
        if target is None:
            continue
        if target.lower() in (name, home):
            raise InvalidOperation(f"{name} cannot forward to itself")
        entity = broker.namespace.entities.get(target.lower())
        if entity is None:
            raise EntityNotFound(f"no entity {target!r} to forward to", target)
        if entity.topic is not None:
            raise InvalidOperation(f"{target} is a subscription: forward to a queue or a topic")
        if home in reachable(broker, entity.name):
            raise InvalidOperation(
                f"forwarding from {name} to {target} would return to {home}: remove the cycle"
            )


def reachable(broker: Host, name: str) -> set[str]:
    """Return the names of all queues and topics that messages sent to one may come to."""
    found: set[str] = set()
    pending = [name]
    while pending:
        one = pending.pop()
        if one in found:
            continue
        found.add(one)
        for chosen in _outlets(broker.namespace, one):
            targets = (chosen.forward_to, chosen.forward_dead_letters_to)
            pending += [target.lower() for target in targets if target is not None]
    return found


def _outlets(namespace: Namespace, name: str) -> list[AnySettings]:
    """Return what sends messages on from a queue or topic: as it is, and as it may be soon."""
    entity = namespace.entities.get(name)
    there = [] if entity is None else [entity, *entity.subscriptions.values()]
    coming = [
        wanted
        for one, wanted in namespace.under_way.items()
        if wanted is not None and one.split(f"/{SUBSCRIPTIONS}/")[0] == name
    ]
    return [one.settings for one in there] + coming
