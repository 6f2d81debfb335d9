"""The transport of a connection that has ended."""

from __future__ import annotations

import asyncio
from typing import Any


class EndedTransport(asyncio.Transport):
    """A closed transport that discards everything written to it.

    An ended connection replaces its transport with this one, because transport and protocol would
    keep each other in memory. Late responses then need no special case.
    """

    def is_closing(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        """Discard the data."""

    def writelines(self, list_of_data: Any) -> None:
        """Discard the data."""

    def close(self) -> None:
        """Do nothing: it is closed."""

    abort = pause_reading = resume_reading = close


ENDED = EndedTransport()
