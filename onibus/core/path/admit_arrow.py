"""Admit whole columns: the rules of path/admit.py, applied to a record batch atomically.

The checks work on whole columns. If they find invalid rows, `admit` itself rejects the first of
them, so that both paths reject the same rows with the same errors. The error names the row, counted
from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onibus.core.arrow_block import (
    SCHEMA,
    EncodedBody,
    conform,
    encode_stream,
    messages_of,
    staged_columns,
)
from onibus.core.block import UNREADABLE
from onibus.core.checks import check_properties
from onibus.core.errors import Damaged, InvalidArgument, MessageTooLarge, Refused
from onibus.core.limits import BATCH_COUNT_MAX, HOP_COUNT_MAX, ID_LENGTH_MAX
from onibus.core.message import FORMATS, decode_properties
from onibus.core.path.admit import admit, hash_identities
from onibus.core.settings import LogSettings

Numbers = npt.NDArray[np.int64]

#: The time to live of a row that has none.
FOREVER = -1
#: Memory that a row takes without its columns, about: its hashes and numbers.
_KEPT_BYTES = 128
#: The MessagePack of a row has these bytes in addition: the head of an array of 20, and four empty
#: fields that only AMQP messages and dead-lettered messages of other entities use.
_ROW_HEAD = 8

_IDENTITY = pa.binary(16)
#: What admission made of the rows of a prepared batch.
_ADMITTED = (
    pa.field("identities", pa.list_(_IDENTITY), nullable=False),
    pa.field("lives_ms", pa.int64(), nullable=False),
    pa.field("size", pa.int64(), nullable=False),
)
#: A prepared batch as it is staged: its columns, and what admission made of them.
_STAGED = pa.schema([*SCHEMA, *_ADMITTED])
#: The columns that decide where rows go when they are published.
_PLACING = pa.schema(
    [SCHEMA.field(name) for name in ("session_id", "partition_key", "scheduled_enqueue_time_ms")]
)
#: The same of a batch whose columns are in separate blocks.
_STAGED_APART = pa.schema([*_PLACING, *_ADMITTED])


class Body(NamedTuple):
    """Rows of a batch that are staged as a block without an index (core/block.py)."""

    block: int
    rows: int
    size: int


class PreparedBatch:
    """Messages in columns that were admitted together."""

    __slots__ = (
        "_columns", "_placing", "bodies", "encoded", "hashes", "keys", "load", "owners", "rows",
        "sizes", "staged", "ttls",
    )  # fmt: skip

    def __init__(
        self,
        columns: pa.RecordBatch | None,
        hashes: list[bytes],
        owners: Sequence[int],
        ttls: Numbers,
        sizes: Numbers,
        keys: pa.Array | None = None,
    ) -> None:
        self._columns = columns
        self._placing: pa.RecordBatch | None = None
        #: its rows in order, if they are staged as blocks
        self.staged: list[Body] = []
        #: reads the columns of staged rows
        self.load: Callable[[], pa.RecordBatch] | None = None
        #: the hashes under which rows are duplicates, and the positions of the rows that have them
        self.hashes = hashes
        self.owners = owners
        #: how long each row lives, in milliseconds, or FOREVER
        self.ttls = ttls
        #: what each row counts towards the quota: as much as if it were sent alone
        self.sizes = sizes
        #: what decides the partition of each row (P3); null where any will do
        self.keys = keys
        #: (start, end) of a block's rows → its body, if it was encoded ahead
        self.bodies: dict[tuple[int, int], EncodedBody] = {}
        #: position → its row, if that was encoded ahead
        self.rows: dict[int, bytes] = {}
        #: what `encode` returns, if it was encoded ahead
        self.encoded: memoryview | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def size(self) -> int:
        return int(self.sizes.sum())

    @property
    def columns(self) -> pa.RecordBatch:
        """The rows by the schema of messages (core/arrow_block.py)."""
        if self._columns is None:
            assert self.load is not None
            self._columns = self.load()
        return self._columns

    @property
    def placing(self) -> pa.RecordBatch:
        """The columns that decide where rows go: their sessions, partition keys and times."""
        if self._placing is None:
            self._placing = self.columns.select(_PLACING.names)
        return self._placing

    @property
    def kept_bytes(self) -> int:
        """How many bytes of memory it takes, about."""
        return self.size if self._columns is not None else _KEPT_BYTES * len(self)

    def set_aside(self, staged: list[Body], read: Callable[[int], bytes], keep: bool) -> None:
        """Delete the staged rows; `keep` the columns if publishing needs them."""
        self.staged, self.load = staged, partial(_load, staged, read)
        self._placing = self.placing
        self.bodies, self.rows = {}, {}
        if not keep:
            self._columns = None

    def property_bytes(self) -> Numbers:
        """Return the size of each row's properties, which take the time when rows are read."""
        lengths = pc.binary_length(self.columns.column("properties"))
        found: Numbers = lengths.fill_null(0).to_numpy().astype(np.int64)
        return found

    def take(self, positions: Sequence[int]) -> PreparedBatch:
        """Return the rows at these positions, which rise."""
        chosen = np.asarray(positions, np.int64)
        hashes, owners = self.hashes, self.owners
        if isinstance(owners, range) and len(owners) == len(self):
            hashes, owners = [hashes[position] for position in positions], range(len(positions))
        else:
            places = {position: place for place, position in enumerate(positions)}
            kept = [at for at, owner in enumerate(owners) if owner in places]
            hashes, owners = [hashes[at] for at in kept], [places[owners[at]] for at in kept]
        taken = PreparedBatch(
            self.columns.take(pa.array(chosen)),
            hashes,
            owners,
            self.ttls[chosen],
            self.sizes[chosen],
        )
        if self.rows:
            rows = enumerate(map(self.rows.get, positions))
            taken.rows = {place: row for place, row in rows if row is not None}
        return taken

    def encode(self, apart: bool) -> memoryview:
        """Return it as bytes, to be stored without numbers until it is published (R6).

        `apart`: its columns are staged in blocks, and only what else publishing needs is returned.
        """
        offsets = np.searchsorted(np.asarray(self.owners), np.arange(len(self) + 1))
        hashes = pa.FixedSizeBinaryArray.from_buffers(
            _IDENTITY, len(self.hashes), [None, pa.py_buffer(b"".join(self.hashes))]
        )
        identities = pa.ListArray.from_arrays(offsets.astype(np.int32), hashes)
        given, schema = (self.placing, _STAGED_APART) if apart else (self.columns, _STAGED)
        columns = [*given.columns, identities, pa.array(self.ttls), pa.array(self.sizes)]
        return encode_stream(pa.RecordBatch.from_arrays(columns, schema=schema))


