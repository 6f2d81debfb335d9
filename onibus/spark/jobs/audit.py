"""Audit: proves, from the lake and the broker, that nothing was lost, repeated or reordered.

Each check counts what contradicts a promise; a verdict without contradictions is a proof as far as
the lake reaches, and says how far that is. What may be so without anything being wrong (a capture
that is behind, messages of a session that were completed in another order) is told as a remark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from onibus.broker.entity_info import EntityInfo
from onibus.broker.named_reader import StampsSetBack
from onibus.client import Client
from onibus.core.errors import EntityNotFound
from onibus.spark.lake_tables import LakeTables, log_of, open_lake
from onibus.spark.options import ReadOptions, read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: How many contradictions of a kind are named.
EXAMPLES = 5
#: What ends a message; dead-lettering only moves it to where it can end once more.
ENDS = ("completed", "expired", "cancelled", "activated", "forwarded", "purged")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    #: how many contradictions; 0 is what everybody hopes for
    count: int
    #: the first few of them, in words
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of an audit."""

    entity: str
    messages: int
    outcomes: int
    #: by partition: the first and the last number that the lake has
    covered: Mapping[int, tuple[int, int]]
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return not any(finding.count for finding in self.findings)


def audit(
    spark: SparkSession,
    source: Mapping[str, str],
    lake: str,
    *,
    with_broker: bool = True,
    on_progress: Callable[[str], None] = lambda check: None,
) -> Verdict:
    """Check what was captured of an entity, by itself and against the broker.

    `source` are the options of the format onibus (connection, entity). Without the broker, what
    only it knows (which messages are still there) is left out. Of a subscription the messages are
    those of its topic; which of them it takes its rules decide, so that one without an end is no
    contradiction.
    """
    options = read_options(source)
    tables = open_lake(spark, lake, options.entity)
    # The broker is asked before the lake is read: what comes later is in neither.
    broker = _Broker.ask(options) if with_broker else None
    findings = []
    for check in CHECKS:
        on_progress(check.__doc__ or "")
        findings += list(check(tables, broker))
    verdict = Verdict(
        entity=options.entity,
        messages=tables.rows.count(),
        outcomes=tables.outcomes.count(),
        covered=tables.covered,
        findings=tuple(findings),
        remarks=tuple(_remarks(tables, broker)),
    )
    tables.close()
    return verdict


@dataclass(frozen=True, slots=True)
class _Broker:
    """What the broker says of the entity at one moment."""

    latest: tuple[int | None, ...]
    #: the numbers that come next among the outcomes
    outcomes_latest: tuple[int | None, ...]
    #: messages that are there, in whatever state; None where not every row becomes one
    present: int | None
    #: the window of duplicate detection; None where there is none
    window_ms: int | None
    partitioned: bool
    #: where an operator set enqueued times back, after a wrong clock
    set_back: tuple[StampsSetBack, ...]

    def first_number(self, partition: int) -> int:
        """Return the number of the first message that a partition ever had (S2)."""
        return (partition << 48) + 1 if self.partitioned else 1

    @classmethod
    def ask(cls, options: ReadOptions) -> _Broker:
        with options.client() as client:
            info = entity_info(client, log_of(options.entity))
            positions = client.log_positions(log_of(options.entity))
            outcomes = client.log_positions(options.entity, log="outcomes")
        settings = info.settings
        detects = getattr(settings, "requires_duplicate_detection", False)
        return cls(
            positions.latest,
            outcomes.latest,
            _present(info) if info.kind == "queue" else None,
            settings.duplicate_detection_window_ms if detects else None,
            len(positions.latest) > 1,
            positions.set_back,
        )


def _present(info: EntityInfo[Any]) -> int:
    return info.active_count + info.deferred_count + info.scheduled_count + info.dead_lettered_count


