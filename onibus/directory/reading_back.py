"""Reading a store back: done on another thread, with its result or its error taken up later."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from onibus.core.errors import OnibusError, StoreFailed
from onibus.directory.entity_rows import KeptEntity
from onibus.shard.commits import CommitLoop

_log = logging.getLogger("onibus.broker")


class Readable(Protocol):
    """The result of reading a store."""

    @property
    def loop(self) -> CommitLoop: ...


@dataclass(frozen=True, slots=True)
class NamespaceOpening:
    """The namespace's store, opened, and the entities in it."""

    loop: CommitLoop
    entities: list[KeptEntity]


T = TypeVar("T", bound=Readable)


class Reading(Generic[T]):
    """A store that another thread opens and reads."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._found: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Open and read the store; keep its rows, or the error."""
        try:
            self._found = self._read()
        except OnibusError as error:
            self._error = error
        except Exception as error:
            _log.exception("cannot open a store")
            self._error = StoreFailed(f"cannot open the store: {error!r}")

    def take(self) -> T:
        """Return the rows, once, or raise the error."""
        found, self._found = self._found, None
        if self._error is not None:
            raise self._error
        assert found is not None
        return found

    def close(self) -> None:
        """Close a store that is not used after all."""
        if self._found is not None:
            self._found.loop.store.close()
            self._found = None
