"""Times after the year 9999, which no client reads: the last moment before stands for them."""

from __future__ import annotations

import pytest

from onibus.protocols.atom import broker_properties, documents

LAST_MS = 253_402_300_799_999


@pytest.mark.promise("S4", "B11")
@pytest.mark.parametrize("ms", [LAST_MS, LAST_MS + 1, LAST_MS + 300_000, 1 << 62])
def test_a_time_after_the_last_year(ms: int) -> None:
    assert documents.moment(ms) == "9999-12-31T23:59:59.999Z"
    assert broker_properties.moment(ms) == "Fri, 31 Dec 9999 23:59:59 GMT"


def test_other_times_stay() -> None:
    assert documents.moment(1_500) == "1970-01-01T00:00:01.500Z"
    assert broker_properties.moment(1_500) == "Thu, 01 Jan 1970 00:00:01 GMT"
