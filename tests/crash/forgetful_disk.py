"""A disk that forgets unsynced writes when its power is cut: a FUSE file system in one process.

    with ForgetfulDisk(place) as disk:
        ...                  # programs use the files in `place`
        disk.cut(seed=7)     # kill those programs first; returns what was forgotten

It keeps its files in memory, in two states: what programs see, and what survives.

| call | what survives a power cut from then on |
| --- | --- |
| fsync, fdatasync of a file | its bytes and its length; not its name |
| fsync of a directory | its names: files created, renamed and removed |
| write, truncate, close, mkdir, a write to mapped memory | nothing new |

Without a seed a cut forgets everything else. With a seed a random part stays, as on a real disk:
each unsynced sector of 4,096 bytes separately, and the first few changes of a directory's names.
Modes and times are not forgotten.

The process speaks the kernel's protocol on /dev/fuse (linux/fuse.h, version 7.31), one request at
a time. Locks, mapped memory and the page cache are the kernel's: no flag asks for them here. A
cut closes /dev/fuse, which ends that mount and its cache, and mounts the disk again. Commands are
lines on the standard input; each gets a line in return. At the end of the input the process
unmounts the disk and ends. That is so even when the program that started it was killed.

| command | response |
| --- | --- |
| `cut` or `cut SEED` | `forgot N`: unsynced changes that did not survive |
| `fail NUMBER` | `fails`: writes, syncs and new names fail with this errno, until `fail 0` |
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from pathlib import Path
from random import Random
from typing import Any, Generic, Self, TypeVar

from tests.source_tree import ROOT

PATIENCE_S = 120

# The protocol. Every request is a header and a body; a response is a header and a body, too.

#: len, opcode, unique, nodeid, uid, gid, pid, padding
IN_HEADER = struct.Struct("<IIQQIIII")
#: len, error (negative), unique
OUT_HEADER = struct.Struct("<IiQ")
#: major, minor, max_readahead, flags
INIT_IN = struct.Struct("<IIII")
#: as INIT_IN, then max_background, congestion_threshold, max_write, time_gran, max_pages
INIT_OUT = struct.Struct("<IIIIHHIIH34x")
#: ino, size, blocks; three times and their nanoseconds; mode, nlink, uid, gid, rdev, blksize
ATTR = struct.Struct("<QQQQQQIIIIIIIII4x")
#: nodeid, generation, seconds that the name and the attributes may be cached; then ATTR
ENTRY_OUT = struct.Struct("<QQQQ8x")
#: seconds that the attributes may be cached; then ATTR
ATTR_OUT = struct.Struct("<Q8x")
#: valid, fh, size, lock_owner, three times, their nanoseconds, mode, uid, gid
SETATTR_IN = struct.Struct("<I4xQQQQQQIIII4xII4x")
#: fh, offset, size, flags, lock_owner, open flags; of READ, READDIR and WRITE
READ_IN = struct.Struct("<QQIIQI4x")
#: fh, open flags
OPEN_OUT = struct.Struct("<QI4x")
#: blocks, bfree, bavail, files, ffree, bsize, namelen, frsize
STATFS_OUT = struct.Struct("<QQQQQIII28x")
#: ino, offset of the next one, length of the name, type; then the name, padded to 8 bytes
DIRENT = struct.Struct("<QQII")
#: flags, mode, umask, more flags; then the name
CREATE_IN = struct.Struct("<IIII")
#: mode, umask; then the name
MKDIR_IN = struct.Struct("<II")
#: of RENAME the directory that a name moves to, then both names; of RELEASE fh, and more
NUMBER_IN = struct.Struct("<Q")
WRITE_OUT = struct.Struct("<I4x")

MAJOR, MINOR = 7, 31
#: FUSE_BIG_WRITES and FUSE_MAX_PAGES: one request may write `WRITE_MAX` bytes
FLAGS, PAGES_MAX = 1 << 5 | 1 << 22, 256
WRITE_MAX = PAGES_MAX * 4_096
FOPEN_KEEP_CACHE, FATTR_MODE, FATTR_SIZE = 1 << 1, 1 << 0, 1 << 3
ROOT_NODE = 1
#: Only the kernel changes the files of a mount, so it need not ask twice.
CACHED_S = 3_600
#: The size of the disk, in sectors.
SECTOR, SECTORS = 4_096, 1 << 28

#: FORGET, INTERRUPT and BATCH_FORGET: the kernel waits for no response.
SILENT = (2, 36, 42)
#: SETATTR, MKDIR, RENAME, WRITE, FSYNC, FSYNCDIR, CREATE: what `fail` lets fail.
CHANGING = (4, 9, 12, 16, 20, 30, 35)

MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2

#: Of a file: a write (offset, bytes), or a length that was set.
Change = tuple[int, bytes] | int
#: Of a directory: names that were set, or removed. A rename is one change of two names.
Naming = dict[bytes, "Node | None"]
S = TypeVar("S")
C = TypeVar("C")


class Content(Generic[S, C]):
    """What programs see, what survives, and the changes between the two."""

    def __init__(self, seen: S, kept: S, apply: Callable[[S, C], None]) -> None:
        self.seen, self.kept, self._apply = seen, kept, apply
        self.unsynced: list[C] = []

    def change(self, change: C) -> None:
        self._apply(self.seen, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        for change in self.unsynced:
            self._apply(self.kept, change)
        self.unsynced.clear()

    def _return_to_kept(self, changes: int) -> int:
        """Sync what survives a power cut; return how many of the changes did not."""
        forgotten = changes - len(self.unsynced)
        self.sync()
        self.seen = copy(self.kept)
        return forgotten


class File(Content[bytearray, Change]):
    """The bytes of a file."""

    def __init__(self) -> None:
        super().__init__(bytearray(), bytearray(), _write)

    def forget(self, random: Random | None) -> int:
        sectors = [piece for change in self.unsynced for piece in _sectors(change)]
        self.unsynced = [one for one in sectors if random and random.random() < 0.5]
        return self._return_to_kept(len(sectors))


class Directory(Content["dict[bytes, Node]", Naming]):
    """The names in a directory."""

    def __init__(self) -> None:
        super().__init__({}, {}, _name)

    def forget(self, random: Random | None) -> int:
        changes = len(self.unsynced)
        del self.unsynced[random.randrange(changes + 1) if random else 0 :]
        return self._return_to_kept(changes)


class Node:
    """A file or a directory, under the number that the kernel knows it by."""

    def __init__(self, number: int, mode: int) -> None:
        self.number, self.mode = number, mode
        #: one of them stays empty
        self.file, self.directory = File(), Directory()
        self.touched = time.time_ns()

    def attributes(self) -> bytes:
        size = len(self.file.seen)
        seconds, rest = divmod(self.touched, 1_000_000_000)
        return ATTR.pack(
            self.number, size, -(-size // 512), *[seconds] * 3, *[rest] * 3, self.mode,
            1, 0, 0, 0, SECTOR,
        )  # fmt: skip


def _write(content: bytearray, change: Change) -> None:
    if isinstance(change, int):
        del content[change:]
        content.extend(bytes(change - len(content)))
    else:
        offset, data = change
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data


def _name(names: dict[bytes, Node], change: Naming) -> None:
    for name, node in change.items():
        names.pop(name, None)
        if node is not None:
            names[name] = node


def _sectors(change: Change) -> list[Change]:
    """Return the parts of a change that survive separately."""
    if isinstance(change, int):
        return [change]
    offset, data = change
    ends = [*range(SECTOR - offset % SECTOR, len(data), SECTOR), len(data)]
    return [(offset + a, data[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


class Requests:
    """The kernel's requests on the nodes of one disk, each by the name that linux/fuse.h has."""

    def __init__(self) -> None:
        self.root = Node(ROOT_NODE, stat.S_IFDIR | 0o755)
        self._nodes = {ROOT_NODE: self.root}
        self._last = ROOT_NODE
        #: names of directories that are being listed, as they were when that began
        self._listings: dict[int, list[tuple[bytes, Node]]] = {}
        #: the errno of every change; 0 if they succeed
        self.failing = 0
        #: by opcode; the kernel does without those that are not here
        self._calls: dict[int, Callable[[Node, bytes], bytes]] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 9: self._mkdir, 10: self._unlink,
            11: self._rmdir, 12: self._rename, 14: self._open, 15: self._read, 16: self._write,
            17: self._statfs, 18: self._release, 20: self._fsync, 26: self._init,
            27: self._opendir, 28: self._readdir, 29: self._release, 30: self._fsync,
            35: self._create,
        }  # fmt: skip

    def respond(self, request: bytes) -> bytes | None:
        """Return the response to a request; None where the kernel waits for none."""
        _, opcode, unique, number, *_ = IN_HEADER.unpack_from(request)
        if opcode in SILENT:
            return None
        error, body = 0, b""
        try:
            if self.failing and opcode in CHANGING:
                raise OSError(self.failing, "")
            if opcode not in self._calls:
                raise OSError(errno.ENOSYS, "")
            # INIT names no node.
            node = self._nodes[number or ROOT_NODE]
            body = self._calls[opcode](node, request[IN_HEADER.size :])
        except OSError as raised:
            error = raised.errno or errno.EIO
        return OUT_HEADER.pack(OUT_HEADER.size + len(body), -error, unique) + body

    def forget(self, random: Random | None) -> int:
        """Return to what survives a power cut; return how many changes did not."""
        nodes = self._nodes.values()
        forgotten = sum(one.file.forget(random) + one.directory.forget(random) for one in nodes)
        self._nodes, self._listings, left = {}, {}, [self.root]
        while left:
            node = left.pop()
            self._nodes[node.number] = node
            left += node.directory.seen.values()
        return forgotten

    # Names

    def _new(self, parent: Node, name: bytes, mode: int) -> Node:
        if name in parent.directory.seen:
            raise OSError(errno.EEXIST, "")
        self._last += 1
        node = self._nodes[self._last] = Node(self._last, mode)
        parent.directory.change({name: node})
        return node

    @staticmethod
    def _child(parent: Node, name: bytes) -> Node:
        try:
            return parent.directory.seen[name]
        except KeyError:
            raise OSError(errno.ENOENT, "") from None

    @staticmethod
    def _entry(node: Node) -> bytes:
        return ENTRY_OUT.pack(node.number, 0, CACHED_S, CACHED_S) + node.attributes()

    def _lookup(self, parent: Node, body: bytes) -> bytes:
        return self._entry(self._child(parent, body.rstrip(b"\0")))

    def _mkdir(self, parent: Node, body: bytes) -> bytes:
        mode, umask = MKDIR_IN.unpack_from(body)
        name = body[MKDIR_IN.size :].rstrip(b"\0")
        return self._entry(self._new(parent, name, stat.S_IFDIR | mode & ~umask))

    def _create(self, parent: Node, body: bytes) -> bytes:
        _, mode, umask, _ = CREATE_IN.unpack_from(body)
        node = self._new(parent, body[CREATE_IN.size :].rstrip(b"\0"), mode & ~umask)
        return self._entry(node) + self._open(node, b"")

    def _unlink(self, parent: Node, body: bytes) -> bytes:
        name = body.rstrip(b"\0")
        self._child(parent, name)
        parent.directory.change({name: None})
        return b""

    def _rmdir(self, parent: Node, body: bytes) -> bytes:
        if self._child(parent, body.rstrip(b"\0")).directory.seen:
            raise OSError(errno.ENOTEMPTY, "")
        return self._unlink(parent, body)

    def _rename(self, parent: Node, body: bytes) -> bytes:
        (target,) = NUMBER_IN.unpack_from(body)
        if target != parent.number:
            # Two directories cannot change at once here.
            raise OSError(errno.EXDEV, "")
        old, new, _ = body[NUMBER_IN.size :].split(b"\0", 2)
        parent.directory.change({old: None, new: self._child(parent, old)})
        return b""

    def _opendir(self, node: Node, body: bytes) -> bytes:
        self._last += 1
        self._listings[self._last] = list(node.directory.seen.items())
        return OPEN_OUT.pack(self._last, 0)

    def _readdir(self, node: Node, body: bytes) -> bytes:
        handle, offset, size, *_ = READ_IN.unpack_from(body)
        listed = b""
        for at, (name, child) in enumerate(self._listings[handle][offset:], start=offset + 1):
            entry = DIRENT.pack(child.number, at, len(name), child.mode >> 12) + name
            entry += bytes(-len(entry) % 8)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed

    def _release(self, node: Node, body: bytes) -> bytes:
        self._listings.pop(NUMBER_IN.unpack_from(body)[0], None)
        return b""

    # Files

    def _init(self, node: Node, body: bytes) -> bytes:
        _, _, readahead, _ = INIT_IN.unpack_from(body)
        return INIT_OUT.pack(MAJOR, MINOR, readahead, FLAGS, 16, 12, WRITE_MAX, 1, PAGES_MAX)

    def _getattr(self, node: Node, body: bytes) -> bytes:
        return ATTR_OUT.pack(CACHED_S) + node.attributes()

    def _setattr(self, node: Node, body: bytes) -> bytes:
        fields = SETATTR_IN.unpack_from(body)
        valid, size, mode = fields[0], fields[2], fields[10]
        if valid & FATTR_SIZE:
            node.file.change(size)
            node.touched = time.time_ns()
        if valid & FATTR_MODE:
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        return self._getattr(node, b"")

    def _open(self, node: Node, body: bytes) -> bytes:
        return OPEN_OUT.pack(0, FOPEN_KEEP_CACHE)

    def _read(self, node: Node, body: bytes) -> bytes:
        _, offset, size, *_ = READ_IN.unpack_from(body)
        return bytes(node.file.seen[offset : offset + size])

    def _write(self, node: Node, body: bytes) -> bytes:
        _, offset, size, *_ = READ_IN.unpack_from(body)
        node.file.change((offset, body[READ_IN.size : READ_IN.size + size]))
        node.touched = time.time_ns()
        return WRITE_OUT.pack(size)

    def _fsync(self, node: Node, body: bytes) -> bytes:
        node.file.sync()
        node.directory.sync()
        return b""

    def _statfs(self, node: Node, body: bytes) -> bytes:
        return STATFS_OUT.pack(*[SECTORS] * 3, 1 << 20, 1 << 20, SECTOR, 255, SECTOR)


