"""How much a namespace takes."""

from __future__ import annotations

from dataclasses import dataclass

from onibus.core import limits


@dataclass(frozen=True, slots=True)
class Quotas:
    """How many entities a namespace takes, and what belongs to one; each may be any number."""

    entities: int = limits.ENTITY_COUNT_MAX
    partitioned_entities: int = limits.PARTITIONED_ENTITY_COUNT_MAX
    #: of one topic, and of one subscription
    subscriptions: int = limits.SUBSCRIPTION_COUNT_MAX
    rules: int = limits.RULE_COUNT_MAX
    #: of one queue, topic or subscription: named readers of its log
    readers: int = limits.READER_COUNT_MAX
    #: claims that are neither committed nor released
    claims: int = limits.OPEN_CLAIM_COUNT_MAX
    #: names that stage sends
    producers: int = limits.PRODUCER_COUNT_MAX
    #: pieces that are staged and not yet published
    staged: int = limits.STAGED_COUNT_MAX
    #: messages sent and settled in one transaction (B5)
    transaction_messages: int = limits.TRANSACTION_COUNT_MAX
