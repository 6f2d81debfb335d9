"""Group commit: many commands, one sync, then the answers. One loop a store.

Commands change the core's state at once and leave their records in the gathering batch. While one
commit syncs, the next one gathers; when nothing is syncing, a commit starts at once. Answers are
given from `_committed` and nowhere else: what a client was told is on the disk.

A failed commit poisons the store: those who wait get `Unknown`, the memory of its partitions is
thrown away whole, and they are offline until the store has been opened and read anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

from onibus.broker.pages import StorePages
from onibus.broker.replies import Reply, answer, fail
from onibus.broker.writer import Done, Work
from onibus.core.errors import Unknown
from onibus.core.partition import Partition
from onibus.core.records import WriteBatch
from onibus.core.tally import Durations
from onibus.store.interface import Store

Answer = tuple[Reply, Any]


class CommitLoop:
    """One store, and everything that waits for its next commit."""

    def __init__(
        self,
        store: Store,
        submit: Callable[[Work, Done], None],
        *,
        before: Callable[[], None],
        after: Callable[[CommitLoop, Iterable[Partition]], None],
        failed: Callable[[CommitLoop, BaseException], None],
    ) -> None:
        self.store = store
        self.pages = StorePages(store)
        #: has a commit done on the store's writer thread
        self._submit = submit
        #: applies what has gathered (the sends), right before a commit starts
        self._before = before
        #: called after the answers of a commit were given, with the partitions it changed
        self._after = after
        self.failed = failed
        self._batch = WriteBatch()
        #: bytes of large values in the batch, and in the one that is being committed
        self._gathered = self._on_its_way = 0
        self._answers: list[Answer] = []
        #: partitions with records in the batch, in the order in which they were touched first: a
        #: set would order them by their addresses, and no run would repeat
        self._touched: dict[Partition, None] = {}
        self._urgent = False
        self._committing = False
        self._committing_answers: list[Answer] = []
        self._committing_partitions: dict[Partition, None] = {}
        self.commits = 0
        #: how long commits took, from their start until their answers could be given
        self.seconds = Durations()
        self._started = 0.0

    @property
    def busy(self) -> bool:
        """Something is on its way to the disk."""
        return self._committing

    @property
    def waiting(self) -> bool:
        """Something is written that is not on its way to the disk yet."""
        return bool(self._batch) or bool(self._answers)

    @property
    def bytes(self) -> int:
        """Bytes of large values that are not known to be on the disk yet."""
        return self._gathered + self._on_its_way

    def touch(self, partition: Partition) -> None:
        """Take note that the next commit has records of a partition."""
        self._touched[partition] = None

    def write(self, records: WriteBatch) -> None:
        """Take records that nobody waits for: they ride in the next commit."""
        self._gathered += records.payload_bytes()
        self._batch.absorb(records)

    def answer_after(self, reply: Reply, value: Any) -> None:
        """Give this answer when everything written so far is durable."""
        self._answers.append((reply, value))
        self._urgent = True

    def start(self, lazily: bool = False) -> None:
        """Start a commit, unless one is on its way; `lazily` also where nobody waits for it."""
        if self._committing:
            return
        self._before()
        if not (self._urgent or (lazily and self._batch)):
            return
        batch, self._batch = self._batch, WriteBatch()
        self._on_its_way, self._gathered = self._gathered, 0
        self._committing_answers, self._answers = self._answers, []
        self._committing_partitions, self._touched = self._touched, {}
        self._urgent = False
        self._committing = True
        self._started = perf_counter()
        for partition in self._committing_partitions:
            partition.commit_started()
        self._submit(lambda: self.store.commit(batch), self._committed)

    def _committed(self, error: BaseException | None) -> None:
        self._committing = False
        self._on_its_way = 0
        if error is not None:
            self.abandon(error)
            self.failed(self, error)
            return
        self.commits += 1
        self.seconds.note(perf_counter() - self._started)
        for partition in self._committing_partitions:
            partition.commit_finished()
        answers, self._committing_answers = self._committing_answers, []
        partitions, self._committing_partitions = self._committing_partitions, {}
        for reply, value in answers:
            answer(reply, value)
        self._after(self, partitions)

    def abandon(self, error: BaseException) -> None:
        """Tell everybody who waits that the outcome is not known."""
        answers = self._committing_answers + self._answers
        self._committing_answers, self._answers = [], []
        self._batch = WriteBatch()
        self._gathered = 0
        for reply, _ in answers:
            fail(
                reply,
                Unknown(f"store {self.store.name} failed, and the change may be stored: {error}"),
            )
