"""The rules of a subscription: adding, changing, deleting, showing and listing them."""

from __future__ import annotations

from onibus.api.entities import EntityInfo
from onibus.core.errors import EntityNotFound
from onibus.core.rules.rule import Rule
from onibus.core.settings import SubscriptionSettings
from onibus.directory.entity_rules import by_name, topic_rules
from onibus.protocols.atom.call import AtomCall
from onibus.protocols.atom.documents import answer, entry, moment
from onibus.protocols.atom.entities import page_of
from onibus.protocols.atom.paths import RULE, Resource
from onibus.protocols.atom.rules import read_rule, write_rule
from onibus.protocols.http.messages import Response

_RULE = "RuleDescription"


async def put_rule(call: AtomCall) -> Response:
    """Add a rule, or change one."""
    place, bus = call.place, call.bus
    rule = read_rule(call.description(_RULE), place.rule)
    name = rule.name.casefold()
    there = bus.broker.find(place.whole_name, "subscription").rules
    others = [one for one in there if one.name.casefold() != name]
    call.profile.check_filters(topic_rules(bus.broker, place.whole_name, [*others, rule]))
    if call.changes:
        await bus.change_rule(place.whole_name, rule)
    else:
        await bus.create_rule(place.whole_name, rule)
    written = _entry(call, bus.subscription(place.whole_name), rule)
    return answer(written, status=200 if call.changes else 201)


async def show_rule(call: AtomCall) -> Response:
    found = call.bus.subscription(call.place.whole_name)
    wanted = call.place.rule.casefold()
    for rule in found.rules:
        if rule.name.casefold() == wanted:
            return answer(_entry(call, found, rule))
    raise EntityNotFound(f"no rule {call.place.rule!r}")


async def delete_rule(call: AtomCall) -> Response:
    await call.bus.delete_rule(call.place.whole_name, call.place.rule)
    return Response(200)


async def list_rules(call: AtomCall) -> Response:
    found = call.bus.subscription(call.place.whole_name)
    return page_of(call, "Rules", by_name(found.rules), lambda rule: _entry(call, found, rule))


def _entry(call: AtomCall, found: EntityInfo[SubscriptionSettings], rule: Rule) -> str:
    place = Resource(RULE, "", call.place.entity, call.place.subscription, rule.name)
    # A rule's creation time is not stored: that of its subscription is returned.
    created = moment(found.created_ms)
    return entry(call.address(place.path), rule.name, created, _RULE, write_rule(rule, created))
