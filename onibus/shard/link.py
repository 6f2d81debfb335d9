"""The link: what the gateway and the directory may ask of a shard.

A shard may be in this process or behind a socket, so the contract is that of a message:

- `apply` carries a command out at once, or raises. A rejected command has changed nothing.
- `PartitionOffline` means that nothing was applied: the caller may ask another partition.
- A reply comes after the commit, in any order between shards, and any time later.
- `Unknown` means that the response was lost. The change may have happened, so the client repeats
  the request, and duplicate detection or the lock token decides.
- Commands on one partition are applied in the order in which they were given. Only sends wait, and
  `take_in` ends their wait.

Commands, results and errors travel as bytes (shard/coding.py). Tests run with a link that encodes
everything, and with one that answers late, fails and breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from onibus.core.commands import Command, Query
    from onibus.shard.partition import ShardPartition
    from onibus.shard.replies import Reply
    from onibus.shard.shard import SendRequest

T = TypeVar("T")


class Link(Protocol):
    """A shard as the gateway and the directory see it."""

    name: str
    #: why its disk is taken to hang; empty if it responds
    stalled: str

    @property
    def online(self) -> bool:
        """Whether its store is open."""

    def apply(self, partition: ShardPartition, command: Command[T], now: int | None = None) -> T:
        """Carry out a command; return its result, or raise its rejection."""

    def look(self, partition: ShardPartition, query: Query[T]) -> T:
        """Return the result of a query, without the changes that are due by now."""

    def check(self, partition: ShardPartition, command: Command[Any]) -> None:
        """Raise the rejection of a command that would be rejected at this moment."""

    def apply_together(
        self, commands: Mapping[ShardPartition, Command[T]], now: int
    ) -> dict[ShardPartition, T]:
        """Carry out commands on several partitions in one commit."""

    def advance(self, partition: ShardPartition, now: int) -> None:
        """Bring a partition up to that bus time."""

    def gather(self, request: SendRequest) -> None:
        """Let a send wait for the next commit."""

    def take_in(self) -> None:
        """Apply the sends that gathered."""

    def answer_after(self, reply: Reply, value: Any = None) -> None:
        """Reply when everything applied so far is durable."""

    def check_healthy(self) -> None:
        """Reject if the store is down, or its disk does not respond."""

    def check_disk(self, size: int, *, routing: bool = False, settling: bool = False) -> None:
        """Reject messages of that size if the disk is nearly full."""
