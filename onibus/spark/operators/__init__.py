"""The bus's own rules on any DataFrame, batch or streaming.

    from onibus.spark import operators

    rows = operators.assign_partitions(rows, 16)
    done = operators.deduplicate(rows, window_ms=600_000)
    done.kept, done.dropped
    operators.enqueue(rows, settings).accepted

Rows come with the time at which they arrived and with their order among those of one time, as
columns. What an operator makes of them is what a queue of the bus would have made of messages that
were sent at these times in that order; core/timeline is what both call.
"""

from onibus.spark.operators.arrivals import Arrival
from onibus.spark.operators.deduplicate import Deduplicated, deduplicate
from onibus.spark.operators.enqueue import Enqueued, PartnerRule, enqueue
from onibus.spark.operators.expire import Expired, expire
from onibus.spark.operators.hold import hold_for_partner, hold_until_due
from onibus.spark.operators.partitions import assign_partitions
from onibus.spark.operators.stamp import stamp

__all__ = [
    "Arrival",
    "Deduplicated",
    "Enqueued",
    "Expired",
    "PartnerRule",
    "assign_partitions",
    "deduplicate",
    "enqueue",
    "expire",
    "hold_for_partner",
    "hold_until_due",
    "stamp",
]
