"""Durations of ISO 8601, as Service Bus writes them: PT1M, P7D, PT0.5S.

Months have 30 days and years 365, as in .NET. .NET's longest duration means no limit.
"""

from __future__ import annotations

import re
from decimal import Decimal

from onibus.core.errors import InvalidArgument
from onibus.core.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

#: .NET's TimeSpan.MaxValue; SDKs round its seconds.
WITHOUT_END = "P10675199DT2H48M5.4775807S"
WITHOUT_END_MS = 10_675_199 * DAY_MS

_FORM = re.compile(
    r"P(?=[\dT])(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?"
    r"(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?",
    re.ASCII,
)
_UNITS = (365 * DAY_MS, 30 * DAY_MS, 7 * DAY_MS, DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS)
#: No valid duration is longer.
_LENGTH_MAX = 64


def milliseconds(text: str) -> int | None:
    """Return a duration in milliseconds; None if it has no limit."""
    total = int(_milliseconds(text))
    return None if total >= WITHOUT_END_MS else total


def microseconds(text: str) -> int:
    """Return a duration in microseconds, however long it is."""
    return int(_milliseconds(text) * 1_000)


def _milliseconds(text: str) -> Decimal:
    match = _FORM.fullmatch(text) if len(text) <= _LENGTH_MAX else None
    if match is None:
        raise InvalidArgument(f"{text[:_LENGTH_MAX]!r} is not a duration: write PT30S, PT5M or P7D")
    parts = zip(match.groups(), _UNITS, strict=True)
    return sum((Decimal(number) * unit for number, unit in parts if number), Decimal(0))


def duration(ms: int | None) -> str:
    """Return milliseconds as a string; None means no limit."""
    return WITHOUT_END if ms is None else duration_of_microseconds(ms * 1_000)


def duration_of_microseconds(total: int) -> str:
    """Return microseconds as a string."""
    seconds, fraction = divmod(total, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    date = f"{days}D" if days else ""
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if seconds or fraction:
        part = f".{fraction:06}".rstrip("0") if fraction else ""
        time += f"{seconds}{part}S"
    if not date and not time:
        time = "0S"
    return f"P{date}T{time}" if time else f"P{date}"
