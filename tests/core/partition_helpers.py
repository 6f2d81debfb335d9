"""One partition on rows in memory, without a broker: for tests of the core."""

from __future__ import annotations

from typing import Any, TypeVar

from onibus.core.commands import COMPLETE, Command, Receive, Settle, Settlement
from onibus.core.message import Message, ReceivedMessage, Sent
from onibus.core.partition import Partition
from onibus.core.path.admit import admit
from onibus.core.path.enqueue import find_duplicates
from onibus.core.path.enqueue import send as send_to_partition
from onibus.core.path.recover import COLUMNS, SOURCES, recover
from onibus.core.records import BLOCKS, Row, Table, WriteBatch
from onibus.core.settings import QueueSettings, make
from onibus.shard.pages import StorePages
from onibus.store.memory import MemoryStore

SECRET = b"s" * 32

R = TypeVar("R")


class CountingStore(MemoryStore):
    """Rows in memory; counts the blocks that are read."""

    blocks_read = 0

    def read(self, table: Table, key: Row) -> Row | None:
        self.blocks_read += table is BLOCKS
        return super().read(table, key)


class Bench:
    """A partition, its rows, and a clock that stands still."""

    def __init__(self, counter_bits: int | None = None, **settings: Any) -> None:
        self.settings = make(settings, QueueSettings)
        self.counter_bits = counter_bits
        self.store = CountingStore("bench")
        self.now = 1_000_000
        self.boot = 0
        self.restart()

    def restart(self) -> None:
        """Read everything back from the rows that were committed."""
        self.boot += 1
        self.out = WriteBatch()
        pages = StorePages(self.store)
        self.partition = Partition(
            65_536, 0, self.settings, pages, SECRET, self.boot, self.counter_bits
        )
        rows = {table: list(self.store.scan(table, COLUMNS.get(table, ()))) for table in SOURCES}
        recover(self.partition, rows)

    def commit(self) -> None:
        self.partition.finish(self.now, self.out)
        self.partition.commit_started()
        self.store.commit(self.out)
        self.partition.commit_finished()
        self.out = WriteBatch()

    def send(self, *bodies: bytes, **fields: Any) -> list[Sent]:
        """Send a batch, which becomes one block, and commit it."""
        return self.send_all([Message(body=body, **fields) for body in bodies])

    def send_all(self, messages: list[Message]) -> list[Sent]:
        """The same with messages as they are."""
        batch = [admit(message, self.settings, SECRET) for message in messages]
        originals = find_duplicates(self.partition, batch, self.now)
        sent = send_to_partition(self.partition, batch, originals, self.now, self.now, self.out)
        self.commit()
        return sent

    def receive(self, limit: int = 1) -> list[ReceivedMessage]:
        received = self.apply(Receive(0, limit)).messages
        self.commit()
        return received

    def apply(self, command: Command[R]) -> R:
        """Carry out a command; the next commit has its records."""
        return self.partition.apply(command, self.now, self.now, self.out)

    def complete(self, *messages: ReceivedMessage) -> None:
        self.settle(COMPLETE, *messages)
        self.commit()

    def settle(self, settlement: Settlement, *messages: ReceivedMessage) -> None:
        """Settle messages; the next commit has the records."""
        tokens = [message.token for message in messages if message.token is not None]
        self.apply(Settle(0, settlement, tokens, atomic=True))
