"""Staged sends: rows that a producer stages task by task and publishes batch by batch (R6).

What a task stages is a work that waits (directory/works.py), with this note: whose it is and until
when it is kept. Publishing decides the works of the named attempts and records the batch, in one
commit; so a batch is published once, whatever the client retries.

The record has a digest of the batch's rows as they were given (core/content_digest.py). A producer
that publishes its last batch again names the attempts that it published, or stages the same rows
again; other rows under that number are an error.

The content of a `producers` row is the MessagePack of `Last`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from onibus.api.staging import ProducerInfo, Published, Staged
from onibus.core import content_digest
from onibus.core.checks import check_text, check_whole
from onibus.core.commands import Stored
from onibus.core.errors import (
    BatchChanged,
    BatchTooOld,
    Busy,
    CheckpointMismatch,
    InvalidArgument,
    NotStaged,
    OnibusError,
    PartitionOffline,
    QuotaExceeded,
    Unknown,
)
from onibus.core.limits import BATCH_COUNT_MAX, ID_LENGTH_MAX
from onibus.core.message import Message
from onibus.core.path.admit import admit
from onibus.core.records import PRODUCERS, WORKS, WriteBatch
from onibus.core.staged import Part
from onibus.directory.routing import open_for_sends, route
from onibus.directory.work import check_disks
from onibus.shard.replies import KeptReply
from onibus.shard.runner import Steps, run

if TYPE_CHECKING:
    from onibus.core.path.admit_arrow import PreparedBatch
    from onibus.directory.entity import Entity
    from onibus.directory.host import Host
    from onibus.shard.partition import ShardPartition
    from onibus.store.interface import Store

#: (task, attempt, pieces)
Attempt = tuple[int, int, int]


class Note(msgspec.Struct, array_like=True):
    """Whose a staged work is."""

    entity: int
    producer: str
    batch: int
    task: int
    attempt: int
    piece: int
    count: int
    #: bus time at which it is deleted if it was not published
    until: int
    #: of its rows as they were given; earlier versions kept none
    digest: int | None = None


class Last(msgspec.Struct, array_like=True, frozen=True):
    """The last batch that a producer published, and in which checkpoint it is counted."""

    batch: int
    checkpoint: str | None = None
    #: of all its rows, and how many they are; earlier versions kept neither
    digest: int | None = None
    count: int = 0
    #: which attempts were named
    attempts: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Last).decode


class Admitted(Protocol):
    """Rows in columns that were admitted, with their digest."""

    digest: int | None

    def route(self) -> Sequence[tuple[ShardPartition, PreparedBatch, list[int], bool]]:
        """Return the partitions that take the rows, their rows, and the places of these."""
        ...


class Producers:
    """All producers of the namespace, and their staged batches."""

    def __init__(self, broker: Host) -> None:
        self._broker = broker
        #: by incarnation of the entity, then by name
        self._last: dict[int, dict[str, Last]] = {}
        self._publishing: set[tuple[int, str]] = set()

    def open(self, store: Store) -> None:
        """Read the published and the staged batches."""
        living = {entity.incarnation for entity in self._broker.namespace.entities.values()}
        rows: Any = store.scan(PRODUCERS)
        self._last = {}
        left = WriteBatch()
        for entity, producer, last in rows:
            if entity in living:
                self._last.setdefault(entity, {})[producer] = _decode(last)
            else:
                # The entity was deleted while a batch was published.
                left.delete(PRODUCERS, (entity, producer))
        if left:
            store.commit(left)
        for work, note in _converted(self._broker.works.noted.all_staged()):
            self._broker.timers.set(("lease", work), note.until)

    def stage(
        self,
        name: str,
        messages: Sequence[Message] | Admitted,
        note: Note,
        lease_ms: int,
    ) -> Steps[None]:
        """Keep messages for their producer to publish."""
        entity = open_for_sends(self._broker, name)
        _check(note)
        check_whole("lease_ms", lease_ms, 1)
        parts, note.count, note.digest = self._parts(entity, messages)
        self._check_new(entity, note)
        self._check_room(entity, note.producer)
        now = self._broker.clock.now()
        for partition in parts:
            self._broker.advance(partition, now)
        check_disks(parts, 2)
        note.entity, note.until = entity.incarnation, now + lease_ms

        content = msgspec.to_builtins(note)
        number: int = yield partial(self._broker.works.stage, parts, now, content)
        self._broker.timers.set(("lease", number), note.until)

    def _parts(self, entity: Entity, messages: Sequence[Message] | Admitted) -> Any:
        """Return the messages for each partition, their number, and their digest."""
        if not isinstance(messages, (list, tuple)):
            if isinstance(messages, Sequence):
                raise InvalidArgument("stage a list of messages")
            routed = messages.route()
            parts = {partition: Part(rows) for partition, rows, _, _ in routed}
            return parts, sum(len(rows) for _, rows, _, _ in routed), messages.digest
        if not 0 < len(messages) <= BATCH_COUNT_MAX:
            raise InvalidArgument(f"stage a list of 1 to {BATCH_COUNT_MAX} messages")
        settings, secret = entity.log_settings, self._broker.namespace.secret
        batch = [admit(message, settings, secret) for message in messages]
        parts = {
            partition: Part([batch[position] for position in positions] or batch)
            for partition, positions, _ in route(entity, batch)
        }
        return parts, len(batch), content_digest.of_messages(messages)

    def _check_new(self, entity: Entity, note: Note) -> None:
        last = self._of(entity).get(note.producer)
        if last is not None and note.batch < last.batch:
            raise BatchTooOld(
                f"producer {note.producer!r} has published batch {last.batch} and now sends batch "
                f"{note.batch}: its checkpoint was reset. Use another producer name, or continue "
                f"after batch {last.batch}"
            )

    def _check_room(self, entity: Entity, producer: str) -> None:
        """Reject one more staged piece than the quotas allow."""
        quotas = self._broker.namespace.quotas
        staged = self._broker.works.noted.counts(entity.incarnation)
        if sum(staged.values()) >= quotas.staged:
            raise QuotaExceeded(
                f"{entity.name} has {quotas.staged} staged pieces: publish or discard some, or "
                "wait until their leases expire"
            )
        self._check_known(entity, producer, staged)

    def _check_known(self, entity: Entity, producer: str, staged: Mapping[str, int]) -> None:
        """Reject one more producer than the quotas allow."""
        most, known = self._broker.namespace.quotas.producers, self._of(entity)
        if producer in known or producer in staged or len(known) + len(staged) < most:
            return
        if len(known.keys() | staged.keys()) >= most:
            raise QuotaExceeded(
                f"{entity.name} has {most} producers: forget those that no program uses"
            )

    def _of(self, entity: Entity) -> dict[str, Last]:
        """Return the producers that have published to an entity."""
        return self._last.get(entity.incarnation, {})

    def _check_follows(self, entity: Entity, producer: str, batch: int, checkpoint: str) -> None:
        """Reject a batch that does not continue from its checkpoint."""
        last = self._of(entity).get(producer)
        if last is None:
            if batch > 0:
                raise CheckpointMismatch(
                    f"{entity.name} has no producer {producer!r}, which sends batch {batch}: its "
                    "checkpoint was used with another entity, or this entity was deleted and "
                    "recreated. Begin with a new checkpoint"
                )
        elif last.checkpoint is None:
            # Until now it named none: the batch numbers and the content are all that is known.
            return
        elif last.checkpoint != checkpoint:
            raise CheckpointMismatch(
                f"producer {producer!r} has published batch {last.batch} and now uses another "
                "checkpoint: the first one was reset, or another job uses this name. Give each "
                "job its own producer name, or return to the first checkpoint, or reset the "
                "producer: then it sends again everything that it reads again"
            )
        elif batch > last.batch + 1:
            raise CheckpointMismatch(
                f"producer {producer!r} sends batch {batch}, but its last one is {last.batch}: "
                "the bus was restored from a backup that lacks some, or the query did not write "
                f"them. Return to a checkpoint of batch {last.batch}; in foreachBatch, write every "
                "batch, including empty ones"
            )

    def publish(
        self,
        name: str,
        producer: str,
        batch: int,
        attempts: Iterable[tuple[int, ...]],
        checkpoint: str | None = None,
        any_content: bool = False,
    ) -> Steps[Published]:
        """Make what the named attempts staged visible, once."""
        entity = open_for_sends(self._broker, name)
        _check(Note(0, producer, batch, 0, 0, 0, 0, 0))
        key = (entity.incarnation, producer)
        self._check_new(entity, Note(0, producer, batch, 0, 0, 0, 0, 0))
        if checkpoint is not None:
            check_text("checkpoint", checkpoint, ID_LENGTH_MAX, 1)
            self._check_follows(entity, producer, batch, checkpoint)
        notes = {
            work: note
            for work, note in _converted(self._broker.works.noted.staged(*key))
            if note.batch <= batch
        }
        named = _checked(attempts)
        last = self._of(entity).get(producer)
        if last is not None and last.batch == batch:
            if last.digest is not None and not any_content:
                _check_same(producer, last, named, notes)
            return Published(again=True)
        if key in self._publishing:
            raise Busy(f"a batch of producer {producer!r} is being published: try again")
        if not self._broker.namespace.online:
            # A publish that failed there may have been decided: its pieces are not listed.
            raise PartitionOffline("the namespace's store is down: try again when it is available")
        self._check_known(entity, producer, self._broker.works.noted.counts(entity.incarnation))
        chosen = _choose(notes, batch, named)
        content = _content([notes[work] for work in chosen])
        if checkpoint is None and last is not None:
            checkpoint = last.checkpoint
        now_last = Last(batch, checkpoint, *content, _hash(named))
        records = WriteBatch()
        records.put(PRODUCERS, (*key, _encode(now_last)))

        wanted = set(chosen)
        dropped = [work for work in notes if work not in wanted]
        self._publishing.add(key)
        try:
            works = yield from self._broker.works.decide(chosen, dropped, records)
            if not entity.partitions[0].deleted:
                self._last.setdefault(entity.incarnation, {})[producer] = now_last
            found = yield partial(self._broker.works.publish, works)
        finally:
            self._publishing.discard(key)
        if entity.partitions[0].deleted:
            raise Unknown(f"{entity.name} was deleted while the batch was published")
        results = [one for work in found for one in work.values()]
        repeated = sum(_dropped(one) for one in results)
        return Published(accepted=sum(map(len, results)) - repeated, duplicates=repeated)

    def discard(self, name: str, producer: str, batch: int | None) -> Steps[int]:
        """Delete what a producer has staged, of one batch or of all; return how many pieces."""
        works = self._works_of(self._broker.find(name), producer, batch)
        yield from self._broker.works.decide([], works, WriteBatch())
        return len(works)

    def forget_one(self, name: str, producer: str) -> Steps[bool]:
        """Delete a producer's progress and staged rows; return whether it was known."""
        entity = self._broker.find(name)
        key = (entity.incarnation, producer)
        if key in self._publishing:
            raise Busy(f"a batch of producer {producer!r} is being published: try again")
        known = producer in self._of(entity)
        records = WriteBatch()
        if known:
            records.delete(PRODUCERS, key)
        works = self._works_of(entity, producer, None)
        yield from self._broker.works.decide([], works, records)
        self._of(entity).pop(producer, None)
        return known or bool(works)

    def _works_of(self, entity: Entity, producer: str, batch: int | None) -> list[int]:
        """Return what a producer has staged."""
        notes = self._broker.works.noted.staged(entity.incarnation, producer)
        return [work for work, note in _converted(notes) if batch in (None, note.batch)]

    def lease_over(self, work: int) -> None:
        """Delete a staged batch whose lease expired before it was published."""
        if not self._broker.works.is_staged(work):
            return
        # Where the namespace's store is down, its opening finds this lease again.
        with contextlib.suppress(OnibusError):
            run(self._broker.works.decide([], [work], WriteBatch()), KeptReply())

    def erase(self, entity: Entity, out: WriteBatch) -> None:
        """Delete what the namespace's store has of an entity's producers."""
        for producer in self._of(entity):
            out.delete(PRODUCERS, (entity.incarnation, producer))
        for work in self._broker.works.noted.staged(entity.incarnation):
            out.delete(WORKS, (work,))

    def forget(self, entity: Entity) -> None:
        """Drop the producers of a deleted entity."""
        self._last.pop(entity.incarnation, None)

    def known(self, name: str) -> list[ProducerInfo]:
        """Return who has published to an entity."""
        entity = self._broker.find(name)
        return [
            ProducerInfo(producer=producer, batch=last.batch, checkpoint=last.checkpoint)
            for producer, last in sorted(self._of(entity).items())
        ]

    def staged(self, name: str) -> list[Staged]:
        """Return the batches staged for an entity."""
        entity = self._broker.find(name)
        return [
            Staged(
                producer=note.producer,
                batch=note.batch,
                task=note.task,
                attempt=note.attempt,
                piece=note.piece,
                count=note.count,
                until_ms=self._broker.clock.offsets.shown(note.until),
            )
            for _, note in _converted(self._broker.works.noted.staged(entity.incarnation))
        ]


