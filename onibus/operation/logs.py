"""The server log: lines for people, or JSON objects for programs.

One line per event, on one stream. Requests are logged at debug, alarms once each at warning or
error. Callers never pass credentials to a log call; if a string contains one nevertheless, it is
redacted here. Control characters are escaped, so that no string from a client can start a new line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from onibus.core.errors import Damaged
from onibus.operation.visible import visible
from onibus.shard.alarms import Alarms

TEXT = "text"
JSON = "json"
FORMATS = (TEXT, JSON)

#: Words before a secret, and the secret up to its end.
_SECRETS = re.compile(
    r"""(?ix) \b (
        SharedAccessKey= | sig= | SharedAccessSignature\s+
        | (?: authorization | password ) ['"]? \s* [:=] \s* ['"]? (?: (?:Basic|Bearer) \s+ )?
    ) [^;,'"\s]+"""
)
_BLOT = r"\1***"

#: Standard attributes of a log record; all others are fields to print.
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

_alarms = logging.getLogger("onibus.alarms")


def without_secrets(text: str) -> str:
    """Return a string with keys, signatures and passwords redacted."""
    return _SECRETS.sub(_BLOT, text)


def _given(record: logging.LogRecord) -> dict[str, Any]:
    """Return the extra fields of a record."""
    return {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}


class Lines(logging.Formatter):
    """Formatter of lines for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self.default_msec_format = "%s.%03d"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  its name in logging
        record.message = visible(record.message)
        line = super().formatMessage(record)
        given = _given(record)
        if given:
            told = ", ".join(f"{name}: {value}" for name, value in given.items())
            line += f" ({visible(told)})"
        return without_secrets(line)

    def formatException(self, error: Any) -> str:  # noqa: N802
        """Return a traceback, indented so that no line looks like another event."""
        lines = super().formatException(error).split("\n")
        return without_secrets("\n".join(f"  {visible(line)}" for line in lines))


class JsonLines(logging.Formatter):
    """Formatter of one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        for name, value in _given(record).items():
            line[name] = without_secrets(value) if isinstance(value, str) else value
        if record.exc_info:
            line["error"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(line, default=lambda value: without_secrets(str(value)))


def start_logs(form: str, level: str, stream: TextIO | None = None) -> None:
    """Write logs from a level on to a stream, by default standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == JSON else Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def log_alarms(alarms: Alarms) -> None:
    """Log every new alarm of a bus; damage is an error."""
    alarms.listen(_log_alarm)


def _log_alarm(where: str, error: BaseException) -> None:
    level = logging.ERROR if isinstance(error, Damaged) else logging.WARNING
    _alarms.log(level, "%s: %s", where, error, extra={"where": where})
