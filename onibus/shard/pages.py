"""The core's door to one store: committed pages, read through a small cache."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

from onibus.core.block import Block, is_staged
from onibus.core.errors import Damaged
from onibus.core.marks import MarkRow
from onibus.core.records import BLOCK_INDEX, BLOCKS, ID_CHUNKS, ID_RUNS, MARKS, RECENT_IDS, STAGED
from onibus.store.interface import Store

#: Blocks that were read or written last; enough for receivers that keep up.
CACHE_BYTES_MAX = 32 << 20


class StorePages:
    """Reads of one store's immutable pages, and ids for new ones."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._blocks: OrderedDict[int, Block | bytes] = OrderedDict()
        self._bytes = 0
        highest = [store.highest(table) for table in (BLOCKS, RECENT_IDS, ID_RUNS, ID_CHUNKS)]
        #: the highest id given to a page so far
        self.last_id = max((key for key in highest if isinstance(key, int)), default=0)

    @property
    def size(self) -> int:
        """Return how many bytes of blocks the cache has."""
        return self._bytes

    def new_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def read_block(self, block: int) -> Block:
        cached = self._blocks.get(block)
        if isinstance(cached, Block):
            self._blocks.move_to_end(block)
            return cached
        if cached is not None:
            found = Block(cached, sound=True)
        else:
            loaded = load_block(self._store, block)
            if loaded is None:
                raise Damaged(f"store {self._store.name}: block {block} is missing")
            found = loaded
            self._remember(block, found)
        if block in self._blocks:
            self._blocks[block] = found
        return found

    def read_staged(self, block: int) -> bytes:
        row = self._store.read(BLOCKS, (block,))
        if row is None or not isinstance(row[-1], bytes):
            raise Damaged(f"store {self._store.name}: staged block {block} is missing")
        return row[-1]

    def keep(self, block: int, payload: bytes) -> None:
        """Cache a block of this process that will soon be read; it is decoded only then."""
        self._remember(block, payload)

    def forget(self, block: int) -> None:
        dropped = self._blocks.pop(block, None)
        if dropped is not None:
            self._bytes -= _size(dropped)

    def _remember(self, block: int, content: Block | bytes) -> None:
        if _size(content) > CACHE_BYTES_MAX // 4:
            # It would evict all others.
            return
        self._blocks[block] = content
        self._bytes += _size(content)
        while self._bytes > CACHE_BYTES_MAX:
            _, dropped = self._blocks.popitem(last=False)
            self._bytes -= _size(dropped)

    def read_mark(self, partition: int, subscription: int, ordinal: int) -> MarkRow:
        row = self._store.read(MARKS, (partition, subscription, ordinal))
        if row is None:
            raise Damaged(f"store {self._store.name}: the mark of {ordinal} is missing")
        return cast("MarkRow", row[MARKS.columns.index("deliveries") :])

    def read_part(self, work: int, partition: int, piece: int) -> bytes | None:
        row = self._store.read(STAGED, (work, partition, piece))
        if row is None:
            return None
        assert isinstance(row[-1], bytes)
        return row[-1]

    def read_ids(self, chunk: int) -> bytes:
        row = self._store.read(ID_CHUNKS, (chunk,))
        if row is None or not isinstance(row[-1], bytes):
            raise Damaged(f"store {self._store.name}: id chunk {chunk} is missing")
        return row[-1]


def _size(content: Block | bytes) -> int:
    return content.size if isinstance(content, Block) else len(content)


def load_block(store: Store, block: int, entries: bytes | None = None) -> Block | None:
    """Return a committed block, of any thread; None if it is not in the store.

    `entries`: the index of a staged block, if that is not committed yet.
    """
    row: Any = store.read(BLOCKS, (block,))
    if row is None or not isinstance(row[-1], bytes):
        return None
    payload = row[-1]
    if entries is None and is_staged(payload):
        index: Any = store.read(BLOCK_INDEX, (block,))
        if index is None:
            return None
        entries = index[-1]
    return Block(payload, entries=entries)
