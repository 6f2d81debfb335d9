"""What the server writes into its log: lines for people, or JSON objects for machines.

One line an event, on one stream. Requests are logged at debug, alarms of the bus at warning or
error, each once. Credentials never get this far; should some text have one in it nevertheless, it
is blotted out here. Control characters are escaped, so that no string that a client chose can begin
a new line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from onibus.broker.alarms import Alarms
from onibus.core.errors import Damaged
from onibus.operation.visible import visible

TEXT = "text"
JSON = "json"
FORMATS = (TEXT, JSON)

#: Words after which a secret stands, up to what ends it.
_SECRETS = re.compile(
    r"""(?ix) \b (
        SharedAccessKey= | sig= | SharedAccessSignature\s+
        | (?: authorization | password ) ['"]? \s* [:=] \s* ['"]? (?: (?:Basic|Bearer) \s+ )?
    ) [^;,'"\s]+"""
)
_BLOT = r"\1***"

#: What every record has; all else was given by whoever wrote it, and is told.
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

_alarms = logging.getLogger("onibus.alarms")


def without_secrets(text: str) -> str:
    """Return a text in which keys, signatures and passwords are blotted out."""
    return _SECRETS.sub(_BLOT, text)


def _given(record: logging.LogRecord) -> dict[str, Any]:
    """Return what was given with a record besides its words."""
    return {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}


class Lines(logging.Formatter):
    """Lines for people."""

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
        """Return a traceback, indented: no line of it looks like another event."""
        lines = super().formatException(error).split("\n")
        return without_secrets("\n".join(f"  {visible(line)}" for line in lines))


class JsonLines(logging.Formatter):
    """One JSON object a line."""

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
    """Write logs to a stream, standard error if none is given, in that form, from that level on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == JSON else Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def log_alarms(alarms: Alarms) -> None:
    """Write every new alarm of a bus into the log, damage as an error."""
    alarms.listen(_log_alarm)


def _log_alarm(where: str, error: BaseException) -> None:
    level = logging.ERROR if isinstance(error, Damaged) else logging.WARNING
    _alarms.log(level, "%s: %s", where, error, extra={"where": where})
