"""What a path names. Words of the service do not tell upper from lower case; names may have /."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from onibus.broker.entity_rules import SUBSCRIPTIONS
from onibus.core.errors import EntityNotFound

NAMESPACE = "namespace"
QUEUES = "queues"
TOPICS = "topics"
ENTITY = "entity"
SUBSCRIPTION = "subscription"
SUBSCRIPTION_LIST = "subscriptions"
RULE = "rule"
RULE_LIST = "rules"

_BELOW_A_TOPIC = re.compile(
    r"(?P<topic>.+?)/subscriptions(?:/(?P<subscription>[^/]+)(?:/rules(?:/(?P<rule>[^/]+))?)?)?",
    re.IGNORECASE,
)
_RULES = re.compile("/rules$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """What a request is about; names as the client writes them."""

    kind: str
    #: what a right is asked for
    resource: str
    #: the queue, or the topic
    entity: str = ""
    subscription: str = ""
    rule: str = ""

    @property
    def whole_name(self) -> str:
        """The whole name of a subscription."""
        return f"{self.entity}/{SUBSCRIPTIONS}/{self.subscription}"

    @property
    def path(self) -> str:
        """The path as the service writes it: clients find names in it."""
        if self.kind in (NAMESPACE, QUEUES, TOPICS):
            return self.resource
        parts = [self.entity]
        if self.kind != ENTITY:
            parts += ["Subscriptions", self.subscription]
        if self.kind in (RULE, RULE_LIST):
            parts += ["Rules", self.rule]
        return quote("/".join(part for part in parts if part), safe="/$~@!'()*,;=:")


def place_of(path: str) -> Place:
    """Return what a path names, or refuse it."""
    text = unquote(path).strip("/")
    lower = text.lower()
    if lower == "$namespaceinfo":
        return Place(NAMESPACE, lower)
    if lower in ("$resources/queues", "$resources/topics"):
        return Place(lower.removeprefix("$resources/"), lower)
    if not text or lower.startswith("$"):
        raise EntityNotFound(f"{text!r} is no entity")
    match = _BELOW_A_TOPIC.fullmatch(text)
    if match is None:
        return Place(ENTITY, text, text)
    topic, subscription, rule = match["topic"], match["subscription"] or "", match["rule"] or ""
    if not subscription:
        # With a slash: the list belongs to the topic, as each subscription does.
        return Place(SUBSCRIPTION_LIST, text + "/", topic)
    if rule:
        return Place(RULE, text, topic, subscription, rule)
    kind = RULE_LIST if _RULES.search(text) else SUBSCRIPTION
    return Place(kind, text, topic, subscription)
