"""`onibus pipeline process` and `deduplicate`: queue semantics for rows of any Spark source."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from onibus.cli.pipeline import Conf, Master, spark_for
from onibus.cli.session import CommandSession, command
from onibus.cli.values import duration_ms, moment_ms, named, optional_ms, settings_of
from onibus.core.settings import QueueSettings, make

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from onibus.spark.jobs.event_tables import Progress

Source = Annotated[str, typer.Argument(help="Source of the rows: a path or a table name.")]
Out = Annotated[str, typer.Option("--out", help="Output folder for the tables.")]
Format = Annotated[
    str, typer.Option("--format", help="Source format: parquet, json, csv, onibus …, or table.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Set a source option. Repeatable."),
]
Stream = Annotated[
    bool, typer.Option("--stream", help="Read rows added since the last run, in micro-batches.")
]
Continuous = Annotated[
    bool, typer.Option("--continuous", help="Run until Ctrl-C; implies --stream.")
]
Interval = Annotated[str, typer.Option(help="Interval with --continuous.")]
Time = Annotated[str, typer.Option("--arrival-time", help="Column with the arrival time.")]
Order = Annotated[
    str, typer.Option("--arrival-order", help="Column that orders rows with the same time.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "process", asks_server=False)(process)
    command(app, "deduplicate", asks_server=False)(deduplicate)


def process(
    session: CommandSession,
    source: Source,
    out: Out,
    format: Format = "parquet",
    option: Options = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="NAME=VALUE",
            help="Set a queue setting, such as requires_duplicate_detection=true. Repeatable.",
        ),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="End time of the batch: 2026-11-16T12:00:00Z.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="Copy this column to the output. Repeatable.")
    ] = None,
    needs: Annotated[
        str | None, typer.Option(help="Column with the key that a message waits for.")
    ] = None,
    gives: Annotated[
        str | None, typer.Option(help="Column with the key that a message provides.")
    ] = None,
    limit: Annotated[str, typer.Option(help="Maximum wait of a message for its partner.")] = "1h",
    stream: Stream = False,
    continuous: Continuous = False,
    interval: Interval = "10 seconds",
    arrival_time: Time = "arrival_time",
    arrival_order: Order = "arrival_order",
    master: Master = None,
    conf: Conf = None,
) -> None:  # fmt: skip
    """Apply queue semantics to rows: write accepted, duplicate, expired and waiting rows to tables.

    Run it again at any time: a stream continues where it stopped, a batch starts over.
    """
    from onibus.spark.jobs.process import process as run
    from onibus.spark.operators import Arrival, PartnerRule

    settings = make(settings_of(chosen), QueueSettings)
    partners = None
    if (needs is None) != (gives is None):
        raise typer.BadParameter("give both --needs and --gives, or neither")
    if needs is not None and gives is not None:
        partners = PartnerRule(needs, gives, duration_ms(limit))
    stop = threading.Event()
    ends = stop if continuous else None
    with spark_for(session, master, conf, ends) as spark, session.out.progress() as progress:
        bar = progress.add_task("processing", total=None)
        done = run(
            read_source(spark, source, format, option, stream or continuous),
            out,
            settings,
            arrival=Arrival(arrival_time, arrival_order),
            as_of=moment_ms(as_of),
            keep=keep or [],
            partners=partners,
            interval=interval if continuous else None,
            on_progress=_teller(lambda told: progress.update(bar, description=told)),
            stopped=stop.is_set,
        )
    session.out.done(
        msgspec.to_builtins(done),
        f"accepted {done.accepted:,}, duplicates {done.duplicates:,}, expired {done.expired:,}, "
        f"dead-lettered {done.dead_lettered:,} in {done.batches} batches, {done.seconds:.1f} s; "
        f"{done.waiting:,} waiting; tables in {out}",
    )


def deduplicate(
    session: CommandSession,
    source: Source,
    out: Out,
    format: Format = "parquet",
    option: Options = None,
    by: Annotated[str, typer.Option(help="Compare rows by id, id-and-key or content.")] = "id",
    window: Annotated[
        str | None, typer.Option(help="Detection window: 10m, 7d. Default: no limit.")
    ] = None,
    message_id: Annotated[str, typer.Option("--id", help="Column with the id.")] = "message_id",
    key: Annotated[
        list[str] | None,
        typer.Option(help="Key column; the first that is set applies. Repeatable."),
    ] = None,
    body: Annotated[str, typer.Option(help="Column with the content.")] = "body",
    groups: Annotated[
        int, typer.Option(min=1, help="Number of groups to divide the rows into.")
    ] = 64,
    stream: Stream = False,
    continuous: Continuous = False,
    interval: Interval = "10 seconds",
    arrival_time: Time = "arrival_time",
    arrival_order: Order = "arrival_order",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Keep the first of equal rows, and list the dropped ones."""
    from onibus.spark.jobs.deduplicate import deduplicate as run
    from onibus.spark.operators import Arrival

    stop = threading.Event()
    ends = stop if continuous else None
    with spark_for(session, master, conf, ends) as spark, session.out.progress() as progress:
        bar = progress.add_task("deduplicating", total=None)
        done = run(
            read_source(spark, source, format, option, stream or continuous),
            out,
            by=by,
            window_ms=optional_ms(window),
            arrival=Arrival(arrival_time, arrival_order),
            message_id=message_id,
            key=key or None,
            body=body,
            groups=groups,
            interval=interval if continuous else None,
            on_progress=_teller(lambda told: progress.update(bar, description=told)),
            stopped=stop.is_set,
        )
    session.out.done(
        msgspec.to_builtins(done),
        f"{done.clean:,} unique rows, {done.duplicates:,} duplicates, "
        f"{done.seconds:.1f} s; tables in {out}",
    )


def read_source(
    spark: SparkSession, source: str, format: str, option: list[str] | None, stream: bool
) -> DataFrame:
    """Return the rows of a source; a stream of files has their current columns."""
    options: dict[str, Any] = named(option, "--option")
    if format == "table":
        return spark.readStream.table(source) if stream else spark.read.table(source)
    batch = spark.read.format(format).options(**options)
    if not stream:
        return batch.load(source)
    reader = spark.readStream.format(format).options(**options)
    if format in ("parquet", "json", "csv", "orc", "text"):
        reader = reader.schema(batch.load(source).schema)
    return reader.load(source)


def _teller(show: Callable[[str], None]) -> Callable[[Progress], None]:
    """Return a function that shows the progress of a job."""

    def tell(done: Progress) -> None:
        counts = ", ".join(f"{table} {count:,}" for table, count in done.counts.items() if count)
        show(f"batch {done.batches}: {counts or 'nothing yet'}")

    return tell
