"""A function that a test runs on a partition, as a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onibus.core.commands import Command
from onibus.core.handlers import HANDLERS
from onibus.core.partition import Partition
from onibus.core.records import WriteBatch


class Run(Command[Any], frozen=True):
    """Run a function that changes a partition."""

    function: Callable[[Partition, int, WriteBatch], Any]


def _run(partition: Partition, command: Run, now: int, wall: int, out: WriteBatch) -> Any:
    return command.function(partition, now, out)


HANDLERS[Run] = _run
