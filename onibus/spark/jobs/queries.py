"""Streaming queries of a job, run until they end or are stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")

#: Interval between looks at a query. Spark keeps its last hundred reports, so none is missed.
_LOOK_S = 1
#: Spark gives a Python process ten seconds to start, which a busy machine may exceed: the number of
#: attempts.
_STARVED, _STARTS_MAX = "Python worker failed to connect back", 12


def run_queries(
    starts: Mapping[str, Callable[[], StreamingQuery]],
    on_report: Callable[[str, StreamingQueryProgress], None],
    stopped: Callable[[], bool],
) -> None:
    """Start queries and wait for all of them; report each batch of each once."""
    queries = [_Query(name, start) for name, start in starts.items()]
    going = list(queries)
    try:
        while going and not stopped():
            for one in list(going):
                ended = one.wait()
                for report in one.news():
                    on_report(one.name, report)
                if ended:
                    going.remove(one)
    finally:
        for one in queries:
            one.stop()


def patiently(run: Callable[[], T]) -> T:
    """Run a Spark job, again if its Python processes had no time to start."""
    from pyspark.errors import PySparkException

    for _ in range(_STARTS_MAX - 1):
        try:
            return run()
        except PySparkException as error:
            if _STARVED not in str(error):
                raise
        except Exception as error:
            # Where Java fails below PySpark, as py4j tells it.
            if _STARVED not in str(error) or type(error).__module__ != "py4j.protocol":
                raise
    return run()


def observed(report: StreamingQueryProgress, name: str) -> dict[str, Any]:
    """Return what a batch observed under a name (`DataFrame.observe`); nulls may be missing."""
    told: dict[str, Any] = report.observedMetrics[name].asDict()
    if told.keys() == {"values", "schema"}:
        # So it comes over Spark Connect.
        names = [field["name"] for field in told["schema"]["fields"]]
        return dict(zip(names, told["values"], strict=True))
    return told


class _Query:
    """A query, and those that replace it if it could not start."""

    def __init__(self, name: str, start: Callable[[], StreamingQuery]) -> None:
        self.name = name
        self._start = start
        self._starts = 1
        self._query = start()
        self._seen = -1
        #: reports before a restart
        self._before: list[StreamingQueryProgress] = []

    def wait(self) -> bool:
        """Wait a moment; return whether it has ended."""
        from pyspark.errors import StreamingQueryException

        try:
            return bool(self._query.awaitTermination(_LOOK_S))
        except StreamingQueryException as error:
            if _STARVED not in str(error) or self._starts == _STARTS_MAX:
                raise
        self._starts += 1
        self._before = list(self._query.recentProgress)
        self._query = self._start()
        return False

    def news(self) -> Iterator[StreamingQueryProgress]:
        """Yield what was reported since the last time."""
        before, self._before = self._before, []
        for report in [*before, *self._query.recentProgress]:
            # A query that waits reports too, under the number of the batch that is to come.
            happened = report.numInputRows or report.observedMetrics
            if happened and report.batchId > self._seen:
                self._seen = report.batchId
                yield report

    def stop(self) -> None:
        self._query.stop()