def decode_prepared(
    content: memoryview, staged: list[Body], read: Callable[[int], bytes]
) -> PreparedBatch:
    """Return what `PreparedBatch.encode` made bytes of; `read` returns a staged block."""
    try:
        with pa.ipc.open_stream(content) as reader:
            if not reader.schema.equals(_STAGED_APART if staged else _STAGED):
                raise Damaged("a staged batch does not have the columns of staged messages")
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise Damaged(f"a staged batch is not an Arrow stream: {error}") from error
    identities = batch.column("identities")
    hashes = identities.flatten().to_pylist()
    owners: Sequence[int] = pc.list_parent_indices(identities).to_pylist()
    prepared = PreparedBatch(
        None if staged else batch.select(SCHEMA.names),
        hashes,
        range(len(hashes)) if owners == list(range(batch.num_rows)) else owners,
        batch.column("lives_ms").to_numpy(),
        batch.column("size").to_numpy(),
    )
    if staged:
        prepared._placing = batch.select(_PLACING.names)
        prepared.set_aside(staged, read, keep=False)
    return prepared


def _load(staged: list[Body], read: Callable[[int], bytes]) -> pa.RecordBatch:
    """Return the columns of rows that are staged in blocks."""
    batches = [staged_columns(read(body.block)) for body in staged]
    return batches[0] if len(batches) == 1 else one_batch(pa.Table.from_batches(batches))


