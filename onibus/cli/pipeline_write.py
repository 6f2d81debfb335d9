"""`onibus pipeline ingest` and `replay`: send rows to an entity, each exactly once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from onibus.cli.pipeline import Conf, Entity, Master, source_of, spark_for
from onibus.cli.pipeline_rows import Format, Options, Source, read_source
from onibus.cli.session import CommandSession, command
from onibus.cli.values import moment_ms

if TYPE_CHECKING:
    from onibus.spark.jobs.ingest import Ingested
    from onibus.spark.jobs.replay import Replayed

Checkpoint = Annotated[
    str | None,
    typer.Option(help="Checkpoint folder of a stream. Default: send one batch."),
]
JobName = Annotated[
    str | None,
    typer.Option(help="Name of this job: the bus accepts each batch once per name."),
]
Body = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="Column with the body. Default: body, else the row as JSON."
    ),
]
Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id", metavar="COLUMN", help="Columns of the MessageId. Default: a hash of the content."
    ),
]
SessionId = Annotated[str | None, typer.Option("--session", metavar="COLUMN")]
PartitionKey = Annotated[str | None, typer.Option("--key", metavar="COLUMN")]
Subject = Annotated[str | None, typer.Option(metavar="COLUMN")]
Due = Annotated[
    str | None, typer.Option("--at", metavar="COLUMN", help="Column with the enqueue time.")
]
Properties = Annotated[list[str] | None, typer.Option("--property", metavar="COLUMN")]
Continuous = Annotated[bool, typer.Option("--continuous", help="Run until Ctrl-C.")]
Interval = Annotated[str, typer.Option(help="Interval with --continuous.")]

ReplayName = Annotated[str, typer.Option(help="Name of the replay; run it again to continue.")]
To = Annotated[str | None, typer.Option(help="Entity to send to. Default: the source entity.")]
From = Annotated[
    str | None, typer.Option("--lake", help="Read from this lake. Default: the retained messages.")
]
Since = Annotated[
    str | None,
    typer.Option(help="Enqueued at or after 2026-05-01T12:00:00Z, or within the last 2h."),
]
Until = Annotated[str | None, typer.Option(help="Enqueued before this time.")]
Partition = Annotated[int | None, typer.Option(min=0)]
First = Annotated[int | None, typer.Option(help="First sequence number.")]
Last = Annotated[int | None, typer.Option(help="Last sequence number.")]
Where = Annotated[str | None, typer.Option(help="Spark SQL condition: \"subject = 'paid'\".")]
NewIds = Annotated[
    bool, typer.Option("--new-ids", help="Set new MessageIds from name and sequence number.")
]
Rate = Annotated[float | None, typer.Option(help="Maximum messages per second. Default: no limit.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count the messages; send none.")]
State = Annotated[str, typer.Option(help="Folder for replay plans.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "ingest")(ingest)
    command(app, "replay")(replay)


def ingest(
    session: CommandSession,
    source: Source,
    entity: Entity,
    format: Format = "parquet",
    option: Options = None,
    checkpoint: Checkpoint = None,
    name: JobName = None,
    body: Body = None,
    ids: Ids = None,
    session_id: SessionId = None,
    partition_key: PartitionKey = None,
    subject: Subject = None,
    due: Due = None,
    properties: Properties = None,
    continuous: Continuous = False,
    interval: Interval = "10 seconds",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Send rows of files, or of any other Spark source, to a queue or topic.

    Run it again at any time: rows already sent are not sent again.
    """
    from onibus.spark.jobs.ingest import Fields
    from onibus.spark.jobs.ingest import ingest as run

    if continuous and checkpoint is None:
        raise typer.BadParameter("--continuous needs a --checkpoint")
    fields = Fields(
        body=body,
        ids=ids or (),
        session_id=session_id,
        partition_key=partition_key,
        subject=subject,
        scheduled_enqueue_time=due,
        properties=properties or (),
    )
    stop = threading.Event()
    ends = stop if continuous else None
    with spark_for(session, master, conf, ends) as spark, session.out.progress() as progress:
        bar = progress.add_task(f"sending to {entity}", total=None)

        def tell(done: Ingested) -> None:
            told = f"sending to {entity}: {done.rows:,} rows in {done.batches} batches"
            progress.update(bar, description=told)

        done = run(
            read_source(spark, source, format, option, checkpoint is not None),
            source_of(session, entity),
            checkpoint=checkpoint,
            name=name,
            fields=fields,
            interval=interval if continuous else None,
            on_progress=tell,
            stopped=stop.is_set,
        )
    sentence = (
        f"sent {done.rows:,} rows to {entity} in {done.batches} batches, {done.seconds:.1f} s"
    )
    if done.again:
        sentence = f"{name} was already sent to {entity}: nothing to do"
    session.out.done(msgspec.to_builtins(done), sentence)


def replay(
    session: CommandSession,
    entity: Entity,
    name: ReplayName,
    to: To = None,
    lake: From = None,
    since: Since = None,
    until: Until = None,
    partition: Partition = None,
    first: First = None,
    last: Last = None,
    where: Where = None,
    new_ids: NewIds = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    state: State = "replays",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Send messages again, from a lake or from those that an entity retains.

    Run it again with the same name at any time: messages already sent are not sent again.
    """
    from onibus.spark.jobs.replay import LakeSource, LogSource, Selection
    from onibus.spark.jobs.replay import replay as run

    selection = Selection(
        since_ms=moment_ms(since),
        until_ms=moment_ms(until),
        partition=partition,
        first=first,
        last=last,
        where=where,
        since=since,
        until=until,
    )
    target = to or entity
    stop = threading.Event()
    with spark_for(session, master, conf, stop) as spark, session.out.progress() as progress:
        bar = progress.add_task(f"replaying to {target}", total=None)

        def tell(done: Replayed) -> None:
            told = f"replaying to {target}: {done.sent:,} of {done.chosen:,}"
            progress.update(bar, description=told, completed=done.sent, total=done.chosen)

        done = run(
            LogSource(spark, source_of(session, entity))
            if lake is None
            else LakeSource(spark, lake, entity),
            source_of(session, target),
            name=name,
            state=state,
            selection=selection,
            new_ids=new_ids,
            rate=rate,
            dry_run=dry_run,
            on_progress=tell,
            stopped=stop.is_set,
        )
    session.out.done(msgspec.to_builtins(done), _sentence(done, target, dry_run))


def _sentence(done: Replayed, target: str, dry_run: bool) -> str:
    """Return a sentence about a finished replay."""
    if dry_run:
        return f"{done.chosen:,} messages would be sent to {target}"
    sent = f"sent {done.sent:,} messages to {target}, {done.seconds:.1f} s"
    left = done.chosen - done.sent
    return f"{sent}; {left:,} left: run it again" if left else sent
