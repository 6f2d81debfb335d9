"""What a path names. Words of the service do not tell upper from lower case; names may have /."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from onibus.api.entities import SUBSCRIPTIONS
from onibus.core.errors import EntityNotFound

NAMESPACE = "namespace"
QUEUES = "queues"
TOPICS = "topics"
ENTITY = "entity"
SUBSCRIPTION = "subscription"
SUBSCRIPTION_LIST = "subscriptions"
RULE = "rule"
RULE_LIST = "rules"
#: of the runtime API: an entity's messages, the first of them, and one that is locked
MESSAGES = "messages"
FIRST_MESSAGE = "messages/head"
LOCKED_MESSAGE = "messages/locked"

_BELOW_A_TOPIC = re.compile(
    r"(?P<topic>.+?)/subscriptions(?:/(?P<subscription>[^/]+)(?:/rules(?:/(?P<rule>[^/]+))?)?)?",
    re.IGNORECASE,
)
_RULES = re.compile("/rules$", re.IGNORECASE)
_MESSAGES = re.compile(
    r"(?P<entity>.+?)(?P<dead>/\$deadletterqueue)?/messages"
    r"(?:/(?P<head>head)|/[^/]+/(?P<token>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}))?",
    re.IGNORECASE,
)
#: The methods of requests for messages; others are for entities of such names.
_METHODS = {MESSAGES: ("POST",), FIRST_MESSAGE: ("POST", "DELETE")}
_OF_NATIVE_API = "/v1/"


@dataclass(frozen=True, slots=True)
class Resource:
    """What a request is about; names as the client writes them."""

    kind: str
    #: the resource that the request needs a right to
    resource: str
    #: the queue, or the topic
    entity: str = ""
    subscription: str = ""
    rule: str = ""
    #: of the runtime API: whether it is the dead-letter queue; the token of a lock
    dead: bool = False
    token: str = ""

    @property
    def whole_name(self) -> str:
        """The whole name of a subscription."""
        return f"{self.entity}/{SUBSCRIPTIONS}/{self.subscription}"

    @property
    def path(self) -> str:
        """The path as the service writes it: clients find names in it."""
        if self.kind in (NAMESPACE, QUEUES, TOPICS):
            return self.resource
        if self.kind in (MESSAGES, FIRST_MESSAGE, LOCKED_MESSAGE):
            return quote(self.resource, safe="/$~@!'()*,;=:")
        parts = [self.entity]
        if self.kind != ENTITY:
            parts += ["Subscriptions", self.subscription]
        if self.kind in (RULE, RULE_LIST):
            parts += ["Rules", self.rule]
        return quote("/".join(part for part in parts if part), safe="/$~@!'()*,;=:")


def messages_at(path: str, method: str) -> Resource | None:
    """Return the messages that a request of the runtime API is about; None of any other request."""
    if "/messages" not in path.lower() or path.startswith(_OF_NATIVE_API):
        return None
    # A slash in the id of a message is %2F.
    match = _MESSAGES.fullmatch(path.replace("%24", "$").strip("/"))
    if match is None:
        return None
    token = match["token"] or ""
    kind = LOCKED_MESSAGE if token else FIRST_MESSAGE if match["head"] else MESSAGES
    if method not in _METHODS.get(kind, ("POST", "DELETE", "PUT")):
        return None
    entity, dead = unquote(match["entity"]), match["dead"] or ""
    return Resource(kind, entity + dead, entity.lower(), dead=bool(dead), token=token)


def place_of(path: str, method: str = "GET") -> Resource:
    """Return what a path names, or reject it."""
    if (messages := messages_at(path, method)) is not None:
        return messages
    text = unquote(path).strip("/")
    lower = text.lower()
    if lower == "$namespaceinfo":
        return Resource(NAMESPACE, lower)
    if lower in ("$resources/queues", "$resources/topics"):
        return Resource(lower.removeprefix("$resources/"), lower)
    if not text or lower.startswith("$"):
        raise EntityNotFound(f"{text!r} is not an entity")
    match = _BELOW_A_TOPIC.fullmatch(text)
    if match is None:
        return Resource(ENTITY, text, text)
    topic, subscription, rule = match["topic"], match["subscription"] or "", match["rule"] or ""
    if not subscription:
        # With a slash: the list belongs to the topic, as each subscription does.
        return Resource(SUBSCRIPTION_LIST, text + "/", topic)
    if rule:
        return Resource(RULE, text, topic, subscription, rule)
    kind = RULE_LIST if _RULES.search(text) else SUBSCRIPTION
    return Resource(kind, text, topic, subscription)
