"""`onibus pipeline capture`, `audit` and `report`: write a lake, verify it and plot it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.progress import Progress

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
    spark_when_needed,
    told_plainly,
    without_digits,
)
from onibus.cli.session import CommandSession, command
from onibus.cli.values import keep_ms_of, moment_ms
from onibus.core.errors import InvalidOperation, OnibusError

if TYPE_CHECKING:
    from onibus.spark.jobs.audit import Verdict
    from onibus.spark.jobs.capture import Captured


Marks = Annotated[
    list[str] | None,
    typer.Option("--mark", metavar="TIME=NAME", help="Mark this time in the plot of rates."),
]
AcceptGap = Annotated[
    bool, typer.Option("--accept-gap", help="Record deleted rows as a gap in this lake.")
]
NewIdentity = Annotated[
    bool, typer.Option("--new-identity", help="Make a copied lake separate from its original.")
]

Body = Annotated[
    str | None,
    typer.Option(
        help="Decode bodies from now on: none, text, json, avro, protobuf or cloudevents. "
        "Default: what the lake records."
    ),
]
BodySchema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        help="Fields of JSON 'id INT, total DOUBLE', or the file of an Avro schema or Protobuf "
        "descriptor set. Default: infer the fields of JSON.",
    ),
]
MessageType = Annotated[
    str | None, typer.Option("--type", help="Name of the Protobuf message: shop.Order.")
]
Keep = Annotated[
    str | None,
    typer.Option(
        metavar="90d|all",
        help="Remove rows from the lake that are older, from now on. Default: what the lake "
        "records, at first all.",
    ),
]
Table = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="delta|iceberg",
        help="Write Delta tables, or Iceberg tables of the same files as well, from now on. "
        "Default: what the lake records, at first delta.",
    ),
]
Catalog = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS|NAME",
        help="Catalog of the Iceberg tables: an address, or a name in the configuration of "
        "pyiceberg. Default: what the lake records, at first iceberg.db in the lake.",
    ),
]
OnError = Annotated[
    str,
    typer.Option(
        help="Treatment of fields that cannot be decoded: rescue writes them to the table errors, "
        "suspend stops the capture."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "capture")(capture)
    command(app, "register")(register_tables)
    command(app, "audit")(audit)
    command(app, "report")(report)


def capture(
    session: CommandSession,
    entity: Annotated[
        str | None, typer.Argument(help="A queue, a topic, or topic/subscriptions/name.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Capture every entity of the server, including new ones.")
    ] = False,
    lake: LakeFolder = "lake",
    continuous: Annotated[bool, typer.Option("--continuous", help="Capture until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option(help="Interval with --continuous.")] = "10 seconds",
    outcomes: Annotated[
        bool, typer.Option("--outcomes/--no-outcomes", help="Capture the outcomes of messages too.")
    ] = True,
    body: Body = None,
    schema: BodySchema = None,
    message_type: MessageType = None,
    on_error: OnError = "rescue",
    keep: Keep = None,
    table: Table = None,
    catalog: Catalog = None,
    messages_per_batch: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of messages per batch.")
    ] = None,
    accept_gap: AcceptGap = False,
    new_identity: NewIdentity = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Capture an entity's messages and their outcomes as Delta or Iceberg tables.

    Run it again at any time: it continues at the end of the lake and writes no row twice.
    """
    for_one: dict[str, Any] = {"outcomes": outcomes, "body": body, "schema": schema}
    for_one |= {"message_type": message_type, "on_error": on_error}
    for_one |= {"accept_gap": accept_gap, "new_identity": new_identity}
    given = for_one | {"messages_per_batch": messages_per_batch}
    _check_capture(entity, everything, given, master)
    from onibus.spark.jobs.capture import capture as run

    interval_s = seconds_of(interval)
    keeping: dict[str, Any] = {"keep_ms": keep_ms_of(keep), "table_format": table}
    keeping["catalog"] = catalog
    stop = threading.Event()
    ends, rest = (stop, interval_s) if continuous else (None, None)
    if entity is None:
        _capture_all(session, lake, rest, stop, master, conf, keeping)
        return
    source = source_of(session, entity)
    if messages_per_batch is not None:
        source["maxMessagesPerTrigger"] = str(messages_per_batch)
    with (
        spark_when_needed(session, master, conf, ends) as spark,
        session.out.progress() as progress,
    ):
        done = run(
            spark,
            source,
            lake,
            continuous=continuous,
            interval_s=interval_s,
            **for_one,
            **keeping,
            on_wait=lambda holder: session.out.say(f"waiting for {holder}, which writes this lake"),
            on_progress=_telling(progress, entity),
            stopped=stop.is_set,
        )
    session.out.done(msgspec.to_builtins(done), _sentence(done))


