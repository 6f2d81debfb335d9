"""Subscriptions and their rules over HTTP. A subscription's name is topic/subscriptions/name."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from onibus.api.entities import SUBSCRIPTIONS, EntityOut, Rules, SubscriptionIn, SubscriptionOut
from onibus.api.rules import RuleJson, rule_of, rule_out
from onibus.calls.entities import COMPILED_HERE
from onibus.core.errors import InvalidArgument, InvalidName
from onibus.core.rules.rule import Rule
from onibus.core.settings import SubscriptionSettings
from onibus.protocols.http.api.entities import entity_out, settings_of
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


async def create_subscription(call: Call) -> EntityOut:
    topic, name = _split(call.entity)
    given = call.decode(dict[str, Any])
    plain = given.pop("rules", None)
    settings = settings_of(call, given, SubscriptionSettings)
    try:
        rules = msgspec.convert(plain, list[RuleJson] | None)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"rules: {error}") from None
    made = None
    if rules is not None:
        # Each rule is parsed, and there may be thousands.
        several = len(rules) > COMPILED_HERE
        made = await asyncio.to_thread(_rules_of, rules) if several else _rules_of(rules)
    whole = await call.bus.create_subscription(topic, name, rules=made, **settings)
    return entity_out(call.bus.subscription(whole))


def _rules_of(rules: list[RuleJson]) -> list[Rule]:
    return [rule_of(rule) for rule in rules]


async def change_subscription(call: Call) -> EntityOut:
    given = settings_of(call, call.decode(dict[str, Any]), SubscriptionSettings)
    await call.bus.change_subscription(call.entity, **given)
    return entity_out(call.bus.subscription(call.entity))


async def show_subscription(call: Call) -> EntityOut:
    return entity_out(call.bus.subscription(call.entity))


async def delete_subscription(call: Call) -> None:
    await call.bus.delete_subscription(call.entity)


async def list_rules(call: Call) -> Rules:
    return Rules([rule_out(rule) for rule in call.bus.subscription(call.entity).rules])


async def create_rule(call: Call) -> None:
    await call.bus.create_rule(call.entity, rule_of(call.decode(RuleJson)))


async def change_rule(call: Call) -> None:
    rule = rule_of(call.decode(RuleJson))
    if rule.name.casefold() != call.names["rule"].casefold():
        raise InvalidArgument(f"the body names rule {rule.name!r}: use the name in the path")
    await call.bus.change_rule(call.entity, rule)


async def delete_rule(call: Call) -> None:
    await call.bus.delete_rule(call.entity, call.names["rule"])


def _split(whole: str) -> tuple[str, str]:
    """Return the topic and the name of a subscription."""
    rest, _, name = whole.rpartition("/")
    topic, _, word = rest.rpartition("/")
    if not topic or word.lower() != SUBSCRIPTIONS:
        raise InvalidName(f"{whole!r} is not a subscription: write topic/{SUBSCRIPTIONS}/name")
    return topic, name


def _route(method: str, path: str, summary: str, handler: Any, **more: Any) -> Route:
    return Route(
        method=method,
        path=f"/v1/subscriptions/{{entity}}{path}",
        summary=summary,
        right=Right.MANAGE,
        handler=handler,
        tag="subscriptions",
        **more,
    )


ROUTES = [
    _route(
        "PUT",
        "",
        "Create a subscription; the body has its settings and rules.",
        create_subscription,
        takes=SubscriptionIn,
        gives=SubscriptionOut,
        status=201,
    ),
    _route(
        "GET",
        "",
        "Show a subscription's settings, counts and rules.",
        show_subscription,
        gives=SubscriptionOut,
    ),
    _route(
        "PATCH",
        "",
        "Change settings of a subscription; missing settings stay the same.",
        change_subscription,
        takes=SubscriptionSettings,
        gives=SubscriptionOut,
    ),
    _route("DELETE", "", "Delete a subscription and its messages.", delete_subscription),
    _route("GET", "/rules", "List the rules of a subscription.", list_rules, gives=Rules),
    _route("POST", "/rules", "Add a rule.", create_rule, takes=RuleJson),
    _route("PUT", "/rules/{rule}", "Replace a rule.", change_rule, takes=RuleJson),
    _route("DELETE", "/rules/{rule}", "Delete a rule.", delete_rule),
]
