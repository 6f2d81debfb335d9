"""`onibus` begins here: with the server alone, or with all commands.

Commands bring clients, tables and colours with them, which take as long to load as everything that
a server needs.
"""

from __future__ import annotations

import sys

from onibus.cli import exits
from onibus.extras import advice

#: The extras of commands that need more than one.
_WANTED = {"pipeline": "spark", "up": "all"}


def main() -> None:
    """Run the command line."""
    try:
        if sys.argv[1:2] == ["serve"]:
            from onibus.cli.serve import app
        else:
            from onibus.cli.main import app
        app()
    except ImportError as error:
        sentence = advice(error, _WANTED.get(" ".join(sys.argv[1:2])))
        if sentence is None:
            raise
        print(f"onibus: {sentence}", file=sys.stderr)
        sys.exit(exits.USAGE)
