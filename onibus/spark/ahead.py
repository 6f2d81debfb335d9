"""Takes items from an iterator on a thread, a few ahead of whoever uses them.

So the server makes the next page ready while Spark works on the last one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

#: How often a thread with nowhere to put its item looks whether it is still wanted.
_LOOK_S = 0.2


def ahead(items: Iterator[T], count: int = 1) -> Iterator[T]:
    """Yield the items of an iterator, of which so many are taken ahead."""
    waiting: queue.Queue[tuple[T | None, BaseException | None, bool]] = queue.Queue(count)
    unwanted = threading.Event()

    def put(item: T | None, error: BaseException | None = None, ended: bool = False) -> None:
        while not unwanted.is_set():
            try:
                waiting.put((item, error, ended), timeout=_LOOK_S)
            except queue.Full:
                continue
            return

    def take() -> None:
        try:
            for item in items:
                put(item)
                if unwanted.is_set():
                    return
            put(None, ended=True)
        except BaseException as error:
            # Raised where the items are used.
            put(None, error)

    thread = threading.Thread(target=take, name="onibus read ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error, ended = waiting.get()
            if error is not None:
                raise error
            if ended:
                return
            yield item  # type: ignore[misc]
    finally:
        unwanted.set()
        thread.join()
