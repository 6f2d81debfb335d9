"""Audit: verification, from the lake and the broker, that nothing was lost, repeated or reordered.

Each check counts contradictions: with one contradiction, the audit has FAILED. Without any, it has
PASSED if the lake is complete from its recorded start to its end and does not lag far behind the
broker; otherwise it is INCOMPLETE, and says why. Facts that limit the verdict are remarks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from onibus.api.entities import EntityInfo
from onibus.api.log import LogPositions, StampsSetBack, VerdictName
from onibus.client import Client
from onibus.core.errors import EntityNotFound, EntityReplaced
from onibus.spark import audit_checks as checks
from onibus.spark.audit_checks import EXAMPLES, Looked, Step
from onibus.spark.audit_reading import LocalReading, Place, SparkReading, is_small
from onibus.spark.lake import ERRORS, MESSAGES, OUTCOMES, TIMES, Lake
from onibus.spark.lake_files import LakeChanged
from onibus.spark.lake_holes import uncovered
from onibus.spark.lake_manifest import Progress
from onibus.spark.lake_reporting import report_verdict
from onibus.spark.lake_tables import log_of
from onibus.spark.log_reading import given_twice
from onibus.spark.options import ReadOptions, read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSED: Final = "PASSED"
FAILED: Final = "FAILED"
INCOMPLETE: Final = "INCOMPLETE"
#: Maximum age of a message that the lake does not have yet.
MAX_LAG_S = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    check: str
    #: number of contradictions
    count: int
    #: the first few of them, as words
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of an audit."""

    entity: str
    messages: int
    outcomes: int
    #: by partition: the first and the last number that the verdict covers
    covered: Mapping[int, tuple[int, int]]
    #: by partition: the first number that retention left, if it removed messages
    kept_from: Mapping[int, int] = field(default_factory=dict)
    findings: tuple[Finding, ...]
    #: why the lake is not complete, as words
    incomplete: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> VerdictName:
        if any(finding.count for finding in self.findings):
            return FAILED
        return INCOMPLETE if self.incomplete else PASSED

    @property
    def passed(self) -> bool:
        return self.verdict == PASSED


def audit(
    spark: Callable[[], SparkSession],
    source: Mapping[str, str],
    lake: str,
    *,
    with_broker: bool = True,
    max_lag_s: float = MAX_LAG_S,
    on_progress: Callable[[str], None] = lambda doing: None,
) -> Verdict:
    """Check the captured rows of an entity, on their own and against the broker.

    `spark` is called if the lake is too large for this process. `source` are the options of the
    format onibus (connection, entity). Without the broker, checks that need it are omitted: which
    messages it still has, and how far the lake lags. The messages of a subscription are those of
    its topic. Its rules decide which of them it gets, so a message without an outcome is not a
    contradiction.
    """
    options = read_options(source)
    job = _Audit(options, lake, max_lag_s, on_progress)
    missing = job.find_tables()
    # Ask the broker before reading the lake: later messages are in neither.
    job.broker = _Broker.ask(options, max_lag_s) if with_broker else None
    verdict = _verdict(job, spark, missing)
    if with_broker:
        with options.client() as client:
            refusal = report_verdict(client, Lake(lake, options.entity), verdict)
        if refusal:
            on_progress(f"the server does not show the verdict: {refusal}")
    return verdict


def _verdict(job: _Audit, spark: Callable[[], SparkSession], missing: Sequence[str]) -> Verdict:
    """Read the files and check them."""
    changed = _finding("tables that another program changed", job.changed)
    if not job.places:
        return job.verdict([changed], (*missing, "nothing to check: capture first"))
    rows = sum(max(one.row.rows, 0) for *_, one in job.places)
    reading = LocalReading() if is_small(job.places) else SparkReading(spark(), rows)
    findings = [changed, *job.check_files(reading), *job.check_rows(reading)]
    return job.verdict(findings, (*missing, *job.others(), *job.holes(), *job.lag()))


