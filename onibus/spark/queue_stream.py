"""Streaming reads of a queue or subscription by claims (R5, R7).

An offset names the claims of its batch, and the last number that was claimed:

    {"entity": "orders", "incarnation": 7, "reader": "nightly", "claim": 12, "claims": [12],
     "token": "…"}

The claim is made when Spark asks for the latest offset, and noted by Spark before it is read. A
batch that is planned again reads the same claims, which give the same messages until they are
committed. Spark asks for the latest offset only after it has noted that the batch before is done;
so the claims up to the start are committed then, and not just when Spark says `commit`, which is a
batch later and, for the last batch of a run, never.

A claim of this reader that no offset names was made by a run that ended before Spark noted it: the
next offset takes it over.

One reader's name is for one query, and its newest checkpoint. Each run takes hold of the reader
with its own token, which its offsets and tasks have. The broker refuses a run that lost its hold,
and one that would take over claims that another query has read. A checkpoint that lacks claims
which were completed is an older copy: their messages are gone, and that is an error.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from onibus.api.claims import Claim, ClaimReaderInfo
from onibus.client import Client
from onibus.core.errors import (
    CheckpointMismatch,
    ClaimNotFound,
    EntityReplaced,
    Failed,
    InvalidArgument,
    InvalidOperation,
    Refused,
    Unknown,
)
from onibus.core.limits import CLAIM_COUNT_MAX
from onibus.spark.converting import Converter
from onibus.spark.idling import Idling
from onibus.spark.log_reading import gathered
from onibus.spark.options import ReadOptions, read_options
from onibus.spark.tasks import QUERY_ID, local_property, spare_modules

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

Offset = dict[str, Any]

#: The claim of an offset before the first batch.
FRESH = 0

#: A claim with fewer messages is read by one task: a task costs as much as thousands of messages.
TASK_COUNT_MIN = 10_000

_logger = logging.getLogger(__name__)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes messages from a queue, batch by batch; what Spark has done is completed."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.reader is None:
            raise InvalidArgument("mode queue claims messages under a name: set option reader")
        for name in ("starting_position", "ending_position"):
            if getattr(options, name) is not None:
                raise InvalidArgument("mode queue has no positions: omit them")
        self._options = options
        self._reader = options.reader
        self._schema = schema
        #: messages left in a run that stops on its own (availableNow)
        self._left: int | None = None
        #: of this run
        self._token = uuid4().hex
        #: whether tasks of this run have the query bound to the reader
        self._bound = False
        #: the last offset of this run, which holds the reader since, and its claims
        self._latest: tuple[Offset, list[Claim]] | None = None
        #: the last claim that this run has committed
        self._committed = FRESH
        self._idling = Idling(options.idle_wait_ms)

    @cached_property
    def _client(self) -> Client:
        # Made where it is used first: what Spark sends to workers has none.
        return self._options.client()

    def stop(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()

    # Claiming

    def initialOffset(self) -> Offset:  # noqa: N802
        return self._offset(FRESH, [], self._incarnation())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_messages_per_trigger or CLAIM_COUNT_MAX)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        waiting = count_of(self._client, self._options.entity)
        self._left = waiting + sum(claim.count for claim in _open(self._look()))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        following = self._take_up(start)
        everything = isinstance(limit, ReadAllAvailable)
        while not following or everything:
            claimed = self._claim(start, following)
            if not claimed:
                break
            following += claimed
        self._idling.looked(bool(following))
        if self._left is not None:
            self._left -= sum(claim.count for claim in following)
        end = start
        if following:
            numbers = [claim.number for claim in following]
            end = self._offset(numbers[-1], numbers, start["incarnation"])
        self._latest = (end, following)
        return end

    def _take_up(self, start: Offset) -> list[Claim]:
        """Commit what the query has done; return claims that follow, from a run that was killed."""
        if self._latest is not None and self._latest[0] == start:
            # The broker rejects our claims and reads if another program takes hold of the reader.
            self._commit(start["claims"], start["incarnation"])
            return []
        self._check(start)
        known = self._client.hold_claims(
            self._options.entity, self._reader, token=self._token, after=start["claim"]
        )
        self._check_newest(start, known)
        claims = _open(known)
        self._commit([claim.number for claim in claims if claim.number <= start["claim"]])
        self._committed = max(self._committed, start["claim"])
        return [claim for claim in claims if claim.number > start["claim"]]

    def _claim(self, start: Offset, following: list[Claim]) -> list[Claim]:
        """Set messages aside, if there are any: those claims of this reader that come next."""
        most = self._options.max_messages_per_trigger or CLAIM_COUNT_MAX
        if self._left is not None:
            most = min(most, self._left)
        if most <= 0:
            return []
        try:
            made = self._client.claim(
                self._options.entity,
                self._reader,
                min(most, CLAIM_COUNT_MAX),
                lease_ms=self._options.claim_lease_ms,
                max_bytes=self._options.max_bytes_per_trigger,
                token=self._token,
                incarnation=start["incarnation"],
                wait_ms=0 if following or self._left is not None else self._idling.wait_ms(),
            )
        except EntityReplaced:
            self._check(start)
            raise
        except Unknown:
            # The answer was lost, and the claim may be there.
            last = following[-1].number if following else start["claim"]
            return [claim for claim in _open(self._look()) if claim.number > last]
        return [] if made is None else [made]

    def _look(self) -> ClaimReaderInfo:
        """Return the progress of this reader."""
        return self._client.hold_claims(self._options.entity, self._reader)

    def _offset(self, last: int, numbers: list[int], incarnation: int) -> Offset:
        return {
            "entity": self._options.entity,
            "incarnation": incarnation,
            "reader": self._reader,
            "claim": last,
            "claims": numbers,
            "token": self._token,
        }

    def _incarnation(self) -> int:
        # Subscriptions have no log of messages, and one of outcomes.
        return self._client.log_positions(self._options.entity, log="outcomes").incarnation

    def _check(self, offset: Offset) -> None:
        """Reject an offset of another entity, or of an earlier incarnation."""
        entity = self._options.entity
        if (offset.get("entity"), offset.get("reader")) != (entity, self._reader):
            raise InvalidOperation(
                f"the checkpoint belongs to reader {offset.get('reader')!r} of "
                f"{offset.get('entity')!r}, not to {self._reader!r} of {entity!r}: "
                "give this query its own checkpoint"
            )
        incarnation = self._incarnation()
        if offset["incarnation"] != incarnation:
            raise EntityReplaced(
                f"{entity} was deleted and recreated: claim {offset['claim']} belongs to "
                f"incarnation {offset['incarnation']}, and it is {incarnation} now. "
                "Start again with a new checkpoint"
            )

    def _check_newest(self, start: Offset, known: ClaimReaderInfo) -> None:
        """Refuse a checkpoint that ends before, or after, what the broker knows of its reader."""
        if start["claim"] == FRESH:
            return
        if start["claim"] > known.last:
            raise Failed(
                f"the checkpoint has claim {start['claim']} of reader {self._reader!r} of "
                f"{self._options.entity}, whose last one is {known.last}: the broker was restored "
                "from an older backup. Start again with a new checkpoint and another reader"
            )
        passed = max(
            *(last for _, last in known.committed),
            *(one.number for one in known.claims if one.committing),
            *(0, 0),
        )
        if passed > start["claim"]:
            self._missing(
                CheckpointMismatch(
                    f"the checkpoint ends at claim {start['claim']} of reader {self._reader!r} of "
                    f"{self._options.entity}, and claims up to {passed} were completed after "
                    "it: it is an older copy, and their messages are no longer in the queue. "
                    "Continue with the newest checkpoint. If the results of those claims are "
                    "stored, continue with a new checkpoint, or with failOnGap=false"
                )
            )

    def _missing(self, error: Refused) -> None:
        """Raise an error about messages that are not read, unless the query accepts that."""
        if self._options.fail_on_gap:
            raise error
        _logger.warning("%s", error)

    # The messages of a batch

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._idling.work()
        committed: Sequence[tuple[int, int]] = ()
        if self._latest is not None and self._latest[0] == end:
            claims = self._latest[1]
        else:
            self._check(end)
            known = self._look()
            claims, committed = _open(known), known.committed
        held = {claim.number: claim for claim in claims}
        found = []
        # Tasks know the query: those of its first batch say with which claim it began. Those of a
        # run's first batch bind a query that began on a version that did not.
        first = None if self._bound else FRESH
        if start.get("claim", FRESH) == FRESH and end["claims"]:
            first = end["claims"][0]
        self._bound = self._bound or end.get("token") is not None
        where = (end["incarnation"], end.get("token"), end["claim"], first)
        for number in end["claims"]:
            if number in held:
                found += [
                    InputPartition((number, index, count, *where))
                    for index, count in _parts(held[number])
                ]
                continue
            why = (
                "it was completed after this checkpoint was copied, and its messages are no longer "
                "in the queue. Continue with the newest checkpoint"
                if any(first <= number <= last for first, last in committed)
                else "it was released, or its lease expired before it was read. Its messages are "
                "in the queue again"
            )
            self._missing(
                ClaimNotFound(
                    f"claim {number} of reader {self._reader!r} of {self._options.entity} is gone: "
                    f"{why}. Set failOnGap=false to continue without its messages"
                )
            )
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        number, index, count, incarnation, token, last, first = partition.value
        convert = Converter(self._schema, self._options.fail_on_bad_body)
        with self._options.client() as client:
            query = local_property(QUERY_ID)
            if first is not None and token is not None and query is not None:
                self._begin(client, token, last, query, first)
            table = client.read_claim_arrow(
                self._options.entity,
                self._reader,
                number,
                partition=index,
                incarnation=incarnation,
                token=token,
            )
        if table.num_rows != count:
            raise Failed(f"claim {number} has {table.num_rows} messages, not {count}")
        for batch in gathered(table.to_batches()):
            yield convert(batch)
        spare_modules()

    def _begin(self, client: Client, token: str, last: int, query: str, first: int) -> None:
        """Say with which claim a query begins; one that began before has an older checkpoint."""
        hold = partial(client.hold_claims, self._options.entity, self._reader, token=token)
        try:
            hold(after=last, query=query, first=first)
        except CheckpointMismatch as error:
            self._missing(error)

    # Completion

    def commit(self, end: Offset) -> None:
        self._idling.work()
        self._commit(end["claims"], end["incarnation"])

    def _commit(self, numbers: Sequence[int], incarnation: int | None = None) -> None:
        for number in numbers:
            if number <= self._committed:
                continue
            try:
                self._client.commit_claim(
                    self._options.entity, self._reader, number, incarnation=incarnation
                )
            except ClaimNotFound as error:
                # It was released, though its batch may have been done.
                self._missing(error)
            self._committed = number


def _parts(claim: Claim) -> Sequence[tuple[int | None, int]]:
    """Return the partitions, with their messages, that tasks read; None for all in one task."""
    return [(None, claim.count)] if claim.count <= TASK_COUNT_MIN else claim.partitions


def _open(known: ClaimReaderInfo) -> list[Claim]:
    """Return the claims that are not committed, by their numbers."""
    return [one for one in known.claims if not one.committing]


def count_of(client: Client, entity: str) -> int:
    """Return how many messages of a queue or subscription are active."""
    ask = client.subscription if "/subscriptions/" in entity.lower() else client.queue
    return ask(entity).active_count


def finish_claims(query: StreamingQuery, options: Mapping[str, str]) -> int:
    """Commit the claims of the last batch that a query has done; return how many there were.

    A query commits a batch's claims when it looks for the next batch. One that was stopped before
    leaves those of its last batch to its next run; this does it at once. `options` are those of the
    read. Nothing is done for a query that failed: its next run reads the batch again.
    """
    given = read_options(options)
    if query.isActive or query.exception() is not None or query.lastProgress is None:
        return 0
    progress = json.loads(query.lastProgress.json)
    numbers = []
    with given.client() as client:
        for source in progress["sources"]:
            end = source.get("endOffset")
            if not isinstance(end, dict) or "claims" not in end:
                continue
            if (end["entity"], end["reader"]) != (given.entity, given.reader):
                continue
            for number in end["claims"]:
                client.commit_claim(
                    given.entity, end["reader"], number, incarnation=end["incarnation"]
                )
                numbers.append(number)
    return len(numbers)
