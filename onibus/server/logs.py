"""Logs: lines for people, or a JSON object a line for programs, on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

#: What every record has; all else was given by whoever wrote it, and is told.
_OF_EVERY_RECORD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        given = record.__dict__
        line |= {name: given[name] for name in given if name not in _OF_EVERY_RECORD}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class Lines(logging.Formatter):
    """Lines for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")


def start_logs(form: str, level: str) -> None:
    """Write logs to standard error in that form, from that level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
