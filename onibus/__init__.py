"""Onibus: a durable message bus that does not lose, does not repeat and does not reorder."""

from onibus.broker.namespace import Quotas
from onibus.bus import Bus
from onibus.core import errors
from onibus.core.message import Message, ReceivedMessage, Sent, SentBatch
from onibus.core.path.peek import Filter
from onibus.core.settings import QueueSettings

__all__ = [
    "Bus",
    "Filter",
    "Message",
    "QueueSettings",
    "Quotas",
    "ReceivedMessage",
    "Sent",
    "SentBatch",
    "errors",
]
