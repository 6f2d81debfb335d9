"""The files of a lake, in a file system that pyarrow knows: a path, s3://, hdfs://, gs://."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property

import pyarrow as pa
import pyarrow.fs as pafs

from onibus.core.errors import Damaged, Failed, InvalidArgument, InvalidOperation, Refused
from onibus.spark.lake_reaching import Unreachable, address_of, check_answers

#: How long an object store that cannot be reached is tried.
RETRY_S = 15


class LakeFailed(Failed):
    """A lake cannot be read or written, or contradicts its manifest."""

    code = "lake-failed"


class LakeDamaged(LakeFailed, Damaged):
    """What says which files of a lake count is missing or damaged."""

    code = "lake-damaged"


class LakeChanged(LakeFailed):
    """Another program has changed a table of a lake."""


class LakeBusy(Refused):
    """Another writer holds the lake."""

    code = "lake-busy"
    retryable = True


def absolute(place: str) -> str:
    """Return a place as it is called from any folder: tasks of Spark run in other ones."""
    if not place:
        raise InvalidArgument("a lake needs a folder or an address: the name is empty")
    return place if "://" in place else os.path.abspath(place)


def _open(place: str) -> tuple[pafs.FileSystem, str]:
    """Return a file system, and where a lake is in it."""
    if "://" not in place:
        return pafs.LocalFileSystem(), place
    given = _impatient(place)
    reason: Exception
    try:
        if not place.startswith("file://"):
            check_answers(given)
        found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(given)
        return found
    except Unreachable as error:
        reason, valid = error, error.valid
    except (OSError, pa.ArrowException) as error:
        reason, valid = error, isinstance(error, OSError)
    address = address_of(place)
    words = _first_line(reason).replace(given, address)
    if valid:
        raise LakeFailed(
            f"cannot reach the lake {address}: {words}. Check its address, the network, the "
            "credentials and the packages that it needs"
        )
    raise InvalidOperation(
        f"cannot open the lake {address!r}: {words}. Use a folder, or an address of s3, gs, abfss "
        "or hdfs"
    )


def _impatient(address: str) -> str:
    """Return an address whose file system gives up soon: Google's retries for 15 minutes."""
    if not address.startswith(("gs://", "gcs://")) or "retry_limit_seconds" in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}retry_limit_seconds={RETRY_S}"


