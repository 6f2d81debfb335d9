"""Onibus: a durable message bus that does not lose, does not repeat and does not reorder."""

from onibus.broker.claim_rows import Claim
from onibus.broker.named_reader import LogPositions, ReaderInfo
from onibus.broker.namespace import Quotas
from onibus.bus import Bus
from onibus.core import errors
from onibus.core.message import Message, ReceivedMessage, Sent, SentBatch
from onibus.core.path.peek import Filter
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter
from onibus.core.settings import QueueSettings, SubscriptionSettings, TopicSettings

__all__ = [
    "Bus",
    "Claim",
    "CorrelationFilter",
    "FalseFilter",
    "Filter",
    "LogPositions",
    "Message",
    "QueueSettings",
    "Quotas",
    "ReaderInfo",
    "ReceivedMessage",
    "Rule",
    "Sent",
    "SentBatch",
    "SqlAction",
    "SqlFilter",
    "SubscriptionSettings",
    "TopicSettings",
    "TrueFilter",
    "errors",
]
