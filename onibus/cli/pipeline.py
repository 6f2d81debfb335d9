"""`onibus pipeline`: jobs that run on Spark.

They share the options that choose Spark (--master, --conf) and the report of its failures: the user
sees the error that an Onibus part raised in a worker, without the traces around it.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from onibus.cli import exits
from onibus.cli.session import CommandSession
from onibus.client import problems
from onibus.core import errors
from onibus.core.errors import Failed, InvalidArgument, OnibusError, Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pipeline_app = typer.Typer(help="Capture, audit, ingest and replay messages.", no_args_is_help=True)

Entity = Annotated[str, typer.Argument(help="A queue, a topic, or topic/subscriptions/name.")]
LakeFolder = Annotated[
    str, typer.Option("--lake", help="Location of the lake: a folder, or s3://…, hdfs://….")
]
Master = Annotated[
    str | None,
    typer.Option(help="Spark to use: local[2,3], spark://host:7077, sc://host:15002 …"),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="Set a Spark setting. Repeatable."),
]

#: An Onibus error at the end of a Python trace.
_OURS = re.compile(r"\bonibus\.[\w.]*?(\w+): (.+)")
#: A worker without onibus installed.
_MISSING = re.compile(r"No module named '(onibus|pyspark_onibus)'")
#: Any other Python error in a trace.
_THEIRS = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .+$", re.MULTILINE)
#: A Java error in a trace, and its causes.
_JAVA = re.compile(r"^(?:: |Caused by: )(?:[\w$]+\.)*([\w$]+: .+)$", re.MULTILINE)
#: Random digits in the names of a lake's files.
_DIGITS = re.compile(r"[0-9a-f]{8,}")

#: Time for a job to release its lake and Spark after SIGTERM.
_END_S = 20.0

#: Errors that Spark reports when its processes do not start.
_STARVED, _NO_GATEWAY = "Python worker failed to connect back", "JAVA_GATEWAY_EXITED"


class PipelineRefused(Refused):
    """A rejection by a part of a job, which states the reason."""

    code = "pipeline-refused"


class PipelineFailed(Failed):
    """A failure of a job in Spark."""

    code = "pipeline-failed"


def source_of(session: CommandSession, entity: str) -> dict[str, str]:
    """Return the options of format `onibus` for an entity of the chosen server."""
    options = {"connection": session.connection, "entity": entity}
    if session.trust is not None:
        options["certificate"] = session.trust
    return options


@contextmanager
def spark_for(
    session: CommandSession,
    master: str | None,
    conf: list[str] | None,
    stop: threading.Event | None = None,
) -> Iterator[SparkSession]:
    """Open a Spark session for one job, and raise its failures as one sentence.

    With `stop`, SIGINT and SIGTERM set that event instead of ending the job abruptly. Without it
    they end the job, which releases its lake and Spark.
    """
    with spark_when_needed(session, master, conf, stop) as start:
        yield start()


@contextmanager
def spark_when_needed(
    session: CommandSession,
    master: str | None,
    conf: list[str] | None,
    stop: threading.Event | None = None,
) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that starts Spark once: a job without rows does not wait for it."""
    from onibus.spark.session import MASTER, spark_session

    settings = _settings(conf)
    started: list[SparkSession] = []

    def start() -> SparkSession:
        if not started:
            session.out.say("starting Spark …")
            _on_signals(stop, interrupt=True)
            logging.getLogger().addFilter(_is_not_interruption)
            try:
                started.append(spark_session(master or MASTER, **settings))
            except KeyboardInterrupt:
                if stop is None:
                    raise
                raise typer.Exit(exits.OK) from None
            finally:
                logging.getLogger().removeFilter(_is_not_interruption)
            # Only now: Spark has just installed a signal handler that would cancel everything.
            _on_signals(stop)
        return started[0]

    _on_signals(stop)
    with _ending_in_time() if stop is None else nullcontext():
        try:
            yield start
        except (OnibusError, typer.Exit):
            raise
        except Exception as error:
            raise told_plainly(error) from error
        finally:
            for one in started:
                _stop(one)