def admit_arrow(
    given: pa.RecordBatch | pa.Table, settings: LogSettings, secret: bytes
) -> PreparedBatch:
    """Return all rows prepared, or reject all of them."""
    batch = conform(one_batch(given))
    looked = _look(batch, settings)
    bad = looked.bad
    first = int(bad.argmax()) if bad.any() else len(bad)
    first = next(_bad_properties(batch, first), first)
    if first < len(bad):
        error = _refusal(batch, first, int(looked.sizes[first]), settings, secret)
        raise type(error)(f"row {first}: {error}")
    return _prepare(looked, settings, secret)


def admit_rows(
    batch: pa.RecordBatch, settings: LogSettings, secret: bytes | None
) -> tuple[PreparedBatch, dict[int, Refused]]:
    """Return the admitted rows, prepared, and why each of the others is rejected.

    The batch comes from `conform` and may have any number of rows. Without a secret nothing is
    hashed: the caller finds duplicates with `identity_columns`.
    """
    looked = _look(batch, settings)
    bad = looked.bad
    bad[list(_bad_properties(batch, len(bad)))] = True
    if not bad.any():
        return _prepare(looked, settings, secret), {}
    refused = {
        at: _refusal(batch, at, int(looked.sizes[at]), settings, secret or b"")
        for at in np.flatnonzero(bad).tolist()
    }
    good = batch.filter(pa.array(~bad))
    return _prepare(_look(good, settings), settings, secret), refused


class _Looked(NamedTuple):
    """A batch and the results of its checks."""

    batch: pa.RecordBatch
    #: with the ids that a FIFO queue assigns, and the hashes of its bodies
    filled: pa.RecordBatch
    contents: list[str] | None
    keys: pa.Array
    sizes: Numbers
    #: which rows break a rule that columns show
    bad: npt.NDArray[np.bool_]


def _look(batch: pa.RecordBatch, settings: LogSettings) -> _Looked:
    filled, contents = _fill_ids(batch, settings)
    keys = effective_keys(batch, settings)
    sizes = _sizes(filled)
    bad = _bad_rows(batch, settings) | (sizes > settings.max_message_bytes)
    if settings.requires_duplicate_detection and settings.enable_partitioning and not settings.fifo:
        bad |= _mask(pc.is_null(keys))
    return _Looked(batch, filled, contents, keys, sizes, bad)


def _prepare(looked: _Looked, settings: LogSettings, secret: bytes | None) -> PreparedBatch:
    filled, keys = looked.filled, looked.keys
    hashes: list[bytes] = []
    owners: Sequence[int] = ()
    if secret is not None:
        hashes, owners = _identities(filled, keys, looked.contents, settings, secret)
    ttls = _ttls(looked.batch, settings)
    return PreparedBatch(filled, hashes, owners, ttls, looked.sizes, keys)


