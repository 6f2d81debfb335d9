"""Onibus: a durable message bus with Azure Service Bus and SQS semantics."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onibus.core import errors
from onibus.extras import explained

if TYPE_CHECKING:
    from onibus.api.claims import Claim
    from onibus.api.log import LogPositions, ReaderInfo
    from onibus.bus import Bus
    from onibus.core.inspection import Filter
    from onibus.core.message import Message, ReceivedMessage, Sent, SentBatch
    from onibus.core.rules.correlation import CorrelationFilter
    from onibus.core.rules.rule import FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter
    from onibus.core.settings import QueueSettings, SubscriptionSettings, TopicSettings
    from onibus.directory.quotas import Quotas

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

#: Module of each name, imported on first use: Spark starts many short processes.
_HOMES = {
    "Bus": "bus",
    "Claim": "api.claims",
    "CorrelationFilter": "core.rules.correlation",
    "FalseFilter": "core.rules.rule",
    "Filter": "core.inspection",
    "LogPositions": "api.log",
    "Message": "core.message",
    "QueueSettings": "core.settings",
    "Quotas": "directory.quotas",
    "ReaderInfo": "api.log",
    "ReceivedMessage": "core.message",
    "Rule": "core.rules.rule",
    "Sent": "core.message",
    "SentBatch": "core.message",
    "SqlAction": "core.rules.rule",
    "SqlFilter": "core.rules.rule",
    "SubscriptionSettings": "core.settings",
    "TopicSettings": "core.settings",
    "TrueFilter": "core.rules.rule",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with explained():
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
