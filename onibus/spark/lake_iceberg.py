"""Iceberg tables of a lake: made of its Delta tables, with the same files.

    <lake>/<entity>/_iceberg/<table>/metadata/    what Iceberg writes of a table

The Delta log stays the only list of files. After each of its commits, one Iceberg snapshot adds the
files that the table lacks and removes those that Delta has removed; `onibus.delta-version` of the
snapshot is the version of the Delta log. A capture that was cut off between the two left a snapshot
of an earlier version: the next one compares the files and catches up. So each snapshot has the rows
of one Delta version, each once.

Metadata is outside the folder of data: Delta's vacuum deletes what it does not know there. A file
stays as long as a snapshot that was current within the last hour names it (`needed`).

Paths are absolute. `register` recreates the tables of a lake that was moved.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from onibus.spark.delta_log import STATISTICS, DeltaLog, path_of
from onibus.spark.iceberg_catalog import DELTA, address_of, check_place, open_catalog, plainly
from onibus.spark.lake import KEEP_MS, TABLES, TIMES, Lake
from onibus.spark.lake_files import LakeChanged, LakeFailed

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

    from onibus.spark.lake_manifest import Iceberg

FOLDER = "_iceberg"
#: What we say of a snapshot, of an entity's tables, and of a table.
VERSION = "onibus.delta-version"
_LAKE = "onibus.lake"
_DATA = "onibus.data"
_PROPERTIES = {
    # Delta has the same files: programs that drop a table or expire snapshots must not delete them.
    "gc.enabled": "false",
    # A commit that does not follow the snapshot that we saw fails: it is compared again.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_METRICS = "write.metadata.metrics"
_NAME_MAPPING = "schema.name-mapping.default"


class IcebergTables:
    """The Iceberg tables of one entity's part of a lake, in an open catalog."""

    def __init__(self, lake: Lake, catalog: str) -> None:
        check_place(lake.place, catalog)
        self._lake = lake
        self.catalog = catalog
        self._address = address_of(lake.place, catalog)
        self._identity = lake.identity()
        #: by table: the last snapshot that we saw, and its files by their addresses
        self._seen: dict[str, tuple[int, dict[str, DataFile]]] = {}

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._lake.place, self.catalog)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *given: object) -> None:
        if "_catalog" in self.__dict__:
            self._catalog.close()

    @property
    def _namespace(self) -> str:
        # Namespaces have parts, which are not empty, between dots.
        return self._lake.folder.replace("..", ".%2E")

    def name(self, table: str) -> str:
        """Return the name of a table in its catalog."""
        return f"{self._namespace}.{table}"

    def _data(self, table: str) -> str:
        """Return the folder of a table's files as Iceberg names it."""
        address = self._lake.address(table)
        return address if "://" in address else f"file://{address}"

    # --- checks -----------------------------------------------------------------------------------

    def check(self, new_identity: bool = False) -> None:
        """Raise if the catalog cannot be used, or has tables that are not this lake's.

        This writes nothing. The lake gets a `new_identity` if that is wanted.
        """
        if not self.catalog and not self._is_made:
            return
        self.check_owner(new_identity)
        for table in TABLES:
            self._check(table, self._load(table), self._lake.log(table))

    @property
    def _is_made(self) -> bool:
        return os.path.exists(self._address)

    def check_owner(self, new_identity: bool = False) -> None:
        """Raise if the catalog has tables of that name which this lake did not make."""
        from pyiceberg.exceptions import NoSuchNamespaceError

        if not self.catalog:
            # It is in the lake, and goes where the lake goes.
            return
        with self._plainly():
            try:
                told = self._catalog.load_namespace_properties((self._namespace,))
            except NoSuchNamespaceError:
                return
        if new_identity or self._identity is None or told.get(_LAKE) != self._identity:
            raise LakeFailed(
                f"the namespace {self._namespace} of the Iceberg catalog {self._address} is not of "
                "this lake: use another catalog, or drop that namespace"
            )

    def _check(self, table: str, found: Table | None, log: DeltaLog) -> None:
        if found is None:
            return
        data = found.metadata.properties.get(_DATA)
        if data is None:
            raise self._changed(table, "it is another table")
        if data != self._data(table):
            raise self._moved(table, data)
        snapshot = found.current_snapshot()
        if snapshot is not None and _version_of(snapshot) is None:
            what = snapshot.summary.operation.value if snapshot.summary else "unknown"
            raise self._changed(table, f"snapshot {snapshot.snapshot_id} is {what}")
        if _NAME_MAPPING not in found.metadata.properties:
            # Without it no reader finds the columns of the files, which have no numbers.
            raise self._changed(table, f"it lacks the property {_NAME_MAPPING}")
        spec = [(one.name, str(one.transform)) for one in found.spec().fields]
        if spec != [(_day(table), "day")]:
            raise self._changed(table, "its partitions are different")
        self._check_columns(table, found, log.schema)

    def _moved(self, table: str, where: str) -> LakeFailed:
        return LakeFailed(
            f"the Iceberg table {self.name(table)} of {self._address} is in {where}, and this lake "
            f"is {self._lake.store.address}: run onibus pipeline register if the lake was moved"
        )

    def _check_columns(self, table: str, found: Table, schema: str) -> None:
        from onibus.spark.iceberg_columns import fits, iceberg_schema, plain

        wanted = plain(iceberg_schema(schema)) if schema else {}
        there = plain(found.schema())
        if not fits(there, wanted):
            others = [
                one for one in there if one not in wanted or not fits(there[one], wanted[one])
            ]
            raise self._changed(table, f"the column {others[0]!r} is not that of the lake")

    def _changed(self, table: str, how: str) -> LakeChanged:
        return LakeChanged(
            f"another program has changed the Iceberg table {self.name(table)} of "
            f"{self._address}: {how}. Run onibus pipeline register, which makes it again"
        )

    # --- following the Delta log ------------------------------------------------------------------

    def catch_up(self, logs: Mapping[str, DeltaLog]) -> None:
        """Make each table as the Delta log has it now; raise if one is not this lake's."""
        self._identity = self._lake.identity()
        self.check_owner()
        for table, log in logs.items():
            at = self.follow(table, log)
            if at > log.version:
                raise LakeFailed(
                    f"the Iceberg table {self.name(table)} has version {at} of {log.address}, "
                    f"which has version {log.version}: the lake was restored to an earlier "
                    "state. Run onibus pipeline register"
                )

    def follow(self, table: str, log: DeltaLog) -> int:
        """Add a snapshot with the files that the Delta log has now, unless there is one.

        Return the Delta version of the previous snapshot; -1 if it had none.
        """
        if log.version < 0 or not log.schema:
            return -1
        found = self._load(table)
        self._check(table, found, log)
        with self._plainly():
            if found is None:
                self._create(table, log)
                return -1
            at = _version_of(found.current_snapshot())
            if at is None or at < log.version:
                with found.transaction() as transaction:
                    if not _properties(table).items() <= found.properties.items():
                        transaction.set_properties(_properties(table))
                    self._evolve(transaction, log)
                    files = self._replace(transaction, table, log, self._files(table, found))
                self._remember(table, found, files)
        return -1 if at is None else at

    def _create(self, table: str, log: DeltaLog) -> None:
        """Make a table with all of its files, by one commit."""
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import DayTransform

        from onibus.spark.iceberg_columns import iceberg_schema

        self._drop(table)
        told = {_LAKE: str(self._identity)}
        self._catalog.create_namespace_if_not_exists((self._namespace,), told)
        schema = iceberg_schema(log.schema)
        time = schema.find_field(TIMES[table])
        spec = PartitionSpec(PartitionField(time.field_id, 1000, DayTransform(), _day(table)))
        location = self._data(table).removesuffix(table) + f"{FOLDER}/{table}"
        transaction = self._catalog.create_table_transaction(
            self._identifier(table),
            schema,
            location=location,
            partition_spec=spec,
            properties={"format-version": "2", _DATA: self._data(table)} | _properties(table),
        )
        with transaction:
            # Files have names of columns, and no numbers.
            names = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({_NAME_MAPPING: names})
            self._replace(transaction, table, log, {})

    def _evolve(self, transaction: Transaction, log: DeltaLog) -> None:
        from onibus.spark.iceberg_columns import iceberg_schema, plain

        wanted = iceberg_schema(log.schema)
        if plain(transaction.table_metadata.schema()) != plain(wanted):
            with transaction.update_schema() as update:
                update.union_by_name(wanted)

    def _replace(
        self, transaction: Transaction, table: str, log: DeltaLog, there: Mapping[str, DataFile]
    ) -> dict[str, DataFile]:
        """Commit a snapshot with the files of a Delta log instead of the present ones."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        wanted = {f"{self._data(table)}/{path_of(row)}" for row in log.files()}
        added, removed = sorted(wanted - there.keys()), sorted(there.keys() - wanted)
        files = {address: one for address, one in there.items() if address in wanted}
        if not added and not removed:
            return files
        told = transaction.update_snapshot(snapshot_properties={VERSION: str(log.version)})
        with told.overwrite() if removed else told.merge_append() as snapshot:
            for address in removed:
                snapshot.delete_data_file(there[address])
            for address in added:
                io, metadata = transaction._table.io, transaction.table_metadata
                files[address] = parquet_file_to_data_file(io, metadata, address)
                files[address].spec_id = metadata.default_spec_id
                snapshot.append_data_file(files[address])
        return files

    def _files(self, table: str, found: Table) -> dict[str, DataFile]:
        """Return the files of a table's current snapshot, by their addresses."""
        snapshot = found.current_snapshot()
        if snapshot is None:
            return {}
        if table not in self._seen or self._seen[table][0] != snapshot.snapshot_id:
            self._remember(table, found, _files_of(found, snapshot))
        return self._seen[table][1]

    def _remember(self, table: str, found: Table, files: dict[str, DataFile]) -> None:
        snapshot = found.current_snapshot()
        if snapshot is not None:
            self._seen[table] = snapshot.snapshot_id, files

    def _identifier(self, table: str) -> tuple[str, str]:
        return self._namespace, table

    def _load(self, table: str) -> Table | None:
        """Return a table; None if the catalog has none, or has to make it again."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError

        with self._plainly():
            try:
                found = self._catalog.load_table(self._identifier(table))
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            except (FileNotFoundError, ValidationError) as error:
                if self.catalog:
                    raise LakeFailed(
                        f"the metadata of the Iceberg table {self.name(table)} of {self._address} "
                        f"is missing or damaged: {str(error).partition('. ')[0]}. Restore it, or "
                        "run onibus pipeline register if the lake was moved or the metadata is lost"
                    ) from None
                # The lake was moved, or power failed before the file was on disk.
                return None
        data = found.metadata.properties.get(_DATA)
        moved = not self.catalog and data not in (None, self._data(table))
        return None if moved else found

    # --- upkeep -----------------------------------------------------------------------------------

    def needed(self, table: str, now_ms: float) -> Collection[str]:
        """Return the names of files that a snapshot of the last hour needs."""
        found = self._load(table)
        if found is None:
            return ()
        with self._plainly():
            start, kept = len(self._data(table)) + 1, _kept(found, now_ms - KEEP_MS)
            # Files of later snapshots count in the Delta log, or did within the hour.
            wanted = {kept[0], *_heads(found)} if kept else set()
            snapshots = filter(None, map(found.snapshot_by_id, wanted))
            return {address[start:] for one in snapshots for address in _files_of(found, one)}

    def tidy(self, now_ms: float) -> None:
        """Forget snapshots that were replaced an hour ago, and delete their metadata."""
        before = now_ms - KEEP_MS
        for table in TABLES:
            found = self._load(table)
            if found is None:
                continue
            with self._plainly():
                kept = {*_kept(found, before), *_heads(found)}
                over = [one for one in found.snapshots() if one.snapshot_id not in kept]
                if over:
                    found.maintenance.expire_snapshots().by_ids(
                        [one.snapshot_id for one in over]
                    ).commit()
            self._delete_metadata(table, found, before)

    def _delete_metadata(self, table: str, found: Table, before: float) -> None:
        """Delete old files that no snapshot names."""
        folder = f"{FOLDER}/{table}/metadata"
        there = self._lake.store.times(folder)
        old = [name for name, changed_ms in there.items() if changed_ms < before]
        if not old:
            return
        with self._plainly():
            named = {found.metadata_location}
            named |= {one.metadata_file for one in found.metadata.metadata_log}
            for snapshot in found.snapshots():
                named.add(snapshot.manifest_list)
                named |= {one.manifest_path for one in snapshot.manifests(found.io)}
        last = {one.rpartition("/")[2] for one in named}
        for name in old:
            if name.rpartition("/")[2] not in last:
                self._lake.store.delete(name)

    def drop(self) -> None:
        """Have the catalog forget the tables; their files stay, as Delta tables have them."""
        if self.catalog or self._is_made:
            with self._plainly():
                for table in TABLES:
                    self._drop(table)
        self._lake.store.delete_folder(FOLDER)

    def _drop(self, table: str) -> None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with suppress(NoSuchTableError, NoSuchNamespaceError):
            self._catalog.drop_table(self._identifier(table))

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        with plainly(self._address):
            yield


def tables_of_lake(lake: Lake, table: str | None, catalog: str | None) -> IcebergTables | None:
    """Return the Iceberg tables that a capture writes: those it asks for, else those recorded."""
    stored = lake.stored_manifest()
    recorded = None if stored is None else stored.iceberg
    if table == DELTA or (table is None and recorded is None):
        return None
    if catalog is None:
        catalog = "" if recorded is None else recorded.catalog
    return IcebergTables(lake, catalog)


def forget_own(lake: Lake, recorded: Iceberg) -> None:
    """Have the catalog in a lake forget its tables, if they were there: other ones follow now."""
    if not recorded.catalog:
        with IcebergTables(lake, "") as own:
            own.drop()


def _properties(table: str) -> dict[str, str]:
    """Return the properties of a table: some columns have statistics, as in Delta.

    pyiceberg cannot make those of a time after the year 9999, which a sender may give a message.
    """
    metrics = {f"{_METRICS}.column.{name}": "full" for name in STATISTICS[table]}
    return _PROPERTIES | {f"{_METRICS}.default": "counts"} | metrics


def _day(table: str) -> str:
    return f"{TIMES[table]}_day"


def _version_of(snapshot: Snapshot | None) -> int | None:
    """Return the Delta version that a snapshot has; None if it does not say."""
    told = None if snapshot is None or snapshot.summary is None else snapshot.summary.get(VERSION)
    return int(told) if told is not None else None


def _files_of(found: Table, snapshot: Snapshot) -> dict[str, DataFile]:
    files: dict[str, DataFile] = {}
    for manifest in snapshot.manifests(found.io):
        for entry in manifest.fetch_manifest_entry(found.io, discard_deleted=True):
            files[entry.data_file.file_path] = entry.data_file
    return files


def _kept(found: Table, before: float) -> list[int]:
    """Return the snapshots that were current after a time, the earliest first."""
    log: list[Any] = sorted(found.history(), key=lambda one: one.timestamp_ms)
    earlier = [at for at, one in enumerate(log) if one.timestamp_ms <= before]
    return [one.snapshot_id for one in log[max(earlier, default=0) :]]


def _heads(found: Table) -> set[int]:
    """Return the snapshots that branches and tags name."""
    return {one.snapshot_id for one in found.refs().values()}