def entity_info(client: Client, name: str) -> EntityInfo[Any]:
    """Return what the broker tells of a queue, a topic or a subscription."""
    if "/subscriptions/" in name.lower():
        return client.subscription(name)
    try:
        return client.queue(name)
    except EntityNotFound:
        return client.topic(name)


def _named(rows: DataFrame, sentence: str) -> tuple[int, tuple[str, ...]]:
    """Count rows, and put the first few into words."""
    count = rows.count()
    return count, _examples(count, rows, sentence)


def _examples(count: int, rows: DataFrame, sentence: str) -> tuple[str, ...]:
    some = rows.limit(EXAMPLES).collect() if count else []
    return tuple(sentence.format(**one.asDict()) for one in some)


def _numbers(tables: LakeTables, broker: _Broker | None) -> Iterator[Finding]:
    """Numbers that are there twice, or missing, and times that run backwards"""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    order = Window.partitionBy("partition").orderBy("sequence_number")
    steps = tables.rows.select(
        "sequence_number",
        "enqueued_time",
        F.lag("sequence_number").over(order).alias("before"),
        F.lag("enqueued_time").over(order).alias("time_before"),
    )
    # One pass counts; what is found, which is nothing, is looked at again.
    twice, hole = F.expr("sequence_number = before"), F.expr("sequence_number - before > 1")
    back = F.expr("enqueued_time < time_before")
    for one in () if broker is None else broker.set_back:
        number = one.sequence_number
        back &= ~F.expr(f"before < {number} AND sequence_number >= {number}")
    counted = steps.agg(
        F.count_if(twice).alias("twice"),
        F.sum(F.when(hole, F.expr("sequence_number - before - 1")).otherwise(0)).alias("missing"),
        F.count_if(back).alias("back"),
    ).collect()[0]
    again = steps.where(twice)
    holes = steps.where(hole).select(
        F.expr("before + 1").alias("first"), F.expr("sequence_number - 1").alias("last")
    )
    late = steps.where(back)
    yield Finding(
        "numbers that are there twice",
        counted.twice,
        _examples(counted.twice, again, "{sequence_number}"),
    )
    missing = counted.missing or 0
    yield Finding(
        "numbers that are missing",
        missing,
        _examples(missing, holes, "{first} to {last}"),
    )
    yield Finding(
        "enqueue times that run backwards (S4)",
        counted.back,
        _examples(counted.back, late, "{sequence_number} at {enqueued_time} after {time_before}"),
    )


def _sessions(tables: LakeTables, broker: _Broker | None) -> Iterator[Finding]:
    """Sessions in more than one partition"""
    from pyspark.sql import functions as F  # noqa: N812

    spread = (
        tables.rows.where("session_id IS NOT NULL")
        .groupBy("session_id")
        .agg(F.countDistinct("partition").alias("partitions"))
        .where("partitions > 1")
    )
    yield Finding(
        "sessions without one order: they lie in several partitions (P4)",
        *_named(spread, "session {session_id!r} lies in {partitions} partitions"),
    )


def _duplicates(tables: LakeTables, broker: _Broker | None) -> Iterator[Finding]:
    """Identities accepted twice inside the window"""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    if broker is None or broker.window_ms is None:
        return
    # An activated message repeats the id of its marker, and is no second one.
    sent = tables.rows.where(
        "message_id IS NOT NULL AND kind != 'copy' AND "
        "(kind = 'scheduled' OR scheduled_enqueue_time IS NULL)"
    )
    key = F.coalesce("session_id", "partition_key", "message_id")
    identity = ["message_id", key] if broker.partitioned else ["message_id"]
    before = F.lag("enqueued_time").over(
        Window.partitionBy(*identity).orderBy("enqueued_time", "sequence_number")
    )
    told = sent.select("message_id", "sequence_number", "enqueued_time", before.alias("before"))
    apart = F.expr("unix_millis(enqueued_time) - unix_millis(before)")
    again = told.where(apart < broker.window_ms)
    yield Finding(
        "messages accepted twice inside the window (D1)",
        *_named(again, "{message_id!r} again as {sequence_number}"),
    )


