"""Queues of the bus as SQS sees them: names, URLs, ARNs.

A queue's URL is http(s)://HOST/ACCOUNT/NAME with the host of the client's request, so that clients
that follow the URL reach this server. Names in the bus ignore case: a queue keeps and shows the
spelling it was created with, and any spelling finds it. The bus rejects names that begin or end
with - or _, so there such a name is enclosed in q~ and ~q.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

from onibus.bus import Bus
from onibus.core.settings import QueueSettings
from onibus.directory.entity import QUEUE, Entity
from onibus.protocols.http.messages import Request
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.profile import Profile

NAME_LENGTH_MAX = 80
#: A name of the bus in percents, and a host before it.
URL_LENGTH_MAX = 2_048
FIFO_SUFFIX = ".fifo"
#: The account that all queues belong to, unless another is set.
ACCOUNT = "000000000000"
#: Where a queue keeps the spelling of its name.
SPELLING = "sqs.QueueName"

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")
_ENDS = "-_"
_BEFORE, _AFTER = "q~", "~q"


class Queues:
    """All queues of a bus."""

    def __init__(self, bus: Bus, profile: Profile, account: str = ACCOUNT) -> None:
        self.bus = bus
        self.profile = profile
        self.account = account

    def by_url(self, url: str | None) -> Entity:
        """Return the queue that a URL, or its path, means."""
        if not url:
            raise errors.missing("QueueUrl")
        entity = self.bus.broker.namespace.entities.get(name_in(url, self.account))
        if entity is None or type(entity.settings) is not QueueSettings:
            raise errors.no_queue()
        return entity

    def by_name(self, name: str) -> Entity:
        """Return a queue by its name."""
        entity = self.find(name)
        if entity is None:
            raise errors.no_queue()
        return entity

    def find(self, name: str) -> Entity | None:
        """Return a queue by its name, if there is one."""
        entity = self.bus.broker.namespace.entities.get(entity_name(name))
        return entity if entity is not None and entity.kind == QUEUE else None

    def by_arn(self, arn: str, what: str) -> Entity:
        """Return the queue of an ARN; the region in it may be any."""
        parts = arn.split(":")
        if len(parts) < 6 or not parts[-1]:
            raise errors.invalid(what, arn, "Must be the ARN of a queue.")
        name = self.name_in_arn(arn)
        entity = None if name is None else self.find(name)
        if entity is None:
            text = f"The resource that you specified for the {what} parameter doesn't exist."
            raise SqsError(errors.NOT_FOUND, text)
        return entity

    def name_in_arn(self, arn: str) -> str | None:
        """Return the queue name in an ARN; None if the account differs."""
        before, _, name = arn.rpartition(":")
        return name if before.rpartition(":")[2] == self.account else None

    def all(self) -> list[Entity]:
        """Return all queues, by name."""
        entities = self.bus.broker.namespace.entities.values()
        return sorted((one for one in entities if one.kind == QUEUE), key=queue_name)

    def url(self, entity: Entity, request: Request) -> str:
        """Return a queue's URL, for the client that sent that request."""
        scheme = "https" if request.secure else "http"
        host = request.headers.get("host", "localhost")
        return f"{scheme}://{host}/{self.account}/{quote(queue_name(entity), safe='~')}"

    def arn(self, entity: Entity, region: str) -> str:
        """Return a queue's ARN in the region that the client believes to be in."""
        return f"{self.profile.arn}:{region}:{self.account}:{queue_name(entity)}"

    def arn_of(self, name: str, region: str) -> str:
        """Return the ARN of a queue by its name in the bus, even if it was deleted."""
        entity = self.bus.broker.namespace.entities.get(name)
        if entity is not None and type(entity.settings) is QueueSettings:
            return self.arn(entity, region)
        return f"{self.profile.arn}:{region}:{self.account}:{plain_name(name)}"


def settings_of(entity: Entity) -> QueueSettings:
    """Return the settings of a queue."""
    settings = entity.settings
    assert isinstance(settings, QueueSettings)
    return settings


def queue_name(entity: Entity) -> str:
    """Return the name of a queue, in the spelling that it was created with."""
    name = plain_name(entity.name)
    spelling = settings_of(entity).attributes.get(SPELLING, "")
    return spelling if spelling.lower() == name else name


def plain_name(name: str) -> str:
    """Return the name of a queue, in lower case, for its name in the bus."""
    if name.startswith(_BEFORE) and name.endswith(_AFTER):
        return name.removeprefix(_BEFORE).removesuffix(_AFTER)
    return name


@lru_cache(1_024)
def name_in(url: str, account: str) -> str:
    """Return under which name the bus has the queue of a URL, or of its path.

    A URL of a different account names no queue. A bare queue name is accepted, as in AWS.
    """
    if len(url) > URL_LENGTH_MAX:
        # Longer than any URL that the server returns. The cache keeps only valid URLs.
        raise errors.no_queue()
    before, slash, name = url.rpartition("/")
    if slash and before.rpartition("/")[2] != account:
        raise errors.no_queue()
    return entity_name(unquote(name))


def entity_name(name: str) -> str:
    """Return under which name the bus has a queue."""
    lower = name.lower()
    if lower[:1] in _ENDS or lower[-1:] in _ENDS:
        return f"{_BEFORE}{lower}{_AFTER}"
    return lower


def check_new_name(name: str | None, fifo: bool) -> str:
    """Return a name for a new queue, or reject it."""
    if not name:
        raise errors.missing("QueueName")
    if not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise SqsError(
            errors.INVALID_PARAMETER,
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )
    if fifo and not name.endswith(FIFO_SUFFIX):
        raise SqsError(
            errors.INVALID_PARAMETER, "The name of a FIFO queue can only end with the .fifo suffix"
        )
    if not fifo and name.endswith(FIFO_SUFFIX):
        raise SqsError(
            errors.INVALID_PARAMETER,
            "The queue name can only end with .fifo where the attribute FifoQueue is true",
        )
    return name