#: Options of a capture of one entity, with their names and defaults.
_FOR_ONE = {
    "--accept-gap": ("accept_gap", False),
    "--new-identity": ("new_identity", False),
    "--no-outcomes": ("outcomes", True),
    "--body": ("body", None),
    "--schema": ("schema", None),
    "--type": ("message_type", None),
    "--on-error": ("on_error", "rescue"),
    "--messages-per-batch": ("messages_per_batch", None),
}


def _check_capture(
    entity: str | None, everything: bool, given: Mapping[str, Any], master: str | None
) -> None:
    """Reject a capture that cannot start: its entity is ambiguous, or Spark or Java is missing."""
    from onibus.spark.session import MASTER, check_startable

    if (entity is None) != everything:
        raise typer.BadParameter("name an entity, or use --all")
    for_one = [flag for flag, (name, default) in _FOR_ONE.items() if given[name] != default]
    if everything and for_one:
        raise typer.BadParameter(f"{', '.join(for_one)} cannot be used with --all: name one entity")
    # Before anything is written: an empty lake and its readers would remain.
    check_startable(master or MASTER)


def _telling(progress: Progress, entity: str) -> Callable[[Captured], None]:
    """Return a function that shows the progress of a capture."""
    bar = progress.add_task(f"capturing {entity}", total=None)

    def tell(done: Captured) -> None:
        words = f"{done.messages:,} messages, {done.outcomes:,} outcomes, {done.behind:,} to go"
        rows = done.messages + done.outcomes
        progress.update(
            bar,
            description=f"capturing {entity}: {words}",
            completed=rows,
            total=rows + done.behind,
        )

    return tell