def _ends(tables: LakeTables, broker: _Broker | None) -> Iterator[Finding]:
    """Messages with more than one end, or none"""
    from pyspark.sql import functions as F  # noqa: N812

    if not tables.has_outcomes:
        return
    final = tables.outcomes.where(F.col("outcome").isin(*ENDS))
    ends = final.groupBy("partition", "sequence_number").agg(
        F.count("*").alias("ends"), F.concat_ws(", ", F.collect_list("outcome")).alias("which")
    )
    yield Finding(
        "messages with more than one end",
        *_named(ends.where("ends > 1"), "{sequence_number}: {which}"),
    )
    unknown = ends.join(tables.rows, ["partition", "sequence_number"], "left_anti")
    # What was there before the capture began has an end in the lake, and no row.
    pairs = [
        F.lit(x) for partition, (first, _) in tables.covered.items() for x in (partition, first)
    ]
    if pairs:
        unknown = unknown.where(F.col("sequence_number") >= F.create_map(pairs)[F.col("partition")])
    else:
        unknown = unknown.limit(0)
    yield Finding(
        "ends of messages that are not there",
        *_named(unknown, "{sequence_number}: {which}"),
    )
    if broker is not None and broker.present is not None and _complete(tables, broker):
        endless = tables.rows.join(ends, ["partition", "sequence_number"], "left_anti").count()
        lost = endless - broker.present
        words = (f"{endless} have no end, and the broker has {broker.present}",) if lost else ()
        yield Finding("messages with neither an end nor a place in the broker", abs(lost), words)


CHECKS = (_numbers, _sessions, _duplicates, _ends)


def _complete(tables: LakeTables, broker: _Broker) -> bool:
    """Tell whether the lake has the whole life of the entity, from its first message to now."""
    for partition, following in enumerate(broker.latest):
        first, last = tables.covered.get(partition, (None, None))
        begin = broker.first_number(partition)
        if following is None or (first is None) != (following == begin):
            return False
        if first is not None and (first != begin or last != following - 1):
            return False
    return not _outcomes_behind(tables, broker)


def _outcomes_behind(tables: LakeTables, broker: _Broker) -> int:
    """Return how many outcomes the broker has that the lake has not, or the other way round."""
    behind = 0
    for partition, following in enumerate(broker.outcomes_latest):
        behind += abs((following or 1) - 1 - tables.outcomes_until.get(partition, 0))
    return behind


def _moment(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _remarks(tables: LakeTables, broker: _Broker | None) -> Iterator[str]:
    """Yield what limits the verdict."""
    if not tables.has_outcomes:
        yield "outcomes were not captured: nothing is said of how messages ended"
    if broker is None:
        yield "the broker was not asked: nothing is said of what it still has"
        return
    if broker.present is None:
        yield (
            "messages of a topic end in its subscriptions, and rules decide what those take: one "
            "without an end is no contradiction"
        )
    for one in broker.set_back:
        yield (
            f"an operator set enqueued times of partition {one.partition} back at number "
            f"{one.sequence_number}, from {_moment(one.before_ms)} to {_moment(one.after_ms)}: "
            "a clock was wrong before that number"
        )
    if broker.window_ms is None:
        yield "the entity does not detect duplicates: ids may repeat"
    behind = 0
    for partition, following in enumerate(broker.latest):
        first = broker.first_number(partition)
        _, last = tables.covered.get(partition, (first, first - 1))
        behind += max((following or 0) - 1 - last, 0)
    ends = _outcomes_behind(tables, broker) if tables.has_outcomes else 0
    if behind or ends:
        yield (
            f"the lake is {behind:,} messages and {ends:,} outcomes behind the broker: capture "
            "again, then audit"
        )
    elif not _complete(tables, broker):
        yield (
            "the lake does not reach back to the entity's first message: messages that are in the "
            "broker are not counted against it"
        )
