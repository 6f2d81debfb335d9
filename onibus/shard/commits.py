"""Group commit: many commands, one sync, then the responses. One loop per store.

Commands change partitions immediately and leave their records in the gathering batch. While one
commit syncs, the next one gathers; if none runs, a commit starts immediately. Only `_committed`
replies to callers, so every acknowledged change is on disk.

A commit runs on the store's writer thread. If the loop may (`inline`), it runs a commit for a lone
request itself, as long as the commits of this store are fast: handing it to a thread and back takes
about as long as the sync.

A failed commit poisons the store: pending calls fail with `Unknown`, and the memory of its
partitions is discarded. They are offline until the store is open again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

from onibus.core.errors import Unknown
from onibus.core.partition import Partition
from onibus.core.records import WriteBatch
from onibus.core.tally import Durations
from onibus.shard.pages import StorePages
from onibus.shard.replies import Reply, answer, fail
from onibus.shard.writer import Done, Work
from onibus.store.interface import Store

OwedReply = tuple[Reply, Any]

#: A commit is fast if it takes less than this.
FAST_S = 0.003
#: The loop itself commits after this number of fast commits in a row, and of lone requests.
FAST_COMMITS, LONE_REQUESTS = 8, 3


class CommitLoop:
    """One store, and the records and responses that wait for its next commit."""

    def __init__(
        self,
        store: Store,
        submit: Callable[[Work, Done, bool], None],
        *,
        before: Callable[[], None],
        after: Callable[[CommitLoop, Iterable[Partition]], None],
        failed: Callable[[CommitLoop, BaseException], None],
        inline: bool = False,
    ) -> None:
        self.store = store
        self._inline = inline
        #: fast commits, and commits for one request, in a row
        self._fast = self._lone = 0
        self.pages = StorePages(store)
        #: runs a commit, on the store's writer thread or on this one
        self._submit = submit
        #: applies the sends that gathered, right before a commit starts
        self._before = before
        #: called after the responses of a commit, with the partitions that it changed
        self._after = after
        self._failed = failed
        self._batch = WriteBatch()
        #: bytes of large values in the batch, and in the one that is being committed
        self._gathered = self._on_its_way = 0
        self._answers: list[OwedReply] = []
        #: partitions with records in the batch, in the order in which they were touched first: a
        #: set would order them by their addresses, and no run would repeat
        self._touched: dict[Partition, None] = {}
        self._urgent = False
        self._committing = False
        self._committing_answers: list[OwedReply] = []
        self._committing_partitions: dict[Partition, None] = {}
        self.commits = 0
        #: how long commits took, from their start until their responses
        self.seconds = Durations()
        self._started = 0.0

    @property
    def busy(self) -> bool:
        """Return whether a commit is running."""
        return self._committing

    @property
    def waiting(self) -> bool:
        """Records or responses wait for the next commit."""
        return bool(self._batch) or bool(self._answers)

    @property
    def bytes(self) -> int:
        """Bytes of large values that may not be on the disk yet."""
        return self._gathered + self._on_its_way

    def touch(self, partition: Partition) -> None:
        """Note that the next commit has records of a partition."""
        self._touched[partition] = None

    def write(self, records: WriteBatch) -> None:
        """Add records to the next commit."""
        self._gathered += records.payload_bytes()
        self._batch.absorb(records)

    def answer_after(self, reply: Reply, value: Any) -> None:
        """Give this response when everything written so far is durable."""
        self._answers.append((reply, value))
        self._urgent = True

    def start(self, lazily: bool = False) -> None:
        """Start a commit, unless one runs; `lazily` even if no caller waits for it."""
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
        self._lone = self._lone + 1 if len(self._committing_answers) == 1 else 0
        here = self._inline and self._lone >= LONE_REQUESTS and self._fast >= FAST_COMMITS
        self._submit(lambda: self.store.commit(batch), self._committed, here)

    def _committed(self, error: BaseException | None) -> None:
        self._committing = False
        self._on_its_way = 0
        if error is not None:
            self.abandon(error)
            self._failed(self, error)
            return
        self.commits += 1
        took = perf_counter() - self._started
        self.seconds.note(took)
        self._fast = self._fast + 1 if took < FAST_S else 0
        for partition in self._committing_partitions:
            partition.commit_finished()
        answers, self._committing_answers = self._committing_answers, []
        partitions, self._committing_partitions = self._committing_partitions, {}
        for reply, value in answers:
            answer(reply, value)
        self._after(self, partitions)

    def abandon(self, error: BaseException) -> None:
        """Fail pending calls: their outcome is unknown."""
        answers = self._committing_answers + self._answers
        self._committing_answers, self._answers = [], []
        self._batch = WriteBatch()
        self._gathered = 0
        for reply, _ in answers:
            fail(
                reply,
                Unknown(f"store {self.store.name} failed, and the change may be stored: {error}"),
            )