def _capture_all(
    session: CommandSession,
    lake: str,
    rest: float | None,
    stop: threading.Event,
    master: str | None,
    conf: list[str] | None,
    keeping: Mapping[str, Any],
) -> None:
    """Capture every entity once, or repeatedly at an interval."""
    from onibus.spark.jobs.capture_all import capture_round

    out = session.out

    failures = 0
    #: the last error of each entity, which the next round does not print again
    said: dict[str, str] = {}

    def failed(entity: str, error: Exception) -> None:
        nonlocal failures
        failures += 1
        sentence = f"onibus: {entity} not captured: {told_plainly(error)}"
        same = without_digits(sentence)
        if said.get(entity) != same:
            out.told.print(sentence, markup=False)
        said[entity] = same

    def captured(entity: str, done: Captured) -> None:
        said.pop(entity, None)
        if not done.files and not done.removed:
            return
        out.done(msgspec.to_builtins(done) | {"entity": entity}, f"{entity}: {_sentence(done)}")

    source = source_of(session, "")
    del source["entity"]
    with spark_when_needed(session, master, conf, None if rest is None else stop) as spark:
        while not stop.is_set():
            try:
                capture_round(
                    spark,
                    source,
                    lake,
                    **keeping,
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
    if done.removed:
        sentence += f"; removed {done.removed:,} rows that were too old"
    if done.errors:
        sentence += f"; {done.errors:,} fields or bodies could not be decoded: see table errors"
    return sentence


def register_tables(
    session: CommandSession,
    entity: Annotated[
        str | None,
        typer.Argument(help="A queue, a topic, or a subscription. Default: all of the lake."),
    ] = None,
    lake: LakeFolder = "lake",
    catalog: Catalog = None,
) -> None:
    """Create the Iceberg tables of a lake again, after it was moved.

    Do this too if another program changed them. The Delta tables stay as they are. No server and
    no Spark is needed.
    """
    from onibus.spark.jobs.register import entities_with_iceberg
    from onibus.spark.jobs.register import register as run
    from onibus.spark.lake import Lake

    names: list[str] = []
    for one in [entity] if entity else entities_with_iceberg(lake):
        names += run(Lake(lake, one), catalog)
    session.out.done({"tables": names}, f"registered {len(names)} tables: {', '.join(names)}")


def audit(
    session: CommandSession,
    entity: Entity,
    lake: LakeFolder = "lake",
    broker: Annotated[
        bool, typer.Option("--broker/--no-broker", help="Compare with the broker's messages.")
    ] = True,
    max_lag: Annotated[
        float, typer.Option(min=0, help="Seconds that the lake may lag behind the broker.")
    ] = 60.0,
    page: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML report with plots to this file.")
    ] = None,
    mark: Marks = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Verify with the lake and the broker that no message was lost, repeated or reordered.

    PASSED exits with 0. FAILED exits with 1: the audit found a contradiction. INCOMPLETE exits with
    7: rows or tables are missing, the lake is empty, or it lags too far behind.
    """
    from onibus.spark.jobs.audit import audit as run
    from onibus.spark.jobs.report import report as draw
    from onibus.spark.session import MASTER, check_startable

    if page is not None:
        # The report needs Spark even if the audit does not.
        check_startable(master or MASTER)
        _check_page(page)
    source = source_of(session, entity)
    # A small lake is read without Spark.
    with spark_when_needed(session, master, conf) as spark:
        verdict = run(
            spark,
            source,
            lake,
            with_broker=broker,
            max_lag_s=max_lag,
            on_progress=progress_of(session, "audit"),
        )
        if page is not None and verdict.messages:
            drawing = progress_of(session, "drawing")
            draw(
                spark(), source, lake, page,
                with_broker=broker, verdict=verdict, marks=_marks(mark), on_progress=drawing,
            )  # fmt: skip
    _show(session, verdict, page if verdict.messages else None)
    codes = {"PASSED": exits.OK, "FAILED": exits.REFUSED, "INCOMPLETE": exits.INCOMPLETE}
    if not verdict.passed:
        raise typer.Exit(codes[verdict.verdict])


def _check_page(page: Path) -> None:
    """Reject a report that cannot be written, before the time that it takes."""
    folder = page.absolute().parent
    if page.is_dir() or not os.access(page if page.exists() else folder, os.W_OK):
        raise InvalidOperation(f"cannot write {page}: name a file in an existing folder")


def _marks(given: list[str] | None) -> list[tuple[datetime, str]]:
    """Return the times to mark, with their names."""
    found = []
    for one in given or ():
        time, _, name = one.partition("=")
        found.append((datetime.fromtimestamp((moment_ms(time) or 0) / 1_000, UTC), name))
    return found


def _show(session: CommandSession, verdict: Verdict, page: Path | None) -> None:
    """Print a verdict."""
    out = session.out
    if out.as_json:
        told = {"passed": verdict.passed, "verdict": verdict.verdict}
        out.document(msgspec.to_builtins(verdict) | told)
        return
    out.rows(
        verdict.findings,
        {
            "": lambda one: "WRONG" if one.count else "ok",
            "check": lambda one: one.check,
            "found": lambda one: f"{one.count:,}",
            "examples": lambda one: "; ".join(one.examples) or None,
        },
    )
    for reason in verdict.incomplete:
        out.console.print(f"incomplete: {reason}", markup=False)
    for remark in verdict.remarks:
        out.console.print(f"note: {remark}", markup=False)
    out.console.print(
        f"{verdict.verdict}: {verdict.messages:,} messages and {verdict.outcomes:,} outcomes of "
        f"{verdict.entity}{_range(verdict)}",
        markup=False,
    )
    if page is not None:
        out.console.print(f"report: {page}", markup=False)


def _range(verdict: Verdict) -> str:
    """Return the range of sequence numbers that a verdict covers, as words."""
    if not verdict.covered:
        return ""
    spans = [f"{first} to {last}" for first, last in verdict.covered.values()]
    begins = "the first that its retention left" if verdict.kept_from else "the lake's start"
    if len(spans) == 1:
        return f", from {begins} to its end: sequence numbers {spans[0]}"
    parts = "; ".join(
        f"partition {at} {span}" for at, span in zip(verdict.covered, spans, strict=True)
    )
    return f", from {begins} to its end: {parts}"


def report(
    session: CommandSession,
    entity: Entity,
    lake: LakeFolder = "lake",
    to: Annotated[Path, typer.Option("--to", help="HTML file to write.")] = Path("report.html"),
    broker: Annotated[
        bool, typer.Option("--broker/--no-broker", help="Request duplicates from the broker.")
    ] = True,
    mark: Marks = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write an HTML report with plots of an entity's traffic."""
    from onibus.spark.jobs.report import report as run

    _check_page(to)
    with spark_for(session, master, conf) as spark:
        path = run(
            spark,
            source_of(session, entity),
            lake,
            to,
            with_broker=broker,
            marks=_marks(mark),
            on_progress=progress_of(session, "drawing"),
        )
    session.out.done({"page": str(path)}, f"report: {path}")