def _converted(notes: dict[int, Any]) -> list[tuple[int, Note]]:
    return [(work, msgspec.convert(note, Note)) for work, note in notes.items()]


def _checked(attempts: Iterable[tuple[int, ...]]) -> list[Attempt]:
    """Return the named attempts with how many pieces each has; reject unknown ones."""
    named: list[Attempt] = []
    for attempt in attempts:
        if not isinstance(attempt, (tuple, list)) or len(attempt) not in (2, 3):
            raise InvalidArgument("an attempt must be (task, attempt) or (task, attempt, pieces)")
        for number in attempt:
            check_whole("each number of an attempt", number, 0)
        pieces = attempt[2] if len(attempt) == 3 else 1
        if pieces:
            named.append((attempt[0], attempt[1], pieces))
    if len({(task, attempt) for task, attempt, _ in named}) != len(named):
        raise InvalidArgument("an attempt is listed twice: list each once")
    return named


def _choose(notes: dict[int, Note], batch: int, attempts: list[Attempt]) -> list[int]:
    """Return the works of the named attempts, in their order; reject the call if one is missing."""
    by_piece = {
        (note.task, note.attempt, note.piece): work
        for work, note in notes.items()
        if note.batch == batch
    }
    chosen = []
    for task, attempt, pieces in attempts:
        for piece in range(pieces):
            work = by_piece.get((task, attempt, piece))
            if work is None:
                raise NotStaged(
                    f"piece {piece} of attempt {attempt} of task {task} was not staged "
                    f"for batch {batch}, or its lease expired; nothing was published"
                )
            chosen.append(work)
    return chosen


