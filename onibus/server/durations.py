"""Durations of ISO 8601, as Service Bus writes them: PT1M, P7D, PT0.5S.

Months have 30 days and years 365, as in .NET. What is as long as .NET's longest means without end.
"""

from __future__ import annotations

import re
from decimal import Decimal

from onibus.core.errors import InvalidArgument
from onibus.core.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

#: .NET's TimeSpan.MaxValue is P10675199DT2H48M5.4775807S; SDKs round its seconds.
WITHOUT_END_MS = 10_675_199 * DAY_MS

_FORM = re.compile(
    r"P(?=[\dT])(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?"
    r"(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?",
    re.ASCII,
)
_UNITS = (365 * DAY_MS, 30 * DAY_MS, 7 * DAY_MS, DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS)
#: A number with more digits is no duration of anybody.
_LENGTH_MAX = 64


def milliseconds(text: str) -> int | None:
    """Return a duration in milliseconds; None where it is without end."""
    match = _FORM.fullmatch(text) if len(text) <= _LENGTH_MAX else None
    if match is None:
        raise InvalidArgument(f"{text[:_LENGTH_MAX]!r} is no duration: write PT30S, PT5M or P7D")
    parts = zip(match.groups(), _UNITS, strict=True)
    total = int(sum(Decimal(number) * unit for number, unit in parts if number))
    return None if total >= WITHOUT_END_MS else total
