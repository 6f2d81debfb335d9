"""`onibus up`: a server, and a pipeline that captures every entity into a lake.

The pipeline is a separate process, so its failures do not stop the server. A pipeline that ends is
restarted, after a longer delay each time it fails. Its readers exist before the first client
connects: the lake gets each message, even those completed before Spark has started.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onibus.cli import serve as serving
from onibus.cli.printing import print_error, print_line
from onibus.cli.values import keep_ms_of
from onibus.core.errors import Refused

if TYPE_CHECKING:
    from onibus.bus import Bus
    from onibus.server.config import Config
    from onibus.server.run import Ready

#: Delay before a failed pipeline restarts: the first, and the longest.
_REST_S, _REST_S_MAX = 5.0, 300.0
#: A pipeline that ran this long started well.
_WENT_WELL_S = 600.0
#: A run does not repeat lines of the previous run: at most this many are compared.
_LINES_COMPARED = 200
#: Time for the pipeline to finish when the server stops.
_FINISH_S = 30.0


class Pipeline:
    """A capture process that keeps running next to a server."""

    def __init__(
        self,
        lake: str,
        interval: str,
        keep_ms: int | None,
        table: str | None = None,
        catalog: str | None = None,
    ) -> None:
        self._lake = lake
        self._interval = interval
        self._keep_ms = keep_ms
        self._tables = {"--table": table, "--catalog": catalog}
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._refused: Refused | None = None
        #: the lines of the run before this one
        self._said: set[str] = set()

    def configure(self, config: Config) -> None:
        """Take the options that the command line lacks from the configuration."""
        if self._keep_ms is None:
            self._keep_ms = config.lake.keep_ms

    async def prepare(self, bus: Bus) -> None:
        """Retain each message for the lake from now on, before a client can send one."""
        from onibus.spark.session import check_startable

        try:
            await asyncio.to_thread(check_startable)
            # Only now: they import packages that come with Spark.
            from onibus.spark.iceberg_catalog import check_tables
            from onibus.spark.lake_reserving import reserve_all

            check_tables(self._tables["--table"], self._tables["--catalog"])
            await reserve_all(bus, self._lake)
        except Refused as error:
            self._refused = error

    def start(self, ready: Ready) -> None:
        """Start the pipeline once the server accepts connections, or print why it cannot start."""
        if self._refused is not None:
            print_error(f"onibus: the server runs without a pipeline: {self._refused}")
            return
        from onibus.spark.lake_reaching import address_of

        print_line(f"the pipeline captures every entity into {address_of(self._lake)}")
        connection = f"@{ready.connection_file}" if ready.connection_file else ready.development
        arguments = [
            *(sys.executable, "-m", "onibus.cli.with_parent"),
            *("pipeline", "capture", "--all", "--continuous"),
            *("--lake", self._lake, "--interval", self._interval),
            *self._keeping(),
            *("--connect", connection or ready.http),
            *(("--trust", ready.certificate) if ready.certificate else ()),
        ]
        self._thread = threading.Thread(target=self._keep, args=(arguments,), daemon=True)
        self._thread.start()

    def _keeping(self) -> tuple[str, ...]:
        """Return the options of the capture for the age of rows and the format of tables."""
        given = {name: value for name, value in self._tables.items() if value is not None}
        if self._keep_ms is not None:
            given["--keep"] = f"{self._keep_ms}ms" if self._keep_ms else "all"
        return tuple(word for option in given.items() for word in option)

    def _keep(self, arguments: list[str]) -> None:
        rest = _REST_S
        while not self._stopping.is_set():
            # A separate process group: Ctrl-C goes to the server, which then stops the pipeline.
            process = subprocess.Popen(
                arguments, start_new_session=True, stdin=subprocess.PIPE, stderr=subprocess.PIPE
            )
            self._process = process
            begun = time.monotonic()
            assert process.stderr is not None
            lines = self._show(process.stderr)
            code = process.wait()
            went_well = time.monotonic() - begun > _WENT_WELL_S
            rest = _REST_S if went_well else rest
            if self._stopping.is_set():
                return
            ended = f"onibus: the pipeline ended with exit code {code}: restarting it"
            lines |= self._show([ended.encode()])
            self._said = set() if went_well else lines
            self._stopping.wait(rest)
            rest = min(rest * 2, _REST_S_MAX)

    def _show(self, lines: Iterable[bytes]) -> set[str]:
        """Print the lines of a run, except those of the run before; return the first of them."""
        seen: set[str] = set()
        for line in lines:
            text = line.decode(errors="replace").rstrip("\n")
            if text not in self._said:
                print_error(text)
            if len(seen) < _LINES_COMPARED:
                seen.add(text)
        return seen

    def stop(self) -> None:
        """Let the pipeline finish its batch, for a limited time."""
        self._stopping.set()
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(_FINISH_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def up(**given: Any) -> None:
    """Run a server and capture every entity into a lake."""
    keep_ms = keep_ms_of(given.pop("keep"))
    pipeline = Pipeline(
        given.pop("lake"), given.pop("interval"), keep_ms, given.pop("table"), given.pop("catalog")
    )
    try:
        code = serving.run(
            given,
            on_ready=pipeline.start,
            prepare=pipeline.prepare,
            on_config=pipeline.configure,
        )
    finally:
        pipeline.stop()
    raise typer.Exit(code)


def _option(name: str, kind: Any, option: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


#: The options of `serve`, and those of the pipeline.
_PARAMETERS = [
    *(
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in inspect.signature(serving.serve, eval_str=True).parameters.values()
    ),
    _option(
        "lake",
        str,
        typer.Option(help="Location of the lake: a folder, or s3://…, hdfs://….", metavar="DIR"),
        "lake",
    ),
    _option("interval", str, typer.Option(help="Interval between captures."), "10 seconds"),
    _option(
        "keep",
        str | None,
        typer.Option(
            help="Remove rows from the lake that are older, from now on. Default: keep_ms of "
            "[lake], else what the lake records.",
            metavar="90d|all",
        ),
        None,
    ),
    _option(
        "table",
        str | None,
        typer.Option(
            help="Write Delta tables, or Iceberg tables of the same files as well. Default: what "
            "the lake records, at first delta.",
            metavar="delta|iceberg",
        ),
        None,
    ),
    _option(
        "catalog",
        str | None,
        typer.Option(
            help="Catalog of the Iceberg tables: an address, or a name in the configuration of "
            "pyiceberg. Default: what the lake records, at first iceberg.db in the lake.",
            metavar="ADDRESS|NAME",
        ),
        None,
    ),
]
up.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]
up.__annotations__ = {one.name: one.annotation for one in _PARAMETERS}
