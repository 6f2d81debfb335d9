"""What the server writes into its log: lines for people, or JSON objects for machines.

One line an event, on one stream. Requests are logged at debug, alarms of the bus at warning or
error, each once. Credentials never get this far; should some text have one in it nevertheless, it
is blotted out here, whoever wrote it.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from onibus.broker.alarms import Alarms
from onibus.core.errors import Damaged

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

_alarms = logging.getLogger("onibus.alarms")


def without_secrets(text: str) -> str:
    """Return a text in which keys, signatures and passwords are blotted out."""
    return _SECRETS.sub(_BLOT, text)


class TextFormatter(logging.Formatter):
    """Lines for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self.default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        fields: dict[str, Any] = getattr(record, "fields", {})
        if fields:
            line += " " + " ".join(f"{name}={value}" for name, value in fields.items())
        return without_secrets(line)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: MutableMapping[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        for name, value in getattr(record, "fields", {}).items():
            line[name] = without_secrets(value) if isinstance(value, str) else value
        if record.exc_info:
            line["error"] = without_secrets(self.formatException(record.exc_info))
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up(form: str = TEXT, level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Send all that this package logs to a stream; return the handler that does it."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == JSON else TextFormatter())
    logger = logging.getLogger("onibus")
    for old in logger.handlers[:]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    return handler


def log_alarms(alarms: Alarms) -> None:
    """Write every new alarm of a bus into the log, damage as an error."""
    alarms.listen(_log_alarm)


def _log_alarm(where: str, error: BaseException) -> None:
    level = logging.ERROR if isinstance(error, Damaged) else logging.WARNING
    _alarms.log(level, "%s: %s", where, error, extra={"fields": {"where": where}})
