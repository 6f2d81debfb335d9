"""The Date header, formatted once per second."""

from __future__ import annotations

import time
from email.utils import formatdate

_second = 0
_line = b""


def date_line() -> bytes:
    """Return the header line for now, with its end."""
    global _second, _line
    now = int(time.time())
    if now != _second:
        _line = f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        _second = now
    return _line
