"""A link between gateway and shard that answers late, fails and breaks, by a fixed count.

    python -m tests.unsure_link serve …     the server, with a link that answers late
    make test-link LINK=late                the suites of the official clients against it

A failed link has delivered nothing: the shard has not seen the command. A broken link has delivered
the command and lost the response: the outcome is unknown, and a client that repeats the request
must find the same end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from onibus.core import commands as c
from onibus.core.errors import PartitionOffline, Unknown
from onibus.gateway.broker import Broker
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import KeptReply, Reply, answer, fail
from onibus.shard.shard import SendRequest
from tests.coded_link import CodedShard

T = TypeVar("T")

#: Commands that clients repeat after an error of the link.
REPEATED = (c.Settle, c.Renew, c.Delete, c.Receive)


class LateShard(CodedShard):
    """A shard whose responses arrive some turns of the event loop after they were given."""

    #: how many responses were given, in all shards
    given: ClassVar[int] = 0

    def gather(self, request: SendRequest) -> None:
        request.reply = self._over_the_link(request.reply)
        super().gather(request)

    def answer_after(self, reply: Reply, value: Any = None) -> None:
        super().answer_after(self._over_the_link(reply), value)

    def _over_the_link(self, reply: Reply) -> Reply:
        """Return a reply that passes on what it gets, up to six turns later."""
        LateShard.given += 1
        turns = LateShard.given * 5 % 7
        return KeptReply(lambda kept: self._after(turns, lambda: _pass_on(kept, reply)), reply)

    def _after(self, turns: int, then: Callable[[], None]) -> None:
        if turns:
            self.host.call_soon(lambda: self._after(turns - 1, then))
        else:
            then()


class UnsureShard(LateShard):
    """A shard whose link also fails before some commands, and breaks after others."""

    commands: ClassVar[int] = 0
    failures: ClassVar[int] = 0
    breaks: ClassVar[int] = 0

    def apply(self, partition: ShardPartition, command: c.Command[T], now: int | None = None) -> T:
        if isinstance(command, REPEATED) and self._fails():
            raise PartitionOffline("the link failed: nothing was applied")
        return super().apply(partition, command, now)

    def gather(self, request: SendRequest) -> None:
        if self._fails():
            self.host.reroute(request, PartitionOffline("the link failed: nothing was sent"))
        else:
            super().gather(request)

    def _fails(self) -> bool:
        UnsureShard.commands += 1
        fails = UnsureShard.commands % 7 == 0
        UnsureShard.failures += fails
        return fails

    def _over_the_link(self, reply: Reply) -> Reply:
        late = super()._over_the_link(reply)
        if LateShard.given % 6:
            return late
        UnsureShard.breaks += 1
        lost = Unknown("the link broke: the response was lost")
        return KeptReply(lambda _: fail(late, lost), reply)


def _pass_on(kept: KeptReply, reply: Reply) -> None:
    if kept.error is not None:
        fail(reply, kept.error)
    else:
        answer(reply, kept.value)


def main() -> None:
    """Run the command line with late shards."""
    from onibus.cli.entry import main as command_line

    Broker.shard_type = LateShard
    command_line()


if __name__ == "__main__":
    main()
