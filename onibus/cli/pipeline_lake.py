"""`onibus pipeline capture`, `audit` and `report`: into a lake, and what it proves and shows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from onibus.cli import exits
from onibus.cli.output import bytes_text
from onibus.cli.pipeline import (
    Conf,
    Entity,
    LakeFolder,
    Master,
    progress_of,
    seconds_of,
    source_of,
    spark_for,
    told_plainly,
)
from onibus.cli.session import Session, command
from onibus.core.errors import OnibusError

if TYPE_CHECKING:
    from onibus.spark.jobs.audit import Verdict
    from onibus.spark.jobs.capture import Captured


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "capture")(capture)
    command(app, "audit")(audit)
    command(app, "report")(report)


def capture(
    session: Session,
    entity: Annotated[
        str | None, typer.Argument(help="A queue, a topic, or topic/subscriptions/name.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every entity of the server, new ones too.")
    ] = False,
    lake: LakeFolder = "lake",
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on until stopped (Ctrl-C).")
    ] = False,
    interval: Annotated[str, typer.Option(help="How often, when continuous.")] = "10 seconds",
    outcomes: Annotated[
        bool, typer.Option("--outcomes/--no-outcomes", help="What became of messages, too.")
    ] = True,
    body: Annotated[
        str | None,
        typer.Option(
            help="How bodies are decoded: text, or fields of JSON: 'id INT, name STRING'."
        ),
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="A body that cannot be decoded: suspend, skip or dead-letter.")
    ] = "suspend",
    messages_per_batch: Annotated[
        int | None, typer.Option(min=1, help="Messages in a batch, at most.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Capture an entity's messages, and what became of them, as Parquet files.

    Start it again whenever you like: it goes on where it was, and nothing is there twice.
    """
    from onibus.spark.jobs.capture import capture as run

    if (entity is None) != everything:
        raise typer.BadParameter("name an entity, or say --all")
    stop = threading.Event()
    ends = stop if continuous else None
    if entity is None:
        _capture_all(session, lake, interval if continuous else None, stop, master, conf)
        return
    source = source_of(session, entity)
    if messages_per_batch is not None:
        source["maxMessagesPerTrigger"] = str(messages_per_batch)
    with spark_for(session, master, conf, ends) as spark, session.out.progress() as progress:
        bar = progress.add_task(f"capturing {entity}", total=None)

        def tell(done: Captured) -> None:
            progress.update(bar, description=f"capturing {entity}: {done.messages:,} messages")

        done = run(
            spark,
            source,
            lake,
            continuous=continuous,
            interval=interval,
            outcomes=outcomes,
            body=body,
            on_error=on_error,
            on_progress=tell,
            stopped=stop.is_set,
        )
    session.out.done(msgspec.to_builtins(done), _sentence(done))


def _capture_all(
    session: Session,
    lake: str,
    interval: str | None,
    stop: threading.Event,
    master: str | None,
    conf: list[str] | None,
) -> None:
    """Capture everything once, or again and again at an interval."""
    from onibus.spark.jobs.capture_all import capture_round

    rest = None if interval is None else seconds_of(interval)
    out = session.out

    def captured(entity: str, done: Captured) -> None:
        if not done.files:
            return
        out.done(msgspec.to_builtins(done) | {"entity": entity}, f"{entity}: {_sentence(done)}")

    failures = 0

    def failed(entity: str, error: Exception) -> None:
        nonlocal failures
        failures += 1
        out.told.print(f"onibus: {entity} was not captured: {told_plainly(error)}", markup=False)

    source = source_of(session, "")
    del source["entity"]
    with spark_for(session, master, conf, None if rest is None else stop) as spark:
        while not stop.is_set():
            try:
                capture_round(
                    spark,
                    source,
                    lake,
                    on_captured=captured,
                    on_failure=failed,
                    stopped=stop.is_set,
                )
            except OnibusError as error:
                if rest is None:
                    raise
                failed("the server", error)
            if rest is None:
                break
            stop.wait(rest)
    if rest is None and failures:
        raise typer.Exit(exits.FAILED)


def _sentence(done: Captured) -> str:
    sentence = (
        f"captured {done.messages:,} messages and {done.outcomes:,} outcomes in {done.files} "
        f"files ({bytes_text(done.size_bytes)}), {done.seconds:.1f} s"
    )
    if done.errors:
        sentence += f"; {done.errors:,} messages could not be decoded and were set aside"
    return sentence


def audit(
    session: Session,
    entity: Entity,
    lake: LakeFolder = "lake",
    broker: Annotated[
        bool, typer.Option("--broker/--no-broker", help="Ask the broker what it still has.")
    ] = True,
    page: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML page with plots here.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Prove from the lake and the broker that nothing was lost, repeated or reordered.

    Exit code 1: a contradiction was found.
    """
    from onibus.spark.jobs.audit import audit as run
    from onibus.spark.jobs.report import report as draw

    source = source_of(session, entity)
    with spark_for(session, master, conf) as spark:
        verdict = run(
            spark, source, lake, with_broker=broker, on_progress=progress_of(session, "checking")
        )
        if page is not None:
            drawing = progress_of(session, "drawing")
            draw(
                spark, source, lake, page,
                with_broker=broker, verdict=verdict, on_progress=drawing,
            )  # fmt: skip
    _show(session, verdict, page)
    if not verdict.passed:
        raise typer.Exit(exits.REFUSED)


def _show(session: Session, verdict: Verdict, page: Path | None) -> None:
    """Print a verdict."""
    out = session.out
    if out.as_json:
        out.document(msgspec.to_builtins(verdict) | {"passed": verdict.passed})
        return
    out.rows(
        verdict.findings,
        {
            "": lambda one: "WRONG" if one.count else "ok",
            "check": lambda one: one.check,
            "found": lambda one: f"{one.count:,}",
            "such as": lambda one: "; ".join(one.examples) or None,
        },
    )
    for remark in verdict.remarks:
        out.console.print(f"note: {remark}", markup=False)
    word = "PASSED" if verdict.passed else "FAILED"
    out.console.print(
        f"{word}: {verdict.messages:,} messages and {verdict.outcomes:,} outcomes of "
        f"{verdict.entity} in {len(verdict.covered)} partitions",
        markup=False,
    )
    if page is not None:
        out.console.print(f"the page is {page}", markup=False)


def report(
    session: Session,
    entity: Entity,
    lake: LakeFolder = "lake",
    to: Annotated[Path, typer.Option("--to", help="The HTML file to write.")] = Path("report.html"),
    broker: Annotated[
        bool, typer.Option("--broker/--no-broker", help="Ask the broker for its duplicates.")
    ] = True,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write an HTML page with plots of what went through an entity."""
    from onibus.spark.jobs.report import report as run

    with spark_for(session, master, conf) as spark:
        path = run(
            spark,
            source_of(session, entity),
            lake,
            to,
            with_broker=broker,
            on_progress=progress_of(session, "drawing"),
        )
    session.out.done({"page": str(path)}, f"the page is {path}")
