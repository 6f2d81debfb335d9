"""`onibus` begins here: with the server alone, or with all commands.

Commands bring clients, tables and colours with them, which take as long to load as everything that
a server needs.
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
