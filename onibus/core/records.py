"""Everything that becomes durable: the tables, and the batch that one commit writes.

A store keeps rows in the tables below and knows nothing of their meaning. A row's first `key`
columns are its key; `put` replaces the row of that key. Columns hold int, str, bytes or None.
`partition` is an entity's incarnation * 65,536 + the partition's index, so rows of a deleted entity
never mix with those of an entity recreated under its name.

Format version 4 (3 had no `entries` in `block_index`; 2 no `takeover` and no `state_set` in
`sessions`; 1 no `repairs`, and no `stamp` in `outcomes`):

    table        key                               other columns
    meta         name                              value
    counters     partition                         next_ordinal, last_stamp, epoch, forget_before,
                                                   forget_below, duplicates, accessed, seen
    blocks       block                             payload (core/block.py)
    block_index  block                             partition, first, last, rows, expires, size,
                                                   keys, fans, entries
    marks        partition, subscription, ordinal  state, deliveries, due, reason, description,
                                                   overlay
    gone         partition, subscription, first    last: this run of ordinals has left
    holds        partition, subscription, epoch    until, duration, check, session, ordinals, owner
    sessions     partition, subscription, session  state, until, duration, epoch, check, owner,
                                                   takeover, state_set
    attempts     partition, subscription, attempt  until, epochs
    recent_ids   entry                             partition, entries (core/id_runs.py)
    id_runs      run                               partition, tier, count, oldest, newest, chunks,
                                                   filter
    id_chunks    chunk                             partition, entries
    duplicates   partition, slot                   message_id, time, ordinal
    outcomes     partition, subscription, first    last, time, size, entries, stamp
                                                   (core/outcomes.py)
    repairs      partition, ordinal                before, after: stamps from this ordinal on were
                                                   set back
    staged       work, partition, piece            content (core/staged.py)

and, in the namespace's own store:

    entities     incarnation                       name, kind, settings, created
    works        work                              content (directory/works.py)
    producers    entity, producer                  content (directory/producers.py)
    readers      entity, reader                    content (directory/readers.py)
    claims       entity, reader, claim             content (directory/claim_rows.py)

`entity` is an entity's incarnation.
"""

from __future__ import annotations

from dataclasses import dataclass

FORMAT_VERSION = 4

#: A memoryview is written as bytes, and read back as such.
Value = int | str | bytes | memoryview | None
LARGE_VALUES = (bytes, memoryview)
Row = tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table's name, its columns in order, and how many of them form the key.

    Each table is one object, equal to itself only: it is the key of the busiest dictionaries.
    """

    name: str
    columns: tuple[str, ...]
    key: int


def _table(name: str, key: str, others: str) -> Table:
    keys = tuple(key.split())
    return Table(name, keys + tuple(others.split()), len(keys))


META = _table("meta", "name", "value")
COUNTERS = _table(
    "counters",
    "partition",
    "next_ordinal last_stamp epoch forget_before forget_below duplicates accessed seen",
)
BLOCKS = _table("blocks", "block", "payload")
#: Small rows apart from the large ones: a restart reads these and no block. `keys` has (ordinal
#: i64, session hash u64) of each row, little-endian, if the entity has sessions; `fans` the
#: subscriptions of each row, if it is a topic (core/fans.py); `entries` the index of a block that
#: was staged without one (core/block.py).
BLOCK_INDEX = _table(
    "block_index", "block", "partition first last rows expires size keys fans entries"
)
MARKS = _table(
    "marks",
    "partition subscription ordinal",
    "state deliveries due reason description overlay",
)
GONE = _table("gone", "partition subscription first", "last")
HOLDS = _table(
    "holds", "partition subscription epoch", "until duration check session ordinals owner"
)
SESSIONS = _table(
    "sessions",
    "partition subscription session",
    "state until duration epoch check owner takeover state_set",
)
ATTEMPTS = _table("attempts", "partition subscription attempt", "until epochs")
RECENT_IDS = _table("recent_ids", "entry", "partition entries")
ID_RUNS = _table("id_runs", "run", "partition tier count oldest newest chunks filter")
ID_CHUNKS = _table("id_chunks", "chunk", "partition entries")
DUPLICATES = _table("duplicates", "partition slot", "message_id time ordinal")
ENTITIES = _table("entities", "incarnation", "name kind settings created")
OUTCOMES = _table("outcomes", "partition subscription first", "last time size entries stamp")
REPAIRS = _table("repairs", "partition ordinal", "before after")
STAGED = _table("staged", "work partition piece", "content")
WORKS = _table("works", "work", "content")
PRODUCERS = _table("producers", "entity producer", "content")
READERS = _table("readers", "entity reader", "content")
CLAIMS = _table("claims", "entity reader claim", "content")

#: Tables whose values may be large: messages, and data kept with them.
LARGE = (BLOCKS, BLOCK_INDEX, SESSIONS, ID_CHUNKS, ENTITIES, STAGED)

TABLES = (
    META,
    COUNTERS,
    BLOCKS,
    BLOCK_INDEX,
    MARKS,
    GONE,
    HOLDS,
    SESSIONS,
    ATTEMPTS,
    RECENT_IDS,
    ID_RUNS,
    ID_CHUNKS,
    DUPLICATES,
    ENTITIES,
    OUTCOMES,
    REPAIRS,
    STAGED,
    WORKS,
    PRODUCERS,
    READERS,
    CLAIMS,
)


class WriteBatch:
    """The changes of one store commit: for each table, key → row, or None to delete the row.

    Writing a key twice keeps the last word only, so what happens and un-happens between two
    commits (a lock taken and its message completed) costs the disk nothing.
    """

    __slots__ = ("tables",)

    def __init__(self) -> None:
        self.tables: dict[Table, dict[Row, Row | None]] = {}

    def put(self, table: Table, row: Row) -> None:
        rows = self.tables.get(table)
        if rows is None:
            rows = self.tables[table] = {}
        rows[row[: table.key]] = row

    def delete(self, table: Table, key: Row) -> None:
        rows = self.tables.get(table)
        if rows is None:
            rows = self.tables[table] = {}
        rows[key] = None

    def absorb(self, later: WriteBatch) -> None:
        """Take in a batch that was written after this one."""
        for table, rows in later.tables.items():
            mine = self.tables.get(table)
            if mine is None:
                self.tables[table] = rows
            else:
                mine.update(rows)

    def payload_bytes(self) -> int:
        """Return how many bytes its large values have: messages, and data kept with them."""
        size = 0
        for table in LARGE:
            rows = self.tables.get(table)
            if rows is None:
                continue
            for row in rows.values():
                for value in row or ():
                    if type(value) in LARGE_VALUES:
                        size += len(value)  # type: ignore[arg-type]
        return size

    def __bool__(self) -> bool:
        return bool(self.tables)