def _check_same(producer: str, last: Last, attempts: list[Attempt], notes: dict[int, Note]) -> None:
    """Reject the last batch of a producer if its rows are not those that were published."""
    mine = [note for note in notes.values() if note.batch == last.batch]
    named = {(task, attempt) for task, attempt, _ in attempts}
    if _hash(attempts) == last.attempts and not any((n.task, n.attempt) in named for n in mine):
        # The same call again: its response was lost.
        return
    digest, count = _content([notes[work] for work in _choose(notes, last.batch, attempts)])
    if digest != last.digest:
        raise BatchChanged(
            f"producer {producer!r} published batch {last.batch} with {last.count} rows and now "
            f"sends {count} different rows for it; nothing was published. Its checkpoint is older "
            "than its last batch: continue with the newest checkpoint. If its query computes "
            "different rows each time, publish this batch once with any_content (Spark: option "
            "failOnChange=false), which keeps the published rows"
        )


def _content(notes: list[Note]) -> tuple[int | None, int]:
    """Return the digest of the staged rows, if all of them have one, and their number."""
    digests = [note.digest for note in notes if note.digest is not None]
    whole = len(digests) == len(notes)
    return content_digest.add(digests) if whole else None, sum(note.count for note in notes)


def _hash(attempts: list[Attempt]) -> int:
    """Return a number that stands for these attempts in this order."""
    return xxh3_64_intdigest(_encode(attempts))


def _check(note: Note) -> None:
    check_text("producer", note.producer, ID_LENGTH_MAX, 1)
    for name in ("batch", "task", "attempt", "piece"):
        check_whole(name, getattr(note, name), 0)


def _dropped(result: Stored) -> int:
    """Return how many messages of a part were dropped as duplicates."""
    if isinstance(result, list):
        return sum(sent.duplicate_of is not None for sent in result)
    return int(result.dropped.sum())
