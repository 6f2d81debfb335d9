"""Long operations in slices, with other operations in between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

CallSoon = Callable[[Callable[[], None]], object]


def in_slices(call_soon: CallSoon, step: Callable[[], bool]) -> None:
    """Run a step now, and again soon as long as it returns True.

    A step must not schedule itself: a function that refers to itself keeps everything it has
    gathered until the garbage collector runs.
    """
    if step():
        call_soon(partial(in_slices, call_soon, step))
