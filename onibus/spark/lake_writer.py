"""The one writer of a lake: its lease, and the commits that a former writer cannot make.

A writer takes the lake by committing a version of the manifest with its own token. While it works
it renews a file named after that token, `_lease/<token>.json`. Another writer takes over when the
file is gone, has expired, or has not changed for the length of a lease, whatever the clocks say.
The lease only decides who waits: a former writer fails at its next commit. Each commit, of the
manifest or of a table's Delta log, creates the next version, which succeeds once.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from onibus.core.errors import OnibusError
from onibus.spark.delta_log import DeltaLog
from onibus.spark.lake import TABLES, Lake
from onibus.spark.lake_files import LakeBusy, LakeDamaged
from onibus.spark.lake_manifest import DELTA, TYPED, FileRow, Manifest

if TYPE_CHECKING:
    from onibus.spark.lake_iceberg import IcebergTables

#: How long a writer that was killed keeps others waiting.
LEASE_S = 30.0
#: How long a second writer waits for the first before it is refused.
WAIT_S = 45.0


class Lease(msgspec.Struct, frozen=True):
    """What a writer says of itself while it works."""

    until_ms: int
    lease_ms: int


class LakeWriter:
    """Holds a lake while it is a context; `manifest` is the version that counts."""

    manifest: Manifest
    #: the Delta logs of the lake's tables, by their names
    logs: Mapping[str, DeltaLog]
    #: what each commit of a Delta log is followed by
    iceberg: IcebergTables | None = None

    def __init__(
        self,
        lake: Lake,
        *,
        wait_s: float = WAIT_S,
        lease_s: float = LEASE_S,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        on_wait: Callable[[str], None] = lambda holder: None,
    ) -> None:
        self.lake = lake
        self.token = uuid4().hex
        self._wait_s, self._lease_s = wait_s, lease_s
        self._now, self._sleep, self._on_wait = now, sleep, on_wait
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    def __enter__(self) -> Self:
        try:
            self._take()
        except BaseException:
            # A full disk must not fill with leases of captures that did not start.
            self._release()
            raise
        self._renewing = threading.Thread(target=self._renew_on, daemon=True)
        self._renewing.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()
        self._release()

    def _release(self) -> None:
        with suppress(OnibusError):
            self.lake.store.delete(_lease_name(self.token))

    def _take(self) -> None:
        deadline = self._now() + self._wait_s
        seen: tuple[str, Lease | None] | None = None
        since = told = 0.0
        while True:
            manifest = self.lake.manifest_or_none() or self._first()
            lease = self._lease_of(manifest.token)
            now = self._now()
            if seen != (manifest.token, lease):
                seen, since = (manifest.token, lease), now
            if lease is None or self._over(lease, now, since):
                if self._take_over(manifest):
                    return
                continue
            if now >= deadline:
                raise LakeBusy(
                    f"{manifest.holder} writes {self.lake.store.address}: wait until it ends, or "
                    "stop it"
                )
            if not told:
                told = now
                self._on_wait(manifest.holder)
            self._sleep(min(1.0, self._lease_s / 4))

    def _first(self) -> Manifest:
        """Return the manifest of a lake without one, unless it must have one."""
        if self.lake.identity() is not None:
            raise LakeDamaged(
                f"{self.lake.store.address} has no manifest although it was captured: restore its "
                "folder _manifest, or move the lake away and capture into a new one"
            )
        return Manifest() if self.lake.about() is not None else Manifest(layout=TYPED)

    def _over(self, lease: Lease, now: float, since: float) -> bool:
        return lease.until_ms <= now * 1_000 or (now - since) * 1_000 >= lease.lease_ms

    def _lease_of(self, token: str) -> Lease | None:
        content = self.lake.store.read(_lease_name(token)) if token else None
        try:
            return None if content is None else msgspec.json.decode(content, type=Lease)
        except msgspec.DecodeError:
            return None

    def _take_over(self, manifest: Manifest) -> bool:
        """Make the version that says that the lake is ours; return whether no other was faster."""
        self._renew()
        mine = replace(
            manifest,
            version=manifest.version + 1,
            token=self.token,
            holder=f"process {os.getpid()} on {socket.gethostname()}",
            tokens=[*manifest.tokens, self.token],
        )
        if not self.lake.put_manifest(mine):
            return False
        self.manifest = mine
        # Loaded after the take-over: a commit of the former writer is in them, or fails.
        self.logs = {table: self.lake.log(table) for table in TABLES}
        self.read_logs()
        if manifest.token:
            self.lake.store.delete(_lease_name(manifest.token))
        return True

    def read_logs(self) -> None:
        """Take from the Delta logs how far the tables reach."""
        if self.manifest.layout >= DELTA:
            tables = {
                table: self.lake.progress(progress, self.logs[table])
                for table, progress in self.manifest.tables.items()
            }
            self.manifest = replace(self.manifest, tables=tables)

    def commit(self, **changes: Any) -> None:
        """Make the next version of the manifest, with these fields changed."""
        versions = {table: log.version for table, log in self.logs.items()}
        version = self.manifest.version + 1
        following = replace(self.manifest, version=version, versions=versions, **changes)
        if not self.lake.put_manifest(following):
            raise self._replaced()
        self.manifest = following

    def check_holder(self) -> None:
        """Raise if another writer has taken the lake over."""
        newest = self.lake.stored_manifest()
        if newest is None or newest.token != self.token:
            raise self._replaced()

    def _replaced(self) -> LakeBusy:
        newest = self.lake.stored_manifest()
        holder = "another process" if newest is None else newest.holder
        return LakeBusy(
            f"{holder} took over {self.lake.store.address}: changes of this writer since its last "
            "commit do not count"
        )

    def register(
        self,
        table: str,
        operation: str,
        add: Sequence[FileRow],
        remove: Sequence[FileRow] = (),
        reached: Mapping[str, int] | None = None,
        *,
        same_rows: bool = False,
        columns: str = "",
    ) -> None:
        """Have files of a table count, and others not, by a commit of its Delta log."""
        self.check_holder()
        self.logs[table].commit(
            operation, add, remove, reached, same_rows=same_rows, columns=columns
        )
        self.read_logs()
        if self.iceberg is not None:
            self.iceberg.follow(table, self.logs[table])

    def _renew(self) -> None:
        until = self._now() + self._lease_s
        lease = Lease(until_ms=int(until * 1_000), lease_ms=int(self._lease_s * 1_000))
        self.lake.store.put(_lease_name(self.token), msgspec.json.encode(lease), "new")

    def _renew_on(self) -> None:
        while not self._ended.wait(self._lease_s / 3):
            # A lease that cannot be renewed expires; the commits decide which writer has the lake.
            with suppress(OnibusError):
                self._renew()


def _lease_name(token: str) -> str:
    return f"_lease/{token}.json"