def _stop(session: SparkSession) -> None:
    """Stop Spark, even if this thread was interrupted while it waited for Java's answer."""

    def stop() -> None:
        # It may have ended.
        with suppress(Exception):
            session.stop()

    # Each thread has its own connection to Java.
    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    stopping.join()


@contextmanager
def _ending_in_time() -> Iterator[None]:
    """End this process soon after a signal, even if a file system or Java keeps its main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def watch() -> None:
        with open(reading, "rb", buffering=0) as signals:
            number = signals.read(1)
            if number and not ended.wait(_END_S):
                os._exit(128 + number[0])

    ended = threading.Event()
    threading.Thread(target=watch, daemon=True).start()
    before = signal.set_wakeup_fd(writing)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        os.close(writing)


def _is_not_interruption(record: logging.LogRecord) -> bool:
    """Return whether a record is something other than Py4J's trace of a signal while it waits."""
    return not str(record.msg).startswith("KeyboardInterrupt while")


def _settings(conf: list[str] | None) -> dict[str, str]:
    """Return the Spark settings of --conf."""
    settings = {}
    for one in conf or ():
        name, mark, value = one.partition("=")
        if not mark:
            raise InvalidArgument(f"--conf takes NAME=VALUE, not {one!r}")
        settings[name] = value
    return settings


def _on_signals(stop: threading.Event | None, interrupt: bool = False) -> None:
    """Let SIGINT and SIGTERM set an event, and also interrupt if `interrupt` is set."""

    def handle(number: int, _: object) -> None:
        if stop is not None:
            stop.set()
        if stop is None:
            raise SystemExit(128 + number)
        if interrupt:
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        # Python's handler of SIGINT is not enough: Spark's would print traces.
        for ending in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ending, handle)


def told_plainly(error: Exception) -> Exception:
    """Return the cause of a Spark or file failure; return other errors unchanged."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    from onibus.spark import lake_files

    if isinstance(error, (ConnectionError, Py4JNetworkError)):
        return PipelineFailed("Spark's Java process ended: run the command again")
    if isinstance(error, OSError) and error.strerror:
        return PipelineFailed(f"{error.filename or 'a file'}: {error.strerror}")
    if not isinstance(error, (PySparkException, Py4JError)):
        return error
    text = str(error)
    if _STARVED in text:
        return PipelineFailed(
            "the machine is too busy: Spark's Python processes did not start in time; try again, "
            "or use fewer cores with --master local[1,3]"
        )
    if _NO_GATEWAY in text:
        return PipelineFailed(
            "Spark's Java process did not start: run `java -version`, and check that memory is free"
        )
    found = _OURS.findall(text)
    if not found:
        if _MISSING.search(text):
            return PipelineFailed(
                "Spark's workers cannot import onibus: install onibus[spark] on the workers"
            )
        theirs = _THEIRS.findall(text) or _JAVA.findall(text)
        return PipelineFailed(theirs[-1] if theirs else text.strip().splitlines()[0])
    name, words = found[-1]
    places = (errors, problems, lake_files)
    kind: type[Exception] = next((vars(one)[name] for one in places if name in vars(one)), Refused)
    failed = not issubclass(kind, Refused) or issubclass(kind, problems.Unreachable)
    return (PipelineFailed if failed else PipelineRefused)(words.strip())


def without_digits(sentence: str) -> str:
    """Return an error without the random digits in names of files, to recognise it again."""
    return _DIGITS.sub("", sentence)


def seconds_of(interval: str) -> float:
    """Return a Spark interval ("10 seconds", "2 minutes") in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *(second|minute|hour)s?", interval.strip())
    if found is None:
        raise InvalidArgument(
            f"not an interval: {interval!r}; write it like '10 seconds' or '1 minute'"
        )
    return float(found[1]) * {"second": 1, "minute": 60, "hour": 3600}[found[2]]


def progress_of(session: CommandSession, words: str) -> Callable[[str], None]:
    """Return a function that shows what a job is doing."""

    def tell(what: str) -> None:
        session.out.say(f"{words}: {what.rstrip('.')}")

    return tell