def one_batch(given: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Return the given rows as one batch, or reject them."""
    if not isinstance(given, (pa.RecordBatch, pa.Table)):
        raise InvalidArgument(f"send a pyarrow RecordBatch or Table, not a {type(given).__name__}")
    if not 0 < given.num_rows <= BATCH_COUNT_MAX:
        raise InvalidArgument(f"the batch has {given.num_rows} rows: send 1 to {BATCH_COUNT_MAX}")
    if isinstance(given, pa.RecordBatch):
        return given
    try:
        given.validate(full=True)
        (batch,) = given.combine_chunks().to_batches()
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgument(f"cannot combine the table into one batch: {error}") from None
    return batch


def effective_keys(batch: pa.RecordBatch, settings: LogSettings) -> pa.Array:
    """Return what decides each row's partition (P3), null where any will do."""
    keys = [batch.column("session_id"), batch.column("partition_key")]
    if settings.requires_duplicate_detection:
        keys.append(batch.column("message_id"))
    return pc.coalesce(*keys)


# Rejected rows


def _bad_rows(batch: pa.RecordBatch, settings: LogSettings) -> npt.NDArray[np.bool_]:
    """Return which rows break a rule that columns show."""
    bad = np.zeros(batch.num_rows, bool)
    for name in ("message_id", "session_id", "partition_key"):
        column = batch.column(name)
        if column.null_count < len(column):
            bad |= _mask(pc.greater(pc.utf8_length(column), ID_LENGTH_MAX))
    bad |= _mask(pc.equal(batch.column("message_id"), ""))
    bad |= _mask(pc.not_equal(batch.column("session_id"), batch.column("partition_key")))
    if settings.requires_session:
        bad |= _mask(pc.is_null(batch.column("session_id")))
    if settings.fifo and not settings.content_based_deduplication:
        bad |= _mask(pc.is_null(batch.column("message_id")))
    for name, low, high in (
        ("time_to_live_ms", 1, 2**53),
        ("scheduled_enqueue_time_ms", 0, 2**53),
        ("enqueued_sequence_number", 0, 2**63 - 1),
        ("hop_count", 0, HOP_COUNT_MAX),
    ):
        column = batch.column(name)
        if column.null_count < len(column):
            bad |= _mask(pc.or_(pc.less(column, low), pc.greater(column, high)))
    known = pc.is_in(batch.column("format"), value_set=pa.array(FORMATS))
    return bad | ~_mask(known)


def _mask(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return where a column of truths is true."""
    mask: npt.NDArray[np.bool_] = column.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _bad_properties(batch: pa.RecordBatch, end: int) -> Iterator[int]:
    """Yield the rows before `end` whose properties would not come back."""
    column = batch.column("properties")
    if column.null_count == len(column):
        return
    good = set()
    for at, content in enumerate(column.slice(0, end).to_pylist()):
        if content is None or content in good:
            continue
        try:
            check_properties(decode_properties(content))
        except (*UNREADABLE, InvalidArgument):
            yield at
        else:
            good.add(content)


def _refusal(
    batch: pa.RecordBatch, at: int, size: int, settings: LogSettings, secret: bytes
) -> Refused:
    """Return the error with which `admit` rejects a row."""
    try:
        (message,) = messages_of(batch.slice(at, 1))
    except Damaged:
        return InvalidArgument("properties must be a MessagePack map")
    try:
        admit(message, settings, secret)
    except Refused as error:
        return error
    # Its properties are MessagePack that takes more bytes than ours would.
    return MessageTooLarge(
        f"the message has {size} bytes; the limit is {settings.max_message_bytes}"
    )


# What admission makes of the columns


def _fill_ids(
    batch: pa.RecordBatch, settings: LogSettings
) -> tuple[pa.RecordBatch, list[str] | None]:
    """Return the batch with the ids that a FIFO queue gives (F4), and the hashes of its bodies."""
    if not settings.content_based_deduplication:
        return batch, None
    contents = [sha256(body).hexdigest() for body in raw_values(batch.column("body"))]
    ids = pc.coalesce(batch.column("message_id"), pa.array(contents, pa.string()))
    at = SCHEMA.get_field_index("message_id")
    return batch.set_column(at, SCHEMA.field(at), ids), contents


def _identities(
    batch: pa.RecordBatch,
    keys: pa.Array,
    contents: list[str] | None,
    settings: LogSettings,
    secret: bytes,
) -> tuple[list[bytes], Sequence[int]]:
    """Return the hashes under which rows are duplicates (D3, F1 – F7), and whose they are."""
    columns = identity_columns(batch, keys, settings)
    if columns is None:
        return [], ()
    ids = raw_values(columns[0])
    scopes: Sequence[bytes | None] | None = None
    if columns[1] is not None:
        scopes = raw_values(columns[1])
    if settings.content_matches_any_id and contents is not None:
        return _twofold_identities(ids, scopes, contents, secret)
    if None not in ids:
        return hash_identities(secret, ids, scopes), range(len(ids))
    owners = [at for at, name in enumerate(ids) if name is not None]
    scopes = None if scopes is None else [scopes[at] for at in owners]
    return hash_identities(secret, [ids[at] for at in owners], scopes), owners


def identity_columns(
    batch: pa.RecordBatch, keys: pa.Array, settings: LogSettings
) -> tuple[pa.Array, pa.Array | None] | None:
    """Return the ids and the scope of each; None if nothing is a duplicate (D3)."""
    ids = batch.column("message_id")
    if settings.fifo:
        grouped = settings.deduplication_scope == "messageGroup"
        return ids, batch.column("session_id") if grouped else None
    if settings.requires_duplicate_detection:
        return ids, keys if settings.enable_partitioning else None
    return None


def _twofold_identities(
    ids: list[bytes], scopes: Sequence[bytes | None] | None, contents: list[str], secret: bytes
) -> tuple[list[bytes], Sequence[int]]:
    """Return the same where a row's id and its content are both identities (F7)."""
    names: list[bytes] = []
    owners: list[int] = []
    for at, (name, content) in enumerate(zip(ids, contents, strict=True)):
        both = [name] if name == content.encode() else [name, content.encode()]
        names += both
        owners += [at] * len(both)
    scopes = None if scopes is None else [scopes[at] for at in owners]
    return hash_identities(secret, names, scopes), owners


def _ttls(batch: pa.RecordBatch, settings: LogSettings) -> Numbers:
    """Return the time to live of each row: its own or its entity's, whichever is shorter (B2)."""
    own, default = batch.column("time_to_live_ms"), settings.default_time_to_live_ms
    lives = own if default is None else pc.min_element_wise(own, default)
    ttls: Numbers = lives.fill_null(FOREVER).to_numpy(zero_copy_only=False)
    return ttls


def raw_values(column: pa.Array) -> list[Any]:
    """Return the bytes of each value of a string or binary column; None for a null."""
    _, offsets, data = column.buffers()
    if data is None:
        return [None if null else b"" for null in column.is_null().to_pylist()]
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).tolist()
    view = memoryview(data)[ends[0] : ends[-1]].tobytes()
    start = ends[0]
    values: list[Any] = [view[first - start : last - start] for first, last in pairwise(ends)]
    if column.null_count:
        for at in np.flatnonzero(_mask(column.is_null())).tolist():
            values[at] = None
    return values


def _sizes(batch: pa.RecordBatch) -> Numbers:
    """Return how many bytes each row has when it is encoded alone (core/message.py)."""
    sizes = np.full(batch.num_rows, _ROW_HEAD, np.int64)
    for field, column in zip(SCHEMA, batch.columns, strict=True):
        if column.null_count == len(column):
            sizes += 1
            continue
        if field.type == pa.int64():
            lengths = _int_sizes(column.fill_null(0).to_numpy())
        else:
            counts = pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
            lengths = counts
            if field.name != "properties":
                lengths = counts + _head_sizes(counts, field.type == pa.string())
        sizes += np.where(_mask(pc.is_null(column)), 1, lengths) if column.null_count else lengths
    return sizes


def _head_sizes(counts: Numbers, text: bool) -> Numbers:
    """Return how many bytes MessagePack puts before strings, or bytes, of these lengths."""
    heads = np.where(counts < 2**8, 2, np.where(counts < 2**16, 3, 5))
    return np.where(counts < 32, 1, heads) if text else heads


def _int_sizes(values: Numbers) -> Numbers:
    """Return how many bytes integers take as MessagePack; negative ones are rejected elsewhere."""
    small, large = np.where(values < 2**8, 2, 3), np.where(values < 2**32, 5, 9)
    return np.where(values < 2**7, 1, np.where(values < 2**16, small, large))