class LakeFiles:
    """Files below the folder of one entity, or of a lake; names are relative to it.

    The first use opens the file system. An address is known without it.
    """

    def __init__(self, place: str, folder: str) -> None:
        self._place = absolute(place)
        self._folder = folder

    @property
    def address(self) -> str:
        """The folder as other programs and Spark name it."""
        return f"{address_of(self._place)}/{self._folder}".rstrip("/")

    @cached_property
    def root(self) -> str:
        """The folder as its file system names it."""
        return f"{self._opened[1].rstrip('/')}/{self._folder}".rstrip("/")

    @property
    def _files(self) -> pafs.FileSystem:
        return self._opened[0]

    @cached_property
    def _opened(self) -> tuple[pafs.FileSystem, str]:
        return _open(self._place)

    @property
    def local(self) -> bool:
        return isinstance(self._files, pafs.LocalFileSystem)

    def path(self, name: str) -> str:
        """Return where a file is, in its file system."""
        return f"{self.root}/{name}" if name else self.root

    def exists(self, name: str) -> bool:
        """Return whether there is a file or folder of that name."""
        with self._plainly("read", name):
            kind = self._files.get_file_info(self.path(name)).type
        return bool(kind != pafs.FileType.NotFound)

    def folders(self) -> set[str]:
        """Return the names of the folders in this one."""
        with self._plainly("read", ""):
            found = self._files.get_file_info(pafs.FileSelector(self.root, allow_not_found=True))
        return {one.base_name for one in found if one.type == pafs.FileType.Directory}

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the names of all files below a folder, with their sizes."""
        below = pafs.FileSelector(self.path(folder), allow_not_found=True, recursive=True)
        with self._plainly("read", folder):
            found = self._files.get_file_info(below)
        start = len(self.root) + 1
        return {one.path[start:]: one.size for one in found if one.type == pafs.FileType.File}

    def missing(self, wanted: Mapping[str, int]) -> str | None:
        """Return the first file that this process does not see with its size; None for none."""
        with self._plainly("read", ""):
            found = self._files.get_file_info([self.path(name) for name in wanted])
        pairs = zip(wanted.items(), found, strict=True)
        return next((name for (name, size), one in pairs if one.size != size), None)

    def times(self, folder: str) -> dict[str, float]:
        """Return the names of all files below a folder, and when each was written, in ms."""
        below = pafs.FileSelector(self.path(folder), allow_not_found=True, recursive=True)
        with self._plainly("read", folder):
            found = self._files.get_file_info(below)
        start = len(self.root) + 1
        return {
            one.path[start:]: one.mtime_ns / 1_000_000
            for one in found
            if one.type == pafs.FileType.File
        }

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file."""
        try:
            with self._files.open_input_stream(self.path(name)) as stream:
                content: bytes = stream.read()
            return content
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            raise self._failed("read", name, error) from None

    def put(self, name: str, content: bytes | pa.Buffer, attempt: str) -> None:
        """Write a file, which replaces one of that name. It appears with all of its content."""
        with self._plainly("write", name):
            self._files.move(self._unfinished(name, content, attempt), self.path(name))
            self._sync_folder(name)

    def put_new(self, name: str, content: bytes | pa.Buffer, attempt: str) -> bool:
        """Write a file unless there is one of that name; return whether it was written.

        On local disks and NFS one of several writers wins. Object stores have no such call here:
        between the look and the write another writer may come.
        """
        with self._plainly("write", name):
            unfinished = self._unfinished(name, content, attempt)
            new = self._link(unfinished, self.path(name)) if self.local else None
            if new is None:
                new = not self.exists(name)
                if new:
                    self._files.move(unfinished, self.path(name))
            if not new or self.local:
                with suppress(FileNotFoundError):
                    self._files.delete_file(unfinished)
            self._sync_folder(name)
            return new

    def _link(self, path: str, other: str) -> bool | None:
        """Give a local file another name; return whether that was free, None if links fail."""
        try:
            os.link(path, other)
        except FileExistsError:
            return False
        except OSError:
            return None
        return True

    def give_name(self, name: str, other: str) -> None:
        """Give a file another name in this folder; it keeps the one that it has."""
        with self._plainly("write", other):
            self._files.create_dir(self.path(other).rpartition("/")[0], recursive=True)
            linked = self._link(self.path(name), self.path(other)) if self.local else None
            if linked is None:
                self._files.copy_file(self.path(name), self.path(other))
                self._sync(self.path(other))
            self._sync_folder(other)

    def rename(self, other: LakeFiles) -> None:
        """Give a local folder the name of another, which does not exist yet."""
        with self._plainly("write", ""):
            os.rename(self.root, other.root)
            self._sync(other.root.rpartition("/")[0])

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._plainly("write", name), suppress(FileNotFoundError):
            self._files.delete_file(self.path(name))

    def delete_folder(self, name: str) -> None:
        """Remove a folder and all that it has, if it is there."""
        with self._plainly("write", name), suppress(FileNotFoundError):
            self._files.delete_dir(self.path(name))

    def _unfinished(self, name: str, content: bytes | pa.Buffer, attempt: str) -> str:
        folder, _, last = self.path(name).rpartition("/")
        unfinished = f"{folder}/.{last}.{attempt}"
        self._files.create_dir(folder, recursive=True)
        try:
            with self._files.open_output_stream(unfinished) as stream:
                stream.write(content)
            self._sync(unfinished)
        except (OSError, pa.ArrowException):
            # A full disk must not fill with what did not fit: a capture tries again and again.
            with suppress(OSError, pa.ArrowException):
                self._files.delete_file(unfinished)
            raise
        return unfinished

    def _sync_folder(self, name: str) -> None:
        self._sync(self.path(name).rpartition("/")[0])

    def _sync(self, path: str) -> None:
        """Have it on disk: the broker forgets what the lake has. Object stores do that anyway."""
        if self.local:
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    @contextmanager
    def _plainly(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise self._failed(verb, name, error) from None

    def _failed(self, verb: str, name: str, error: Exception) -> LakeFailed:
        reason = getattr(error, "strerror", None) or _first_line(error)
        where = f"{self.address}/{name}".rstrip("/")
        return LakeFailed(
            f"cannot {verb} {where}: {reason}. Check the lake's address, its "
            "permissions and the free space there"
        )


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    # Google's library repeats its message in a list of details.
    return line.partition(" error_info=")[0].rstrip(".")
