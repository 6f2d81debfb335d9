"""Queues and topics over HTTP: create, change, delete and show them."""

from __future__ import annotations

from typing import Any

from onibus.api.entities import EntityInfo, EntityOut, Names, QueueOut, SubscriptionOut, TopicOut
from onibus.api.rules import rule_out
from onibus.core.settings import (
    AnySettings,
    QueueSettings,
    TopicSettings,
    check_known,
)
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


def entity_out(info: EntityInfo[Any]) -> QueueOut | TopicOut | SubscriptionOut:
    """Return an entity in its JSON form."""
    shared = {name: getattr(info, name) for name in EntityOut.__struct_fields__}
    shared["offline_partitions"] = list(info.offline_partitions)
    if isinstance(info.settings, QueueSettings):
        return QueueOut(**shared, settings=info.settings, noisy_groups=list(info.noisy_groups))
    if isinstance(info.settings, TopicSettings):
        return TopicOut(**shared, settings=info.settings, subscriptions=list(info.subscriptions))
    rules = [rule_out(rule) for rule in info.rules]
    return SubscriptionOut(**shared, settings=info.settings, rules=rules)


def settings_of(call: Call, given: dict[str, Any], kind: type[AnySettings]) -> dict[str, Any]:
    """Return valid settings; the caller must own the entity that messages are forwarded to."""
    check_known(given, kind)
    for name in ("forward_to", "forward_dead_letters_to"):
        if isinstance(target := given.get(name), str):
            call.grant(Right.MANAGE, target)
    return given


async def list_queues(call: Call) -> Names:
    return Names(call.bus.queues())


async def create_queue(call: Call) -> EntityOut:
    given = settings_of(call, call.decode(dict[str, Any]), QueueSettings)
    await call.bus.create_queue(call.entity, **given)
    return entity_out(call.bus.queue(call.entity))


async def change_queue(call: Call) -> EntityOut:
    given = settings_of(call, call.decode(dict[str, Any]), QueueSettings)
    await call.bus.change_queue(call.entity, **given)
    return entity_out(call.bus.queue(call.entity))


async def show_queue(call: Call) -> EntityOut:
    return entity_out(call.bus.queue(call.entity))


async def delete_queue(call: Call) -> None:
    await call.bus.delete_queue(call.entity)


async def list_topics(call: Call) -> Names:
    return Names(call.bus.topics())


async def create_topic(call: Call) -> EntityOut:
    given = settings_of(call, call.decode(dict[str, Any]), TopicSettings)
    await call.bus.create_topic(call.entity, **given)
    return entity_out(call.bus.topic(call.entity))


async def change_topic(call: Call) -> EntityOut:
    given = settings_of(call, call.decode(dict[str, Any]), TopicSettings)
    await call.bus.change_topic(call.entity, **given)
    return entity_out(call.bus.topic(call.entity))


async def show_topic(call: Call) -> EntityOut:
    return entity_out(call.bus.topic(call.entity))


async def delete_topic(call: Call) -> None:
    await call.bus.delete_topic(call.entity)


def _route(method: str, path: str, summary: str, handler: Any, **more: Any) -> Route:
    return Route(
        method=method,
        path=path,
        summary=summary,
        right=Right.MANAGE,
        handler=handler,
        tag="entities",
        **more,
    )


_QUEUE, _TOPIC = "/v1/queues/{entity}", "/v1/topics/{entity}"

ROUTES = [
    _route("GET", "/v1/queues", "List all queues.", list_queues, gives=Names),
    _route(
        "PUT",
        _QUEUE,
        "Create a queue; the body has its settings.",
        create_queue,
        takes=QueueSettings,
        gives=QueueOut,
        status=201,
    ),
    _route("GET", _QUEUE, "Show a queue's settings and counts.", show_queue, gives=QueueOut),
    _route(
        "PATCH",
        _QUEUE,
        "Change settings of a queue; missing settings stay the same.",
        change_queue,
        takes=QueueSettings,
        gives=QueueOut,
    ),
    _route("DELETE", _QUEUE, "Delete a queue and its messages.", delete_queue),
    _route("GET", "/v1/topics", "List all topics.", list_topics, gives=Names),
    _route(
        "PUT",
        _TOPIC,
        "Create a topic; the body has its settings.",
        create_topic,
        takes=TopicSettings,
        gives=TopicOut,
        status=201,
    ),
    _route(
        "GET",
        _TOPIC,
        "Show a topic's settings, counts and subscriptions.",
        show_topic,
        gives=TopicOut,
    ),
    _route(
        "PATCH",
        _TOPIC,
        "Change settings of a topic; missing settings stay the same.",
        change_topic,
        takes=TopicSettings,
        gives=TopicOut,
    ),
    _route("DELETE", _TOPIC, "Delete a topic with its subscriptions and messages.", delete_topic),
]