class _Audit:
    """An audit in progress."""

    broker: _Broker | None = None

    def __init__(
        self,
        options: ReadOptions,
        lake: str,
        max_lag_s: float,
        on_progress: Callable[[str], None],
    ) -> None:
        self._options = options
        self._entity = options.entity
        self._max_lag_s = max_lag_s
        self._on_progress = on_progress
        log = log_of(options.entity)
        self._lakes = {MESSAGES: Lake(lake, log), ERRORS: Lake(lake, log)}
        self._lakes[OUTCOMES] = Lake(lake, options.entity)
        #: what the manifest says of each table, and the files of all of them
        self._tables: dict[str, Progress] = {}
        self.places: list[Place] = []
        #: the tables that have messages: in earlier lakes some are in that of errors only
        self._with_messages: tuple[str, ...] = (MESSAGES,)
        #: by partition: the first message that retention left, where it removed any
        self._kept: dict[int, int] = {}
        #: tables that another program changed
        self.changed: list[str] = []
        self._looked: list[Looked] = []

    # --- what there is ----------------------------------------------------------------------------

    def find_tables(self) -> list[str]:
        """Find tables and files; return which tables are missing, in words."""
        # The tables of a queue share a folder, so each sentence appears once.
        missing: dict[str, None] = {}
        for table, lake in self._lakes.items():
            lake.check_not_bare()
            try:
                about = lake.about()
                if about is not None and "identity" in about:
                    lake.manifest()
                files, progress = lake.state(table) if about is not None else ([], None)
                log = lake.log(table)
                log.check_history()
            except LakeChanged as error:
                if str(error) not in self.changed:
                    self.changed.append(str(error))
                continue
            if about is None:
                if table != ERRORS:
                    missing[f"{lake.store.address} has no rows of {lake.entity!r}"] = None
                continue
            if table == MESSAGES:
                self._kept = log.starts()
                if lake.sets_aside():
                    self._with_messages = (MESSAGES, ERRORS)
            self.places += [(lake, table, one) for one in files]
            if "identity" not in about:
                progress = _earlier(files)
            if progress is not None:
                self._tables[table] = progress
            elif table != ERRORS:
                missing[f"the table {table} of {lake.entity!r} was not captured"] = None
        return list(missing)

    def _of(self, *tables: str) -> list[Place]:
        """Return the files of tables that can be read."""
        return [
            place
            for place, looked in zip(self.places, self._looked, strict=True)
            if place[1] in tables and (not looked.wrong or looked.rows)
        ]

    @property
    def covered(self) -> dict[int, tuple[int, int]]:
        """The first and the last number of messages, by partition."""
        progress = self._tables.get(MESSAGES)
        if progress is None:
            return {}
        pairs = zip(progress.start, progress.next, strict=True)
        return {at: (first, end - 1) for at, (first, end) in enumerate(pairs) if end > first}

    @property
    def _without_outcomes(self) -> Iterator[tuple[int, int]]:
        """Partitions with messages from before the lake had outcomes, and the first after these."""
        progress, outcomes = self._tables.get(MESSAGES), self._tables.get(OUTCOMES)
        if progress is not None and outcomes is not None:
            for at, (start, since) in enumerate(zip(progress.start, outcomes.since, strict=False)):
                if start < since:
                    yield at, since

    # --- checks -----------------------------------------------------------------------------------

    def check_files(self, reading: LocalReading | SparkReading) -> Iterator[Finding]:
        """Files: their bytes, and the numbers and times of their rows."""
        total = len(self.places)

        def looked_at(done: int) -> None:
            if done == total or not done % 100:
                self._on_progress(f"{done:,} of {total:,} files verified")

        self._on_progress(f"reading {total:,} files")
        self._looked = reading.looks(self.places, looked_at)
        pairs = list(zip(self.places, self._looked, strict=True))
        wrong = [
            f"{place[2].name} ({place[1]} {place[2].row.first} to {place[2].row.last}) "
            f"{looked.wrong}"
            for place, looked in pairs
            if looked.wrong
        ]
        yield _finding("missing or changed files", [*wrong, *self._early()])
        for table in (MESSAGES, OUTCOMES):
            mine = [(place, looked) for place, looked in pairs if place[1] == table]
            mine.sort(key=lambda pair: (pair[0][2].row.partition, pair[0][2].row.first))
            yield from self._numbers(table, mine)

    def _early(self) -> Iterator[str]:
        """Yield files with rows before the recorded start: the verdict does not cover them."""
        for _, table, one in self.places:
            progress, row = self._tables.get(MESSAGES if table == ERRORS else table), one.row
            # A file of errors may cover messages that retention removed, but not those only.
            begins = row.last if table == ERRORS else row.first
            if progress is not None and begins < progress.start[row.partition]:
                yield f"{one.name} begins before the lake's recorded start"

    def _numbers(self, table: str, pairs: Sequence[tuple[Place, Looked]]) -> Iterator[Finding]:
        """Yield repeated and missing numbers, and times that run backwards."""
        twice = [str(one) for _, looked in pairs for one in looked.misplaced]
        missing = [one for _, looked in pairs if not looked.wrong for one in looked.missing]
        if table == MESSAGES:
            missing = _without(missing, self._set_aside())
        back = [step for _, looked in pairs for step in looked.back]
        for (before, one), (after, other) in itertools.pairwise(pairs):
            if before[2].row.partition != after[2].row.partition:
                continue
            if after[2].row.first <= before[2].row.last:
                twice.append(f"{after[2].row.first} to {before[2].row.last}")
            if one.ends is not None and other.ends is not None and other.ends[1] < one.ends[3]:
                back.append(Step(one.ends[2], other.ends[0], one.ends[3], other.ends[1]))
        words = "sequence numbers" if table == MESSAGES else "outcome numbers"
        yield _finding(f"repeated or reordered {words}", twice)
        spans = [f"{first} to {last}" for first, last in missing]
        count = sum(last - first + 1 for first, last in missing)
        yield Finding(f"missing {words}", count, tuple(spans[:EXAMPLES]))
        if table == MESSAGES:
            fell = [_step(one) for one in back if not self._was_set_back(one)]
            yield _finding("enqueued times that decrease (S4)", fell)

    def _was_set_back(self, step: Step) -> bool:
        return self.broker is not None and any(
            step.before < one.sequence_number <= step.number for one in self.broker.set_back
        )

    def _set_aside(self) -> set[int]:
        """Return the numbers of messages that are in the table of errors only."""
        found: set[int] = set()
        for lake, _, one in self._of(ERRORS) if ERRORS in self._with_messages else ():
            numbers = lake.read(one, ["sequence_number"])[1].column(0)
            found.update(numbers.to_pylist())
        return found

    def check_rows(self, reading: LocalReading | SparkReading) -> Iterator[Finding]:
        """Sessions, duplicates and ends."""
        broker = self.broker
        reading.load(self._of(*self._with_messages), self._of(OUTCOMES))
        self._on_progress("checking sessions")
        yield from _findings(reading.sessions(), checks.SESSIONS)
        if broker is not None and broker.window_ms is not None:
            self._on_progress("checking duplicates")
            found = reading.duplicates(broker.window_ms, broker.partitioned)
            yield from _findings(found, checks.DUPLICATES)
        if OUTCOMES in self._tables:
            self._on_progress("checking ends")
            found = reading.ends(self.covered)
            yield from _findings(found, checks.MANY_ENDS, checks.UNKNOWN_ENDS)
            if broker is not None and broker.present is not None and self._has_whole_life(broker):
                [endless] = _findings(found, checks.ENDLESS)
                lost = endless.count - broker.present
                words = f"{endless.count} have no outcome, but the broker has {broker.present}"
                yield Finding(
                    "messages with neither an outcome nor a place in the broker",
                    abs(lost),
                    (words,) if lost else (),
                )
        reading.close()

    # --- how complete it is -----------------------------------------------------------------------

    def holes(self) -> Iterator[str]:
        """Yield ranges that no file has and no gap declares."""
        for table, progress in self._tables.items():
            rows = [one.row for _, name, one in self.places if name == table]
            for partition, first, last in uncovered(progress, rows):
                yield (
                    f"{table} {first} to {last} of partition {partition} are neither in the lake "
                    "nor declared as a gap"
                )

    def others(self) -> Iterator[str]:
        """Yield tables whose rows are not those of the broker's entity, or of its history."""
        if self.broker is None:
            return
        for table, progress in self._tables.items():
            lake = self._lakes[table]
            known = lake.log(table).latest_ms(TIMES[table])
            since_ms = None if known is None else known + 1
            with self._options.client() as client:
                ends = client.log_positions(lake.entity, log=table, since_ms=since_ms)
            try:
                lake.check_entity(ends)
            except EntityReplaced as error:
                yield str(error)
                continue
            twice = given_twice(ends, progress.next)
            if twice is not None:
                yield (
                    f"the broker assigned {table} from {twice[1]} of partition {twice[0]} on "
                    "again, or lost them: it was restored from a backup, and the lake was not"
                )

    def lag(self) -> Iterator[str]:
        """Yield what the lake lacks although it is older than allowed."""
        if self.broker is None:
            return
        for table, due in self.broker.due.items():
            progress = self._tables.get(table)
            if progress is None:
                continue
            for partition, since in enumerate(due):
                at = progress.next[partition] if partition < len(progress.next) else 0
                if not at:
                    # A partition that a lake of version 0.1.0 has no file of.
                    continue
                if since is None:
                    yield f"partition {partition} is offline: its end is unknown"
                elif since > at:
                    yield (
                        f"the lake lacks {since - at:,} {table} of partition {partition} that are "
                        f"older than {self._max_lag_s:g} s: capture again, then audit"
                    )

    def _has_whole_life(self, broker: _Broker) -> bool:
        """Return whether the lake has the entity from its first message to now, without a gap."""
        progress, outcomes = self._tables.get(MESSAGES), self._tables.get(OUTCOMES)
        if progress is None or progress.gaps or self._behind(OUTCOMES, broker):
            return False
        if outcomes is not None and (outcomes.gaps or any(self._without_outcomes)):
            return False
        begins = [broker.first_number(at) for at in range(len(progress.start))]
        return progress.start == begins and progress.next == list(broker.latest[MESSAGES])

    def _behind(self, table: str, broker: _Broker) -> int:
        """Return how many rows the broker has that the lake has not, or the other way round."""
        progress = self._tables.get(table)
        if progress is None:
            return 0
        return sum(
            abs((end or at) - at)
            for end, at in zip(broker.latest[table], progress.next, strict=False)
        )

    def verdict(self, findings: Sequence[Finding], incomplete: Sequence[str]) -> Verdict:
        """Return the result."""
        pairs = list(zip(self.places, self._looked, strict=False))

        def rows(*tables: str) -> int:
            return sum(looked.rows for place, looked in pairs if place[1] in tables)

        messages = rows(*self._with_messages)
        if self.places and not messages:
            incomplete = (*incomplete, "nothing to check: the lake has no messages")
        return Verdict(
            entity=self._entity,
            messages=messages,
            outcomes=rows(OUTCOMES),
            covered=self.covered,
            kept_from=self._kept,
            findings=tuple(findings),
            incomplete=tuple(incomplete),
            remarks=tuple(self._remarks()),
        )

    def _remarks(self) -> Iterator[str]:
        """Yield what limits the verdict."""
        for partition, first in sorted(self._kept.items()):
            yield (
                f"retention removed the messages before {first} of partition {partition}: the "
                "verdict covers those that the lake keeps"
            )
        for table, progress in self._tables.items():
            for gap in progress.gaps:
                yield (
                    f"{table} {gap.first} to {gap.last} of partition {gap.partition} are a gap, "
                    f"accepted at {_moment(gap.accepted_ms)}"
                )
        for partition, since in self._without_outcomes:
            yield (
                f"the lake began without outcomes: messages before {since} of partition "
                f"{partition} may lack theirs"
            )
        for lake in {one.store.address: one for one in self._lakes.values()}.values():
            if lake.about() is not None and lake.identity() is None:
                yield "the lake has version 0.1.0 and no digests: capture it once"
        broker = self.broker
        if broker is None:
            yield "the broker was not consulted: its messages are not verified"
            return
        if broker.present is None:
            yield (
                "messages of a topic end in its subscriptions, and rules decide which those get: a "
                "message without an outcome is not a contradiction"
            )
        for one in broker.set_back:
            yield (
                f"an operator set enqueued times of partition {one.partition} back at number "
                f"{one.sequence_number}, from {_moment(one.before_ms)} to {_moment(one.after_ms)}: "
                "the clock was wrong before that"
            )
        if broker.window_ms is None:
            yield "the entity does not detect duplicates: ids may repeat"
        behind, ends = self._behind(MESSAGES, broker), self._behind(OUTCOMES, broker)
        if behind or ends:
            yield (
                f"the lake lags {behind:,} messages and {ends:,} outcomes behind: capture "
                "again, then audit"
            )
        elif self._tables and not self._has_whole_life(broker):
            yield (
                "the lake does not begin at the entity's first message: messages in the broker "
                "are not counted against it"
            )


