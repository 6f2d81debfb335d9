"""The Delta log of a table: the only list of its files.

    <table>/_delta_log/<version>.json                 what one commit added and removed
    <table>/_delta_log/<version>.checkpoint.parquet   all of it up to a version
    <table>/_delta_log/_last_checkpoint               which checkpoint a reader begins with

The format is Delta's, reader version 1 and writer version 2, without partition columns, so that any
program that reads Delta tables can read these. We write commits without a library for one reason:
the broker forgets rows once the lake has them, and no library syncs a commit to disk. A commit
creates the file of the next version, which one of several writers can do. Commits and checkpoints
have a digest of their actions and of their place, so that one that was changed or moved is noticed.

Only Onibus writes these tables. A commit of another program that changed files or columns makes the
table unusable for a capture, which says so before it writes.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from onibus.operation.version import own_version
from onibus.spark import delta_schema
from onibus.spark.lake_files import LakeBusy, LakeChanged, LakeDamaged, LakeFailed, LakeFiles
from onibus.spark.lake_manifest import FileRow

ENGINE = "onibus"
LOG = "_delta_log"
#: The columns of each table whose statistics a commit has; no file lacks them.
STATISTICS = {
    "messages": ("sequence_number", "partition", "enqueued_time"),
    "outcomes": ("number", "partition", "sequence_number", "time"),
    "errors": ("sequence_number", "partition", "enqueued_time"),
}
#: The ends of the ids of transactions that retention commits: where a partition starts since, and
#: the latest time of removed rows.
_START, _LATEST = "-start", "-latest"
#: A writer makes a checkpoint each time after this number of commits.
CHECKPOINT_EACH = 50
#: A checkpoint with more files waits for one commit per this number of files.
_FILES_A_COMMIT = 20

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_FILE = re.compile(r"(\d{4}-\d\d-\d\d)-p(\d{2,})-(\d{19})-(\d{19})-([0-9a-f]{40})\.parquet")
_STARTED = re.compile(rf".*-(\d+){_START}")
_DIGEST_DIGITS = 32
#: The field of a commit, and of a checkpoint's metadata, that has the digest.
_DIGEST = "onibusDigest"

_MAP = pa.map_(pa.string(), pa.string())
#: What a checkpoint has, one row for each action.
_ACTIONS = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(), "partitionValues": _MAP, "size": pa.int64(),
                "modificationTime": pa.int64(), "dataChange": pa.bool_(), "stats": pa.string(),
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(), "partitionValues": _MAP, "size": pa.int64(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(), "name": pa.string(), "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _MAP}),
                "schemaString": pa.string(), "partitionColumns": pa.list_(pa.string()),
                "configuration": _MAP, "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
    }
)  # fmt: skip
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}


def attempt_of(digest: str) -> str:
    """Return the last part of a file's name: the digest of its bytes, and who wrote them."""
    return digest[:_DIGEST_DIGITS] + uuid4().hex[:8]


def path_of(row: FileRow) -> str:
    """Return the name of a file in its table's folder."""
    numbers = f"{row.first:019}-{row.last:019}"
    return f"{row.date}-p{row.partition:02}-{numbers}-{row.attempt}.parquet"


def row_of(path: str, size: int, stats: str) -> FileRow | None:
    """Return what the name and the statistics of a file say; None if Onibus gives no such name."""
    found = _FILE.fullmatch(path)
    if found is None:
        return None
    date, partition, first, last, attempt = found.groups()
    digest, rows = attempt[:_DIGEST_DIGITS], delta_schema.rows_of(stats)
    return FileRow(date, int(partition), int(first), int(last), rows, size, digest, attempt, stats)


def retained(identity: str, starts: Mapping[int, int], latest_ms: int | None) -> dict[str, int]:
    """Return the transactions of a commit that removes rows: the lake's new starts.

    `latest_ms` is the latest time of the removed rows.
    """
    found = {f"{identity}-{partition}{_START}": first for partition, first in starts.items()}
    return found if latest_ms is None else {**found, f"{identity}{_LATEST}": latest_ms}