# The process


def _system(call: str, *arguments: Any) -> None:
    """Call the C library; raise OSError where it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), call)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), call)


def mount(place: str) -> int:
    """Mount a disk; return the file by which the kernel asks for it."""
    kernel = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
    options = f"fd={kernel},rootmode=40000,user_id=0,group_id=0".encode()
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    _system("mount", b"forgetful", os.fsencode(place), b"fuse.forgetful", flags, options)
    return kernel


def unmount(place: str) -> None:
    """Take the disk away, even while programs use it."""
    _system("umount2", os.fsencode(place), MNT_DETACH)


def _obey(requests: Requests, kernel: int, place: str, command: str) -> tuple[str, int]:
    """Carry a command out; return the response, and the file by which the kernel asks from now."""
    match command.split():
        case ["cut", *seed]:
            # First of all no request of the old mount is answered any more. An unmount that came
            # earlier would wait for this process to take mapped memory.
            os.close(kernel)
            unmount(place)
            forgotten = requests.forget(Random(int(seed[0])) if seed else None)
            return f"forgot {forgotten}", mount(place)
        case ["fail", number]:
            requests.failing = int(number)
            return "fails", kernel
    return f"unknown command {command!r}", kernel


def serve(place: str) -> None:
    """Be a disk until the standard input ends."""
    try:
        kernel = mount(place)
    except OSError as error:
        print(error.strerror, flush=True)
        return
    requests, commands = Requests(), sys.stdin.fileno()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        print("mounted", flush=True)
        while True:
            ready, _, _ = select.select([kernel, commands], [], [])
            if commands in ready:
                command = os.read(commands, 1_000)
                if not command:
                    return
                response, kernel = _obey(requests, kernel, place, command.decode())
                print(response, flush=True)
                continue
            # The program that asked was interrupted: before the read, or after it.
            with suppress(BlockingIOError, FileNotFoundError):
                answer = requests.respond(os.read(kernel, WRITE_MAX + SECTOR))
                if answer is not None:
                    os.write(kernel, answer)
    finally:
        os.close(kernel)
        unmount(place)


class ForgetfulDisk:
    """A disk that is mounted inside the block, by a separate process."""

    def __init__(self, place: Path) -> None:
        self.path = place
        #: unsynced changes, over all cuts
        self.forgotten = 0

    def __enter__(self) -> Self:
        """Mount it; raise OSError with the reason where that is not possible."""
        if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
            raise OSError(errno.EPERM, "a FUSE file system needs root and /dev/fuse")
        self.path.mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.forgetful_disk", str(self.path)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            if (told := self._hear()) != "mounted":
                raise OSError(errno.ENOTSUP, f"a FUSE file system cannot be mounted: {told}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        finally:
            # A process that was killed has left its mount.
            with suppress(OSError):
                unmount(str(self.path))

    def _hear(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        assert ready, f"the disk says nothing for {PATIENCE_S} s"
        return self._process.stdout.readline().decode().strip()

    def _tell(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()
        return self._hear()

    def cut(self, seed: int | None = None) -> int:
        """Cut the power; return how many unsynced changes were forgotten."""
        told = self._tell("cut" if seed is None else f"cut {seed}")
        self.forgotten += (forgotten := int(told.removeprefix("forgot ")))
        return forgotten

    def fail(self, number: int) -> None:
        """Let changes fail with this errno from now on; 0 ends that."""
        self._tell(f"fail {number}")


if __name__ == "__main__":
    serve(sys.argv[1])
