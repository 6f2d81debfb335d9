"""Lines on standard output and standard error, for commands that do without tables.

Only this file prints, and only safe_console.py makes consoles: a test checks that. So no string
that a stranger chose reaches a terminal with control characters in it (operation/visible.py).
"""

from __future__ import annotations

import sys

from onibus.operation.visible import visible_lines


def print_line(text: str) -> None:
    """Print a line, or several, on standard output."""
    print(visible_lines(text), flush=True)


def print_error(text: str) -> None:
    """Print a line, or several, on standard error."""
    print(visible_lines(text), file=sys.stderr, flush=True)