class DeltaLog:
    """The log of one table as it was when it was loaded, and as this writer has continued it."""

    def __init__(self, store: LakeFiles, table: str) -> None:
        self._store = store
        self._table = table
        self._load()

    def _begin(self) -> None:
        #: -1 if the table does not exist
        self.version = -1
        self._checkpoint = -1
        self._protocol: dict[str, Any] = {}
        self._meta: dict[str, Any] = {}
        #: by path: the actions that added files which count, and removed others
        self._adds: dict[str, dict[str, Any]] = {}
        self._removes: dict[str, dict[str, Any]] = {}
        self._transactions: dict[str, dict[str, Any]] = {}
        #: whether our last commit had a digest: each later one has one
        self._has_digests = False
        #: empty, or which commit another program made
        self._foreign = ""

    @property
    def address(self) -> str:
        """Where programs find the table."""
        return f"{self._store.address}/{self._table}"

    # --- what the table has -----------------------------------------------------------------------

    @property
    def schema(self) -> str:
        """The table's columns, as Delta writes them; empty if it does not exist."""
        return str(self._meta.get("schemaString", ""))

    def files(self) -> list[FileRow]:
        """Return the files that together have every captured row once, in order."""
        found = []
        for path, add in self._adds.items():
            row = row_of(path, add["size"], add.get("stats") or "")
            if row is None:
                raise self._changed(f"it lists {path}")
            found.append(row)
        return sorted(found)

    def reached(self) -> dict[int, int]:
        """Return the last number of each partition that was ever committed."""
        found: dict[int, int] = {}
        for name, one in self._transactions.items():
            partition = name.rpartition("-")[2]
            if partition.isdigit():
                at = int(partition)
                found[at] = max(found.get(at, 0), one["version"])
        return found

    def starts(self) -> dict[int, int]:
        """Return the first number that retention left in each partition that it changed."""
        found: dict[int, int] = {}
        for name, one in self._transactions.items():
            if start := _STARTED.fullmatch(name):
                at = int(start[1])
                found[at] = max(found.get(at, 0), one["version"])
        return found

    def latest_ms(self, column: str) -> int | None:
        """Return the latest time of a column, in milliseconds; None if no file says it.

        It includes the rows that retention removed.
        """
        told = [delta_schema.latest_ms(add.get("stats"), column) for add in self._adds.values()]
        told += [
            one["version"] for name, one in self._transactions.items() if name.endswith(_LATEST)
        ]
        return max((ms for ms in told if ms is not None), default=None)

    def has_removed(self, before_ms: float) -> bool:
        """Return whether files that a commit removed before a time may still exist."""
        return any(one["deletionTimestamp"] < before_ms for one in self._removes.values())

    def check(self) -> None:
        """Raise if another program has changed the table, or it needs what we do not know."""
        if self._foreign:
            raise self._changed(self._foreign)
        if self.version >= 0 and not (self._protocol and delta_schema.is_schema(self.schema)):
            raise self._damaged(f"{self._table}/{LOG}")
        needed = {**_PROTOCOL, **self._protocol}
        if self.version >= 0 and needed != _PROTOCOL:
            raise self._changed(f"it needs the Delta features {needed}")

    def _changed(self, how: str) -> LakeChanged:
        return LakeChanged(
            f"another program has changed the table {self.address}: {how}. Restore its folder "
            f"{LOG} to an earlier version, or capture into another lake"
        )

    def is_kept(self, path: str, before_ms: float) -> bool:
        """Return whether readers may need a file: it counts, or was removed after that time."""
        removed = self._removes.get(path)
        return path in self._adds or (
            removed is not None and removed["deletionTimestamp"] >= before_ms
        )

    # --- loading ----------------------------------------------------------------------------------

    def _load(self) -> None:
        """Load the newest version, again if a capture removed old files at that moment."""
        there = self._store.sizes(f"{self._table}/{LOG}")
        while True:
            self._begin()
            try:
                self._load_from(there)
                return
            except LakeDamaged:
                before, there = there, self._store.sizes(f"{self._table}/{LOG}")
                if there == before:
                    raise

    def _load_from(self, there: Collection[str]) -> None:
        names = {name.rpartition("/")[2]: name for name in there}
        commits = {int(one[1]): names[one[0]] for one in map(_COMMIT.fullmatch, names) if one}
        checkpoints = {
            int(one[1]): names[one[0]] for one in map(_CHECKPOINT.fullmatch, names) if one
        }
        if checkpoints and max(checkpoints) > max(commits, default=-1):
            raise self._missing(max(commits, default=-1) + 1)
        if checkpoints:
            self.version = self._checkpoint = max(checkpoints)
            for action in self._read_checkpoint(checkpoints[self._checkpoint]):
                self._apply(action)
        following = sorted(version for version in commits if version > self._checkpoint)
        for version in following:
            if version != self.version + 1:
                raise self._missing(self.version + 1)
            self._apply_commit(version, commits[version])
            self.version = version

    def _missing(self, version: int) -> LakeDamaged:
        return LakeDamaged(
            f"{self.address}/{LOG} has no version {version}: restore the folder from a backup of "
            "the lake"
        )

    def _read_checkpoint(self, name: str) -> list[dict[str, Any]]:
        content = self._store.read(name)
        try:
            table = pq.ParquetFile(pa.BufferReader(content or b"")).read()
            columns = [one for one in _ACTIONS.names if one in table.column_names]
            actions = _actions_of(table.select(columns))
        except (pa.ArrowException, OSError, ValueError):
            raise self._damaged(name) from None
        told = (table.schema.metadata or {}).get(_DIGEST.encode())
        # Other programs may write checkpoints, without a digest.
        if told is not None and told.decode("ascii", "replace") != _digest(name, actions):
            raise self._damaged(name)
        return actions

    def _read_commit(self, version: int, name: str, content: bytes) -> list[dict[str, Any]]:
        """Return the actions of a commit; note one that another program made."""
        try:
            actions = [json.loads(line) for line in content.splitlines()]
            engine = [one["commitInfo"] for one in actions if "commitInfo" in one]
            told = [one.pop(_DIGEST) for one in engine if _DIGEST in one]
            ours = any(str(one.get("engineInfo", "")).startswith(f"{ENGINE}/") for one in engine)
        except (ValueError, TypeError, AttributeError):
            raise self._damaged(name) from None
        wanted = [_digest(name, actions)] if told or (ours and self._has_digests) else []
        if not actions or told != wanted:
            raise self._damaged(name)
        self._has_digests = self._has_digests or bool(told)
        if not ours and any(key != "commitInfo" for one in actions for key in one):
            what = next((one.get("operation") for one in engine), None) or "an unknown operation"
            self._foreign = self._foreign or f"version {version} is {what}"
        return actions

    def _apply_commit(self, version: int, name: str) -> None:
        actions = self._read_commit(version, name, self._store.read(name) or b"")
        try:
            for action in actions:
                self._apply(action)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._damaged(name) from None

    def check_history(self) -> None:
        """Raise if a commit was changed, also before the checkpoint: earlier versions show it."""
        self._has_digests = False
        for name in sorted(self._store.sizes(f"{self._table}/{LOG}")):
            found = _COMMIT.fullmatch(name.rpartition("/")[2])
            content = self._store.read(name) if found else None
            # A capture may have removed it since.
            if found and content is not None:
                self._read_commit(int(found[1]), name, content)
        self.check()

    def _damaged(self, name: str) -> LakeDamaged:
        return LakeDamaged(
            f"{self._store.address}/{name} is damaged: restore it from a backup of the lake"
        )

    def _apply(self, action: Mapping[str, Any]) -> None:
        for kind, told in action.items():
            if kind == "add":
                self._adds[told["path"]] = told
                self._removes.pop(told["path"], None)
            elif kind == "remove":
                self._adds.pop(told["path"], None)
                self._removes[told["path"]] = told
            elif kind == "txn":
                self._transactions[told["appId"]] = told
            elif kind == "metaData":
                self._meta = told
            elif kind == "protocol":
                self._protocol = told

    # --- committing -------------------------------------------------------------------------------

    def commit(
        self,
        operation: str,
        add: Sequence[FileRow] = (),
        remove: Sequence[FileRow] = (),
        reached: Mapping[str, int] | None = None,
        *,
        same_rows: bool = False,
        columns: str = "",
    ) -> None:
        """Make the next version, atomically; when this returns it is on disk.

        `reached` has the last number of each application id: one for a partition of a lake, and
        those of `retained`. With
        `same_rows`, the files have the rows of those that the commit removes. `columns` replace
        those of the table, as Delta writes them.
        """
        self.check()
        now = int(time.time() * 1_000)
        actions: list[dict[str, Any]] = [
            {
                "commitInfo": {
                    "timestamp": now, "operation": operation, "operationParameters": {},
                    "engineInfo": f"{ENGINE}/{own_version()}",
                }
            }
        ]  # fmt: skip
        actions += self._declared(columns, [row.schema for row in add if row.schema], now)
        changes = not same_rows
        for name, number in (reached or {}).items():
            actions.append({"txn": {"appId": name, "version": number, "lastUpdated": now}})
        for row in remove:
            actions.append({"remove": self._removed(row, now, changes)})
        for row in add:
            if path_of(row) in self._adds:
                raise LakeFailed(f"{self.address}/{path_of(row)} is registered: capture again")
            actions.append({"add": _added(row, now, changes)})
        before = self._name(self.version)
        if self.version >= 0 and not self._store.exists(before):
            raise LakeDamaged(
                f"{self._store.address}/{before} is gone: the folder was deleted, or replaced by "
                "an earlier copy, while a capture wrote it. Restore it, then capture again"
            )
        following = self._put_commit(actions)
        self.version = following
        for action in actions:
            self._apply(action)
        # A large checkpoint is made less often: commits take the same time on average.
        files = len(self._adds) + len(self._removes)
        if following - self._checkpoint >= max(CHECKPOINT_EACH, files // _FILES_A_COMMIT):
            self.checkpoint()

    def _put_commit(self, actions: list[dict[str, Any]]) -> int:
        """Write actions as the next version; return it."""
        following = self.version + 1
        while True:
            name = self._name(following)
            actions[0]["commitInfo"].pop(_DIGEST, None)
            actions[0]["commitInfo"][_DIGEST] = _digest(name, actions)
            content = "".join(json.dumps(one) + "\n" for one in actions).encode()
            if self._store.put_new(name, content, uuid4().hex):
                return following
            if not self._changes_nothing(following):
                raise LakeBusy(
                    f"another process has committed version {following} of {self.address}: "
                    "changes of this writer since its last commit do not count"
                )
            following += 1

    def _changes_nothing(self, version: int) -> bool:
        """Return whether a commit of another program is about upkeep only, such as a vacuum."""
        lines = (self._store.read(self._name(version)) or b"").splitlines()
        try:
            return bool(lines) and all(set(json.loads(one)) == {"commitInfo"} for one in lines)
        except (ValueError, TypeError):
            return False

    def _name(self, version: int) -> str:
        return f"{self._table}/{LOG}/{version:020}.json"

    @property
    def configured(self) -> bool:
        """Whether the table names the columns that have statistics."""
        return bool(self._meta.get("configuration") == self._configuration)

    @property
    def _configuration(self) -> dict[str, str]:
        # Without it deltalake takes a missing statistic for a column of nulls, and skips the file.
        return {"delta.dataSkippingStatsColumns": ",".join(STATISTICS[self._table])}

    def _declared(self, columns: str, schemas: Sequence[str], now: int) -> list[dict[str, Any]]:
        """Return what a commit says of the table: all of it, or what is new."""
        schema = columns or self.schema
        for one in dict.fromkeys(schemas):
            schema = delta_schema.evolved(schema, one, self.address)
        if self.version < 0:
            meta: dict[str, Any] = {
                "id": str(uuid4()), "format": {"provider": "parquet", "options": {}},
                "partitionColumns": [], "createdTime": now,
            }  # fmt: skip
        elif schema == self.schema and self.configured:
            return []
        else:
            meta = self._meta
        protocol = [{"protocol": _PROTOCOL}] if self.version < 0 else []
        told = {"schemaString": schema, "configuration": self._configuration}
        return [*protocol, {"metaData": meta | told}]

    def _removed(self, row: FileRow, now: int, changes: bool) -> dict[str, Any]:
        return {
            "path": path_of(row), "deletionTimestamp": now, "dataChange": changes,
            "extendedFileMetadata": True, "partitionValues": {}, "size": row.size,
        }  # fmt: skip

    # --- upkeep -----------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write all actions up to this version to one file, with which readers begin."""
        actions: list[dict[str, Any]] = [{"protocol": self._protocol}, {"metaData": self._meta}]
        actions += [{"txn": one} for one in self._transactions.values()]
        actions += [{"add": one} for one in self._adds.values()]
        actions += [{"remove": one} for one in self._removes.values()]
        name = f"{self._table}/{LOG}/{self.version:020}.checkpoint.parquet"
        table, sink = pa.Table.from_pylist(actions, _ACTIONS), pa.BufferOutputStream()
        table = table.replace_schema_metadata({_DIGEST: _digest(name, _actions_of(table))})
        pq.write_table(table, sink, compression="zstd")
        # Another writer may have made it: both have the same actions.
        self._store.put_new(name, sink.getvalue(), uuid4().hex)
        last = {"version": self.version, "size": len(actions)}
        content = json.dumps(last).encode()
        self._store.put(f"{self._table}/{LOG}/_last_checkpoint", content, uuid4().hex)
        self._checkpoint = self.version

    def clean(self, before_ms: float) -> None:
        """Forget removed files and commits from before a time; a checkpoint has the rest."""
        expired = [
            path for path, one in self._removes.items() if one["deletionTimestamp"] < before_ms
        ]
        for path in expired:
            del self._removes[path]
        if expired:
            self.checkpoint()
        for name, changed_ms in self._store.times(f"{self._table}/{LOG}").items():
            last = name.rpartition("/")[2]
            found = _COMMIT.fullmatch(last) or _CHECKPOINT.fullmatch(last)
            if found and int(found[1]) < self._checkpoint and changed_ms < before_ms:
                self._store.delete(name)


def _added(row: FileRow, now: int, changes: bool) -> dict[str, Any]:
    return {
        "path": path_of(row), "partitionValues": {}, "size": row.size, "modificationTime": now,
        "dataChange": changes, "stats": row.stats,
    }  # fmt: skip


def _digest(name: str, actions: Sequence[Mapping[str, Any]]) -> str:
    return hashlib.sha256(json.dumps([name, actions], sort_keys=True).encode()).hexdigest()


def _actions_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the actions of a checkpoint."""
    return [
        {kind: _given(action) for kind, action in row.items() if action is not None}
        for row in table.to_pylist(maps_as_pydicts="strict")
    ]


def _given(action: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in action.items() if value is not None}
