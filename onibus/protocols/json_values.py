"""A limit on the values of a JSON body, checked before a decoder creates objects.

A value of two bytes may become an object of a hundred, so a small compressed body could take
gigabytes. The decoder also blocks every other thread while it runs.
"""

from __future__ import annotations

import re

#: Values in a body of the native API: 10,000 messages with 50 each.
VALUES_MAX = 500_000
#: Values in an SQS request, which has at most ten messages.
SQS_VALUES_MAX = 50_000

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


def has_more_values(body: bytes, most: int) -> bool:
    """Return whether a JSON document has more than about `most` values."""
    if len(body) <= most or _marks(body, 0, len(body)) <= most:
        return False
    # Strings may contain any number of the same characters.
    count = at = 0
    for string in _STRING.finditer(body):
        count += _marks(body, at, string.start())
        if count > most:
            return True
        at = string.end()
    return count + _marks(body, at, len(body)) > most


def _marks(body: bytes, start: int, end: int) -> int:
    """Return the least number of values between two positions: each but the first has a comma."""
    return (
        body.count(b",", start, end) + body.count(b"[", start, end) + body.count(b"{", start, end)
    )
