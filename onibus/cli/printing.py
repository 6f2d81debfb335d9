"""Lines on standard output and standard error, for commands without tables.

Only this file prints, and only safe_console.py creates consoles, which a test checks. So strings
from untrusted clients never send control characters to a terminal (operation/visible.py).
"""

from __future__ import annotations

import sys

from onibus.operation.visible import visible_lines


def print_line(text: str) -> None:
    """Print one or more lines on standard output."""
    print(visible_lines(text), flush=True)


def print_error(text: str) -> None:
    """Print one or more lines on standard error."""
    print(visible_lines(text), file=sys.stderr, flush=True)
