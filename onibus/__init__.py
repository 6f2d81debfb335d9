"""Onibus: a durable message bus that does not lose, does not repeat and does not reorder."""

from onibus.broker.claim_rows import Claim
from onibus.broker.namespace import Quotas
from onibus.bus import Bus
from onibus.core import errors
from onibus.core.message import Message, ReceivedMessage, Sent
from onibus.core.path.peek import Filter
from onibus.core.settings import QueueSettings

__all__ = [
    "Bus",
    "Claim",
    "Filter",
    "Message",
    "QueueSettings",
    "Quotas",
    "ReceivedMessage",
    "Sent",
    "errors",
]
