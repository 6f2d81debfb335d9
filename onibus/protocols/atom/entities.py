"""Queues, topics and subscriptions: making, changing, deleting, showing and listing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeVar
from xml.etree.ElementTree import Element

from onibus.api.entities import SUBSCRIPTIONS, EntityInfo
from onibus.core.rules.rule import DEFAULT_RULE, Rule
from onibus.core.settings import QueueSettings, SubscriptionSettings, TopicSettings
from onibus.gateway.entity_info import info
from onibus.protocols.atom import descriptions
from onibus.protocols.atom.authorization import keys_of, read_keys, set_keys
from onibus.protocols.atom.call import AtomCall
from onibus.protocols.atom.descriptions import NAMES, About
from onibus.protocols.atom.documents import FEED, answer, entry, feed, moment
from onibus.protocols.atom.paths import ENTITY, SUBSCRIPTION, Resource
from onibus.protocols.atom.rules import name_of, read_rule
from onibus.protocols.atom.xml import SERVICE_BUS, local
from onibus.protocols.http.messages import Response

_QUEUE, _TOPIC = NAMES[QueueSettings], NAMES[TopicSettings]
_SUBSCRIPTION = NAMES[SubscriptionSettings]

T = TypeVar("T")


async def put_entity(call: AtomCall) -> Response:
    """Make a queue or a topic, or change one."""
    bus, name = call.bus, call.place.entity
    description = call.description(_QUEUE, _TOPIC)
    is_queue = local(description) == _QUEUE
    keys = read_keys(call.kept_keys, description, name)
    call.profile.check_keys(len(keys or ()))
    if call.changes:
        about = _about(call, bus.queue(name) if is_queue else bus.topic(name))
        settings = descriptions.read_changes(description, about)
        _check_tier(call, settings)
        call.grant_forwarding(settings)
        await (bus.change_queue if is_queue else bus.change_topic)(name, **settings)
    else:
        settings = descriptions.read(description, QueueSettings if is_queue else TopicSettings)
        _check_tier(call, settings)
        call.grant_forwarding(settings)
        await (bus.create_queue if is_queue else bus.create_topic)(name, **settings)
    await set_keys(call.kept_keys, name, keys)
    return _shown(call, name)


def _check_tier(call: AtomCall, wanted: dict[str, Any]) -> None:
    """Reject settings that the server's tier does not have."""
    profile = call.profile
    if not call.changes:
        partitioned = wanted.get("enable_partitioning", False)
        profile.check_partitioning(partitioned)
        there = call.bus.broker.namespace.entities
        if call.place.entity.lower() not in there:
            kinds = (one.partitioned for one in there.values() if one.topic is None)
            profile.check_entities(kinds, partitioned)
    if "max_size_bytes" in wanted:
        profile.check_entity_size(wanted["max_size_bytes"] >> 20)
    if "max_message_bytes" in wanted:
        profile.check_message_size(wanted["max_message_bytes"] >> 10, call.namespace)


async def show_entity(call: AtomCall) -> Response:
    return _shown(call, call.place.entity)


async def delete_entity(call: AtomCall) -> Response:
    bus, name = call.bus, call.place.entity
    if bus.broker.find(name).kind == "topic":
        await bus.delete_topic(name)
    else:
        await bus.delete_queue(name)
    return Response(200)


async def put_subscription(call: AtomCall) -> Response:
    """Make a subscription, or change one."""
    bus, place = call.bus, call.place
    description = call.description(_SUBSCRIPTION)
    if call.changes:
        about = _about(call, bus.subscription(place.whole_name))
        settings = descriptions.read_changes(description, about)
        call.grant_forwarding(settings)
        await bus.change_subscription(place.whole_name, **settings)
    else:
        settings = descriptions.read(description, SubscriptionSettings)
        call.grant_forwarding(settings)
        rules = _first_rule(description)
        _check_room(call, rules)
        await bus.create_subscription(place.entity, place.subscription, rules=rules, **settings)
    return _shown(call, place.whole_name)


def _check_room(call: AtomCall, rules: list[Rule] | None) -> None:
    """Reject a subscription that is one more than a topic of the tier has, or its filters."""
    entities = call.bus.broker.namespace.entities
    topic = entities.get(call.place.entity.lower())
    if topic is None or call.place.whole_name.lower() in entities:
        return
    there = topic.subscriptions.values()
    call.profile.check_subscriptions(len(there) + 1)
    call.profile.check_filters(chain(*(one.rules for one in there), rules or [Rule(DEFAULT_RULE)]))


def _first_rule(description: Element) -> Any:
    found = description.find(f"{{{SERVICE_BUS}}}{descriptions.DEFAULT_RULE_DESCRIPTION}")
    return None if found is None else [read_rule(found, name_of(found, DEFAULT_RULE))]


async def show_subscription(call: AtomCall) -> Response:
    call.bus.subscription(call.place.whole_name)
    return _shown(call, call.place.whole_name)


async def delete_subscription(call: AtomCall) -> Response:
    await call.bus.delete_subscription(call.place.whole_name)
    return Response(200)


async def list_queues(call: AtomCall) -> Response:
    return _listed(call, call.bus.queues(), "Queues", _entity_place)


async def list_topics(call: AtomCall) -> Response:
    return _listed(call, call.bus.topics(), "Topics", _entity_place)


async def list_subscriptions(call: AtomCall) -> Response:
    names = list(call.bus.topic(call.place.entity).subscriptions)

    def place(name: str) -> Resource:
        return Resource(SUBSCRIPTION, name, call.place.entity, name.rpartition("/")[2])

    return _listed(call, names, SUBSCRIPTIONS.capitalize(), place)


def _entity_place(name: str) -> Resource:
    return Resource(ENTITY, name, name)


def _listed(
    call: AtomCall, names: list[str], title: str, place_of: Callable[[str], Resource]
) -> Response:
    """Return one page of entities."""
    return page_of(call, title, names, lambda name: _entry(call, place_of(name), _info(call, name)))


def page_of(call: AtomCall, title: str, things: Sequence[T], write: Callable[[T], str]) -> Response:
    """Return the requested page of a list; only its entries are written."""
    skip, top = call.page()
    end = skip + top
    path, following = call.place.resource.rstrip("/"), ""
    if end < len(things):
        following = call.address(path, **{"$skip": str(end), "$top": str(top)})
    entries = [write(thing) for thing in things[skip:end]]
    return answer(feed(call.address(path), title, call.now(), following, entries), FEED)


def _shown(call: AtomCall, name: str) -> Response:
    status = 201 if call.request.method == "PUT" and not call.changes else 200
    return answer(_entry(call, call.place, _info(call, name)), status=status)


def _info(call: AtomCall, name: str) -> EntityInfo[Any]:
    broker = call.bus.broker
    return call.bus.tell(lambda: info(broker, name))


def _entry(call: AtomCall, place: Resource, found: EntityInfo[Any]) -> str:
    return entry(
        call.address(place.path),
        place.subscription or place.entity,
        moment(found.created_ms),
        NAMES[type(found.settings)],
        descriptions.write(_about(call, found)),
    )


def _about(call: AtomCall, found: EntityInfo[Any]) -> About:
    entity = call.bus.broker.find(found.name)
    rules = chain.from_iterable(one.rules for one in entity.subscriptions.values())
    keys, version = keys_of(call.kept_keys, found.name), call.request.query.get("api-version", "")
    return About(found, call.host, keys, list(rules), version, call.profile)
