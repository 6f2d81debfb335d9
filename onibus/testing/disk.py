"""A disk in memory, as an apsw VFS, that loses power and fails as real disks do.

    disk = SimulatedDisk(seed=1)
    store = SqliteStore("store", "one", vfs=disk.name)
    disk.cut_power_after(20)            # the 20th change from now is the last thing that happens
    ...                                 # until a commit raises
    store.close()
    disk.restart()                      # what was not synced meets its fate
    store = SqliteStore("store", "one", vfs=disk.name)

Each file has two contents: the one that programs see (a system's page cache) and the one on the
platter. A sync carries the first to the second. When power goes, each write since the last sync is,
by the seed: applied; lost; torn, some of its sectors of 512 bytes applied and others lost; or
garbled, some sectors applied and others noise. Cutting a file is applied or lost. In about half of
all crashes all writes share one fate, since all lost and all applied are what finds most mistakes.

`unreadable` makes every read an error for as long as it is set. `fail_call` makes one call an
error: a failed write leaves part of itself; a failed sync lets each write meet its fate at once and
*forgets* the rest, so the next sync succeeds without carrying it, as Linux does. `fill_at_write`
and `capacity` refuse writes for want of space, once or as long as the files would outgrow the disk;
a refused write leaves nothing.

`SimulatedBlockFiles` are large blocks on the same disk. Until their directory is synced the names
of new ones, and the going of removed ones, are lost with power or not, each by the seed.

Not modelled: names of SQLite's own files lost with power (they are durable at once), writes that
land elsewhere, a disk that lies about a sync, shared memory (so SQLite must use one connection in
exclusive locking mode).
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import random
from collections.abc import Iterable
from typing import Literal

import apsw

SECTOR_BYTES = 512

DiskCall = Literal["read", "write", "sync", "truncate"]
Fate = Literal["applied", "lost", "torn", "garbled"]

#: What the writes of one crash can meet; one of these is drawn for each crash.
FATES: tuple[tuple[Fate, ...], ...] = (
    ("applied",),
    ("lost",),
    ("applied", "lost"),
    ("applied", "lost", "torn", "garbled"),
)

ERRORS = {
    # What SQLite's own file layer makes of EIO, and its core of that a malformed database.
    "read": apsw.SQLITE_IOERR_CORRUPTFS,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
}

#: What the names of block files begin with.
_BLOCKS = "store.blocks/"

_names = itertools.count(1)


def _error(call: DiskCall) -> apsw.IOError:
    error = apsw.IOError(f"simulated: {call} failed")
    error.extendedresult = ERRORS[call]  # type: ignore[attr-defined]
    return error


def _full() -> apsw.FullError:
    return apsw.FullError("simulated: no space left on the disk")


def _put(content: bytearray, data: bytes, offset: int) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class SimulatedFile:
    """One file: what programs see, what the platter holds, and the writes between them."""

    def __init__(self, disk: SimulatedDisk, content: bytes = b"") -> None:
        self._disk = disk
        self.seen = bytearray(content)
        self.platter = bytearray(content)
        # (offset, data) of a write or (length, None) of a cut, since the last sync.
        self._unsynced: list[tuple[int, bytes | None]] = []

    def meet_fate(self, fates: tuple[Fate, ...]) -> None:
        """Let the platter have of the unsynced changes what fate leaves, and forget the rest."""
        rng = self._disk.random
        for offset, data in self._unsynced:
            fate = rng.choice(fates)
            if fate == "lost":
                continue
            if data is None:
                del self.platter[offset:]
            elif fate == "applied":
                _put(self.platter, data, offset)
            else:
                self._put_in_part(data, offset, fate)
        self._unsynced.clear()

    def restart(self, fates: tuple[Fate, ...]) -> None:
        self.meet_fate(fates)
        self.seen = bytearray(self.platter)

    def _put_in_part(self, data: bytes, offset: int, fate: Fate) -> None:
        rng = self._disk.random
        start = 0
        while start < len(data):
            end = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
            if rng.random() < 0.5:
                _put(self.platter, data[start:end], offset + start)
            elif fate == "garbled":
                _put(self.platter, rng.randbytes(end - start), offset + start)
            start = end

    # What SQLite calls; the names are its own.

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.meet("read")
        return bytes(self.seen[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        data = bytes(data)
        grown = max(0, offset + len(data) - len(self.seen))
        if grown:
            self._disk.require_room(grown)
        try:
            self._disk.meet("write")
        except apsw.IOError:
            data = data[: self._disk.random.randrange(len(data) + 1)]
            self._write(data, offset)
            raise
        self._write(data, offset)

    def _write(self, data: bytes, offset: int) -> None:
        _put(self.seen, data, offset)
        self._unsynced.append((offset, data))

    def xTruncate(self, length: int) -> None:
        self._disk.meet("truncate")
        del self.seen[length:]
        self._unsynced.append((length, None))

    def xSync(self, flags: int) -> None:
        try:
            self._disk.meet("sync")
        except apsw.IOError:
            if self._disk.powered:
                self.meet_fate(self._disk.random.choice(FATES))
            raise
        for offset, data in self._unsynced:
            if data is None:
                del self.platter[offset:]
            else:
                _put(self.platter, data, offset)
        self._unsynced.clear()

    def xFileSize(self) -> int:
        return len(self.seen)

    def xClose(self) -> None:
        pass

    def xLock(self, level: int) -> None:
        pass

    def xUnlock(self, level: int) -> None:
        pass

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, operation: int, pointer: int) -> bool:
        if operation != apsw.SQLITE_FCNTL_LAST_ERRNO:
            return False
        ctypes.c_int.from_address(pointer).value = errno.EIO if self._disk.read_failed else 0
        return True

    def xSectorSize(self) -> int:
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:
        # What SQLite assumes of real disks: a write changes no byte outside its range.
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE


class SimulatedDisk(apsw.VFS):
    """A disk of files in memory. Everything that happens to it follows from its seed."""

    def __init__(self, seed: int, files: dict[str, bytes] | None = None) -> None:
        self.name = f"onibus-simulated-{next(_names)}"
        super().__init__(self.name, "unix")
        self.random = random.Random(seed)
        self.files = {name: SimulatedFile(self, content) for name, content in (files or {}).items()}
        self.powered = True
        #: whether every read fails
        self.unreadable = False
        #: whether a read failed since a file was opened last
        self.read_failed = False
        #: Size of the disk in bytes, None without a limit.
        self.capacity: int | None = None
        #: How many calls of each kind there were.
        self.calls: dict[DiskCall, int] = dict.fromkeys(("read", "write", "sync", "truncate"), 0)
        #: files that are new since their directory was synced, and those that were removed
        self.unnamed: set[str] = set()
        self.removed: dict[str, SimulatedFile] = {}
        self._changes_left = -1
        self._failing: tuple[DiskCall, int, apsw.Error] | None = None

    @property
    def changes(self) -> int:
        """How many calls changed something: writes, cuts and syncs."""
        return self.calls["write"] + self.calls["sync"] + self.calls["truncate"]

    def cut_power_after(self, changes: int) -> None:
        """Cut the power in the middle of that change from now (1 is the next one)."""
        self._changes_left = changes

    def restart(self) -> None:
        """Cut the power if it is on, decide what survives of unsynced writes, and start."""
        fates = self.random.choice(FATES)
        for name in sorted(self.unnamed):
            if self.random.random() < 0.5:
                self.files.pop(name, None)
        for name in sorted(self.removed):
            if self.random.random() < 0.5:
                self.files.setdefault(name, self.removed[name])
        self.sync_names()
        for name in sorted(self.files):
            self.files[name].restart(fates)
        self.powered = True
        self._changes_left = -1

    def fail_call(self, call: DiskCall, nth: int) -> None:
        """Make the nth call of that kind from now an I/O error, once (1 is the next one)."""
        self._failing = (call, self.calls[call] + nth, _error(call))

    def fill_at_write(self, nth: int) -> None:
        """Refuse the nth write from now for want of space, once (1 is the next one)."""
        self._failing = ("write", self.calls["write"] + nth, _full())

    def call_off(self) -> bool:
        """Call off the failure that was ordered; return whether it was still to come."""
        to_come = self._failing is not None
        self._failing = None
        return to_come

    def sync_names(self) -> None:
        """Make the creation and removal of files durable."""
        self.unnamed.clear()
        self.removed.clear()

    def image(self) -> dict[str, bytes]:
        """Return what programs see of all files, to make another disk of."""
        return {name: bytes(file.seen) for name, file in self.files.items()}

    def meet(self, call: DiskCall) -> None:
        """Count a call and raise what it meets: no power, an ordered failure, or nothing."""
        try:
            self._meet(call)
        except apsw.IOError:
            self.read_failed |= call == "read"
            raise

    def _meet(self, call: DiskCall) -> None:
        if not self.powered or (self.unreadable and call == "read"):
            raise _error(call)
        self.calls[call] += 1
        if self._failing and self._failing[:2] == (call, self.calls[call]):
            error = self._failing[2]
            self._failing = None
            raise error
        if self._changes_left > 0 and call != "read":
            self._changes_left -= 1
            if self._changes_left == 0:
                self.powered = False
                raise _error(call)

    def require_room(self, grown: int) -> None:
        """Refuse a write that would make the files larger than the disk."""
        if self.capacity is not None:
            used = sum(len(file.seen) for file in self.files.values())
            if used + grown > self.capacity:
                raise _full()

    # What SQLite calls; the names are its own.

    def xOpen(self, name: object, flags: list[int]) -> SimulatedFile:  # type: ignore[override]
        if isinstance(name, apsw.URIFilename):
            name = name.filename()
        flags[1] = flags[0]
        self.read_failed = False
        return self.files.setdefault(str(name), SimulatedFile(self))

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if not self.powered:
            raise _error("write")
        self.files.pop(filename, None)

    def xAccess(self, pathname: str, flags: int) -> bool:
        return pathname in self.files

    def xFullPathname(self, name: str) -> str:
        return name


class SimulatedBlockFiles:
    """Large blocks as files of a simulated disk (store/block_files.py)."""

    def __init__(self, disk: SimulatedDisk, syncing: bool = True) -> None:
        self._disk = disk
        #: whether it does what it promises; a test of the tests wants one that does not
        self._syncing = syncing

    def sizes(self) -> dict[int, int]:
        return {
            int(name.removeprefix(_BLOCKS)): len(file.seen)
            for name, file in self._disk.files.items()
            if name.startswith(_BLOCKS)
        }

    def write(self, blocks: Iterable[tuple[int, bytes | memoryview]]) -> None:
        disk = self._disk
        files = []
        for block, payload in blocks:
            name = f"{_BLOCKS}{block}"
            if name not in disk.files:
                disk.files[name] = SimulatedFile(disk)
                disk.unnamed.add(name)
            file = disk.files[name]
            file.xTruncate(0)
            file.xWrite(bytes(payload), 0)
            files.append(file)
        if self._syncing:
            for file in files:
                file.xSync(0)
            disk.meet("sync")
            disk.sync_names()

    def read(self, block: int) -> bytes:
        name = f"{_BLOCKS}{block}"
        if name not in self._disk.files:
            raise FileNotFoundError(name)
        return self._disk.files[name].xRead(len(self._disk.files[name].seen), 0)

    def remove(self, block: int) -> None:
        self._disk.meet("truncate")
        name = f"{_BLOCKS}{block}"
        self._disk.removed[name] = self._disk.files.pop(name)
        self._disk.unnamed.discard(name)

    def close(self) -> None:
        pass
