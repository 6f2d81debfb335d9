"""Rows of a log as they arrive: one request for all ranges of a task, read straight into Arrow.

A client's ordinary request collects its response in memory first, which takes four times the CPU
time. When the connection breaks, the remaining rows are requested again.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode, urlsplit

import pyarrow as pa

from onibus.api.wire import ARROW
from onibus.client.asking import AnswerLost, Ask, NotSent, ServerResponse, get
from onibus.client.connecting import Target
from onibus.client.problems import problem_of
from onibus.client.retrying import Attempts, Retry
from onibus.core.errors import Failed, OnibusError
from onibus.spark.ranges import Range

#: Seconds without a byte after which a connection is taken for broken.
_SILENCE_S = 60.0
#: Maximum size of a response that is not a stream of rows.
_PROBLEM_BYTES_MAX = 1 << 20


class RowStream:
    """Asks one server for rows."""

    def __init__(self, target: Target, certificate: str | None, retry: Retry) -> None:
        parts = urlsplit(target.url)
        self._secure = parts.scheme == "https"
        self._place = (parts.hostname or "", parts.port)
        self._certificate = certificate
        self._credentials = target.credentials()
        self._retry = retry

    def rows(
        self, path: str, ranges: Sequence[Range], **query: Any
    ) -> Iterator[tuple[Range, pa.RecordBatch]]:
        """Yield rows in the order of ranges, which belong to one incarnation, with their range."""
        left = [one for one in ranges if len(one)]
        while left:
            text = ",".join(f"{one.partition}:{one.start}:{one.end}" for one in left)
            ask = get(path, ranges=text, incarnation=left[0].incarnation, **query).accepting(ARROW)
            attempts = Attempts(ask, self._retry)
            before = list(left)
            while left == before:
                problem: OnibusError
                try:
                    for batch in self._batches(ask):
                        if not left or batch.num_rows > len(left[0]):
                            raise Failed(f"the server sent more rows than requested: {text}")
                        one = left[0]
                        rest = replace(one, start=one.start + batch.num_rows)
                        left[:1] = [rest] if len(rest) else []
                        yield one, batch
                    if left:
                        raise Failed(f"the server sent fewer rows than requested: {text}")
                    return
                except OnibusError as error:
                    problem = error
                if left == before:
                    time.sleep(attempts.failed(problem))

    def _batches(self, ask: Ask) -> Iterator[pa.RecordBatch]:
        """Yield what one request gives; NotSent or AnswerLost where it breaks."""
        connection = self._connection()
        try:
            try:
                connection.connect()
            except OSError as error:
                raise NotSent(str(error) or type(error).__name__) from error
            try:
                yield from self._answer(connection, ask)
            except (OSError, http.client.HTTPException, pa.ArrowException, EOFError) as error:
                raise AnswerLost(str(error) or type(error).__name__) from error
        finally:
            connection.close()

    def _answer(self, connection: http.client.HTTPConnection, ask: Ask) -> Iterator[pa.RecordBatch]:
        headers = {"accept": ask.accept}
        credentials = self._credentials()
        if credentials is not None:
            headers["authorization"] = credentials
        connection.request(ask.method, f"{ask.path}?{urlencode(ask.query)}", headers=headers)
        with connection.getresponse() as response:
            if response.status != 200:
                content = response.read(_PROBLEM_BYTES_MAX)
                kind = response.headers.get("content-type", "")
                problem = problem_of(ServerResponse(response.status, content, kind))
                raise problem or AnswerLost(f"unexpected status {response.status}")
            with pa.ipc.open_stream(pa.PythonFile(response, mode="r")) as batches:
                for batch in batches:
                    batch.validate(full=True)
                    yield batch

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._place
        if not self._secure:
            return http.client.HTTPConnection(host, port, timeout=_SILENCE_S)
        context = ssl.create_default_context(cafile=self._certificate)
        return http.client.HTTPSConnection(host, port, timeout=_SILENCE_S, context=context)
