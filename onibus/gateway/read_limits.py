"""How far a read of several partitions goes: plain arithmetic."""

from __future__ import annotations

from collections.abc import Generator, Mapping

#: Milliseconds since 1970 after every stamp.
END_OF_TIME = 1 << 43


def share(waiting: Mapping[int, int], limit: int) -> dict[int, int]:
    """Divide a limit over partitions in proportion to the rows that wait in each."""
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    given = {partition: count * limit // total for partition, count in waiting.items()}
    left = limit - sum(given.values())
    by_rest = sorted(waiting, key=lambda one: (-(waiting[one] * limit % total), one))
    for partition in by_rest[:left]:
        given[partition] += 1
    return given


def meeting(
    hint: int | None, last: int = END_OF_TIME, enough: float = 0.9
) -> Generator[int, float, int]:
    """Return the time up to which a read may go, so that all partitions come to the same time.

    It yields times, and is sent how full a read up to each of them is: more than 1 is too full. A
    read that is full enough ends the search; `hint` is where it begins. A read up to 0 is empty,
    one up to `last` is too full.
    """
    low, high, step = 0, last, 1_000
    moment = hint
    while high - low > 1:
        if moment is None or not low < moment < high:
            moment = (low + high) // 2
        full = yield moment
        if enough <= full <= 1:
            return moment
        low, high = (moment, high) if full <= 1 else (low, moment)
        # Near the hint at first, then farther away each time, until the time is in between.
        found = low > 0 and high < last
        moment = None if hint is None or found else moment + (step if low else -step)
        step *= 2
    return low
