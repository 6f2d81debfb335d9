"""Runs the examples of pages in one process, which has one Java: a user's program elsewhere.

It imports nothing of the tests. It is given steps as JSON: a page, its line, a kind and a source.
"""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any


def run_python(page: str, line: int, source: str, names: dict[str, Any]) -> None:
    """Run a block in the namespace of its page."""
    padded = "\n" * (line - 1) + source
    exec(compile(padded, page, "exec"), names)


def run_command(words: list[str]) -> None:
    """Run a command as its entry point would."""
    from typer.testing import CliRunner

    from onibus.cli.main import app

    done = CliRunner().invoke(app, words)
    if done.exit_code:
        raise AssertionError(f"{words}: {done.exit_code} {done.output} {done.exception!r}")


def main() -> None:
    """Run the steps that come in, and say which ones were run."""
    names: dict[str, dict[str, Any]] = {}
    for page, line, kind, source in json.load(sys.stdin):
        if kind == "pyspark":
            run_python(page, line, source, names.setdefault(page, {"__name__": "__main__"}))
        else:
            for text in source.splitlines():
                program, *words = shlex.split(text)
                assert program == "onibus", text
                run_command(words)
        print(f"{page}:{line}", flush=True)


if __name__ == "__main__":
    main()