@dataclass(frozen=True, slots=True)
class _Broker:
    """What the broker says of the entity; numbers are by table and partition."""

    #: the numbers that come next
    latest: Mapping[str, tuple[int | None, ...]]
    #: the first numbers that the lake need not have yet
    due: Mapping[str, tuple[int | None, ...]]
    #: messages in the broker, in any state; None if not every row becomes one
    present: int | None
    #: the window of duplicate detection; None without it
    window_ms: int | None
    partitioned: bool
    #: where an operator set enqueued times back, after a wrong clock
    set_back: tuple[StampsSetBack, ...]

    def first_number(self, partition: int) -> int:
        """Return the number of the first message that a partition ever had (S2)."""
        return (partition << 48) + 1 if self.partitioned else 1

    @classmethod
    def ask(cls, options: ReadOptions, max_lag_s: float) -> _Broker:
        since_ms = max(int((time.time() - max_lag_s) * 1_000), 0)
        with options.client() as client:
            info = entity_info(client, log_of(options.entity))
            messages = client.log_positions(log_of(options.entity), since_ms=since_ms)
            outcomes = client.log_positions(options.entity, log=OUTCOMES, since_ms=since_ms)
        settings = info.settings
        detects = getattr(settings, "requires_duplicate_detection", False)
        tables: dict[str, LogPositions] = {OUTCOMES: outcomes, MESSAGES: messages}
        return cls(
            {table: one.latest for table, one in tables.items()},
            {table: one.since or () for table, one in tables.items()},
            _present(info) if info.kind == "queue" else None,
            settings.duplicate_detection_window_ms if detects else None,
            len(messages.latest) > 1,
            messages.set_back,
        )


