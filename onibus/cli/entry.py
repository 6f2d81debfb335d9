"""Entry point of `onibus`: loads `serve` alone, or all commands.

The other commands import clients, tables and colours, which take as long to load as a whole server.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["serve"]:
        from onibus.cli.serve import app
    else:
        from onibus.cli.main import app
    app()
