"""`onibus pipeline process` and `deduplicate`: the bus's rules on rows of any Spark source."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from onibus.cli.pipeline import Conf, Master, spark_for
from onibus.cli.session import Session, command
from onibus.cli.values import duration_ms, moment_ms, named, optional_ms, settings_of
from onibus.core.settings import QueueSettings, make

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from onibus.spark.jobs.event_tables import Progress

Source = Annotated[str, typer.Argument(help="Where the rows are: a path, or a table's name.")]
Out = Annotated[str, typer.Option("--out", help="The folder for the tables.")]
Format = Annotated[
    str, typer.Option("--format", help="parquet, json, csv, onibus …, or table for a table.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the source."),
]
Stream = Annotated[
    bool, typer.Option("--stream", help="Read what is new since the last run, in micro-batches.")
]
Continuous = Annotated[
    bool, typer.Option("--continuous", help="Go on until stopped (Ctrl-C); means --stream.")
]
Interval = Annotated[str, typer.Option(help="How often, when continuous.")]
Time = Annotated[str, typer.Option("--arrival-time", help="The column with the time of arrival.")]
Order = Annotated[
    str, typer.Option("--arrival-order", help="The column that orders rows of one time.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "process", asks_server=False)(process)
    command(app, "deduplicate", asks_server=False)(deduplicate)


def process(
    session: Session,
    source: Source,
    out: Out,
    format: Format = "parquet",
    option: Options = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="NAME=VALUE",
            help="A setting of the queue, such as requires_duplicate_detection=true.",
        ),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="How far time goes in a batch: 2026-11-16T12:00:00Z.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="A further column to carry along.")
    ] = None,
    needs: Annotated[
        str | None, typer.Option(help="The column with what a message needs before it.")
    ] = None,
    gives: Annotated[
        str | None, typer.Option(help="The column with what a message gives to others.")
    ] = None,
    limit: Annotated[str, typer.Option(help="How long a message waits for its partner.")] = "1h",
    stream: Stream = False,
    continuous: Continuous = False,
    interval: Interval = "10 seconds",
    arrival_time: Time = "arrival_time",
    arrival_order: Order = "arrival_order",
    master: Master = None,
    conf: Conf = None,
) -> None:  # fmt: skip
    """Do with rows what a queue does with messages: tables of accepted, duplicates, waiting …

    Start it again whenever you like: a stream goes on where it was, a batch is done anew.
    """
    from onibus.spark.jobs.process import process as run
    from onibus.spark.operators import Arrival, PartnerRule

    settings = make(settings_of(chosen), QueueSettings)
    partners = None
    if (needs is None) != (gives is None):
        raise typer.BadParameter("--needs and --gives come together")
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
        f"{done.waiting:,} wait. The tables are in {out}",
    )


def deduplicate(
    session: Session,
    source: Source,
    out: Out,
    format: Format = "parquet",
    option: Options = None,
    by: Annotated[str, typer.Option(help="What makes rows equal: id, id-and-key, content.")] = "id",
    window: Annotated[
        str | None, typer.Option(help="For how long rows repeat each other; without it, for ever.")
    ] = None,
    message_id: Annotated[str, typer.Option("--id", help="The column with the id.")] = "message_id",
    key: Annotated[
        list[str] | None, typer.Option(help="A column with the key; the first that is set counts.")
    ] = None,
    body: Annotated[str, typer.Option(help="The column with the content.")] = "body",
    groups: Annotated[int, typer.Option(min=1, help="Into how many pieces the work is cut.")] = 64,
    stream: Stream = False,
    continuous: Continuous = False,
    interval: Interval = "10 seconds",
    arrival_time: Time = "arrival_time",
    arrival_order: Order = "arrival_order",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Keep the first of equal rows of a history, and tell which ones were dropped."""
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
        f"{done.clean:,} rows are clean, {done.duplicates:,} were duplicates, "
        f"{done.seconds:.1f} s. The tables are in {out}",
    )


def read_source(
    spark: SparkSession, source: str, format: str, option: list[str] | None, stream: bool
) -> DataFrame:
    """Return the rows of a source; of files, a stream has the columns that they have now."""
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
    """Return a function that shows how far a job is."""

    def tell(done: Progress) -> None:
        counts = ", ".join(f"{table} {count:,}" for table, count in done.counts.items() if count)
        show(f"batch {done.batches}: {counts or 'nothing yet'}")

    return tell
