"""Shards behind traffic: every command reaches its shard as bytes, and every result comes back so.

    python -m tests.coded_link serve …       the server, with such shards
    make test-link                           the suites of the official clients against it

A command that is not plain data, or a caller that counts on a shared object, shows here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from onibus.core import commands as c
from onibus.core.errors import OnibusError
from onibus.core.records import WriteBatch
from onibus.gateway.broker import Broker
from onibus.shard.coding import (
    LOCAL,
    decode_command,
    decode_error,
    decode_result,
    encode_command,
    encode_error,
    encode_result,
)
from onibus.shard.partition import ShardPartition
from onibus.shard.shard import Shard

T = TypeVar("T")


class CodedShard(Shard):
    """A shard that gets commands as bytes, and returns results and errors as bytes."""

    def apply(self, partition: ShardPartition, command: c.Command[T], now: int | None = None) -> T:
        if type(command) in LOCAL:
            return super().apply(partition, command, now)
        read = partition.online().log.pages.read_staged
        try:
            result = super().apply(partition, decode_command(encode_command(command), read), now)
        except OnibusError as error:
            raise self._arrived(error) from error.__cause__
        kind = type(command)
        return decode_result(kind, encode_result(kind, result), read)

    def check(self, partition: ShardPartition, command: c.Command[Any]) -> None:
        try:
            super().check(partition, decode_command(encode_command(command)))
        except OnibusError as error:
            raise self._arrived(error) from error.__cause__

    def apply_together(
        self,
        commands: Mapping[ShardPartition, c.Command[T]],
        now: int,
        records: WriteBatch | None = None,
    ) -> dict[ShardPartition, T]:
        arrived = {
            partition: decode_command(encode_command(command))
            for partition, command in commands.items()
        }
        results = super().apply_together(arrived, now, records)
        return {
            partition: decode_result(
                type(command), encode_result(type(command), results[partition])
            )
            for partition, command in commands.items()
        }

    def _arrived(self, error: OnibusError) -> OnibusError:
        return decode_error(encode_error(error))


def main() -> None:
    """Run the command line with such shards."""
    from onibus.cli.entry import main as command_line

    Broker.shard_type = CodedShard
    command_line()


if __name__ == "__main__":
    main()
