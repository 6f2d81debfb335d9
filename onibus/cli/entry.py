"""Entry point of `onibus`: loads `serve` alone, or all commands.

The other commands import clients, tables and colours, which take as long to load as a whole server.
"""

from __future__ import annotations

import sys

from onibus.cli import exits
from onibus.cli.printing import print_error
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
        print_error(f"onibus: {sentence}")
        sys.exit(exits.USAGE)
