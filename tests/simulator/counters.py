"""Counters of sequence numbers that a test sets ahead, to see them roll over (S8)."""

from __future__ import annotations

from onibus.broker.broker import Broker
from onibus.core.path.stamp import pass_over
from tests.running import Run


def set_counter(broker: Broker, name: str, ordinal: int, index: int = 0) -> None:
    """Give the next message of a partition that ordinal, higher than all before.

    It is durable with the next commit of the partition's store.
    """
    seat = broker.find(name).seats[index]
    broker.apply(seat, Run(lambda partition, _, out: pass_over(partition, ordinal, out)))
    seat.store.flush_later()