def _present(info: EntityInfo[Any]) -> int:
    return info.active_count + info.deferred_count + info.scheduled_count + info.dead_lettered_count


def entity_info(client: Client, name: str) -> EntityInfo[Any]:
    """Return the broker's view of a queue, a topic or a subscription."""
    if "/subscriptions/" in name.lower():
        return client.subscription(name)
    try:
        return client.queue(name)
    except EntityNotFound:
        return client.topic(name)


def _finding(check: str, words: Sequence[str]) -> Finding:
    return Finding(check, len(words), tuple(words[:EXAMPLES]))


def _findings(found: pa.Table, *names: str) -> Iterator[Finding]:
    """Yield what checks of rows found; counts of buckets add up."""
    rows = found.to_pylist()
    for name in names:
        mine = [row for row in rows if row["check"] == name]
        examples = [row["example"] for row in mine if row["example"]]
        yield Finding(name, sum(row["count"] for row in mine), tuple(examples[:EXAMPLES]))


def _without(ranges: Sequence[tuple[int, int]], numbers: set[int]) -> list[tuple[int, int]]:
    """Return ranges without some numbers."""
    left = []
    for first, last in ranges:
        start = first
        for number in sorted(one for one in numbers if first <= one <= last):
            if number > start:
                left.append((start, number - 1))
            start = number + 1
        if start <= last:
            left.append((start, last))
    return left


def _earlier(files: Sequence[Any]) -> Progress | None:
    """Return how far a table of a lake of version 0.1.0 reaches, which its files say."""
    if not files:
        return None
    count = max(one.row.partition for one in files) + 1
    start, following = [0] * count, [0] * count
    for one in sorted(files, key=lambda one: one.row.first):
        at = one.row.partition
        start[at] = start[at] or one.row.first
        following[at] = one.row.last + 1
    return Progress(start, following)


def _moment(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _step(one: Step) -> str:
    return f"{one.number} at {_moment(one.time_ms)} after {_moment(one.time_before_ms)}"
