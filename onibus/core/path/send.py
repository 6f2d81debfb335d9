"""Send: admitted messages are deduplicated, stamped, stored and fanned out.

Single messages take `path/enqueue.py`, messages in columns `path/bulk.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onibus.core.commands import PlanFanOut, RunPlan, Send
from onibus.core.path import enqueue
from onibus.core.path.plan import Plan
from onibus.core.records import WriteBatch

if TYPE_CHECKING:
    from onibus.core.commands import Batch
    from onibus.core.partition import Partition


def send(partition: Partition, command: Send, now: int, wall: int, out: WriteBatch) -> Any:
    """Store messages; return the result of each."""
    kernel = kernel_of(command.batch)
    originals = kernel.find_duplicates(partition, command.batch, now)
    return kernel.send(partition, command.batch, originals, now, wall, out, plan=command.plan)


def kernel_of(batch: Batch) -> Any:
    """Return the module that stores messages of this form."""
    if type(batch) is list:
        return enqueue
    # pyarrow is slow to import: only clients that send columns load it.
    from onibus.core.path import bulk

    return bulk


def plan_fan_out(
    partition: Partition, command: PlanFanOut, now: int, wall: int, out: WriteBatch
) -> Plan:
    """Return the fan-out of a batch as it would be now."""
    plan: Plan = kernel_of(command.batch).plan(partition, command.batch, now)
    return plan


def run_plan(partition: Partition, command: RunPlan, now: int, wall: int, out: WriteBatch) -> int:
    """Run rules of a fan-out; return the steps left, 0 if more is left to do."""
    return command.plan.run(command.steps)
