"""Counters of sequence numbers that a test sets ahead, to see them roll over (S8)."""

from __future__ import annotations

from onibus.core.path.stamp import pass_over
from onibus.gateway.broker import Broker
from tests.running import Run


def set_counter(broker: Broker, name: str, ordinal: int, index: int = 0) -> None:
    """Give the next message of a partition that ordinal, higher than all before.

    It is durable with the next commit of the partition's store.
    """
    partition = broker.find(name).partitions[index]
    broker.apply(partition, Run(lambda core, _, out: pass_over(core, ordinal, out)))
    partition.store.flush_later()
