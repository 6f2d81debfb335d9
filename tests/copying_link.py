"""A link that copies everything: commands go to a shard, and results come back, as bytes.

    python -m tests.copying_link serve …     the server, with shards that are reached by copies
    make test-link                           the suites of the official clients against it

A command that is not plain data, or a caller that counts on a shared object, shows here.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, TypeVar

from onibus.broker.broker import Broker
from onibus.core import commands as c
from onibus.shard.seat import Seat
from onibus.shard.shard import Shard

T = TypeVar("T")

#: What the shard works on in steps, and keeps in between: a fan-out that is computed ahead, and the
#: parts of multi-partition operations, whose rows are encoded once.
BY_REFERENCE = (c.PlanFanOut, c.RunPlan, c.Stage, c.Publish)


def copied(value: T) -> T:
    """Return a value as it arrives on the other side."""
    copy: T = pickle.loads(pickle.dumps(value))
    return copy


class CopyingShard(Shard):
    """A shard that gets copies of commands and returns copies of results."""

    def apply(self, seat: Seat, command: c.Command[T], now: int | None = None) -> T:
        given: Any = command
        if type(command) in BY_REFERENCE:
            return super().apply(seat, command, now)
        if isinstance(command, c.Send) and command.plan is not None:
            # Only a preparation: it is computed again.
            given = c.Send(command.batch)
        result: T = copied(super().apply(seat, copied(given), now))
        return result

    def check(self, seat: Seat, command: c.Command[Any]) -> None:
        super().check(seat, copied(command))

    def apply_together(self, commands: Mapping[Seat, c.Command[T]], now: int) -> dict[Seat, T]:
        results = super().apply_together(commands, now)
        return {seat: copied(result) for seat, result in results.items()}


def main() -> None:
    """Run the command line with copying shards."""
    from onibus.cli.entry import main as command_line

    Broker.shard_type = CopyingShard
    command_line()


if __name__ == "__main__":
    main()
