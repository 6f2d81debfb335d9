"""Generator of the blocking client from the asyncio client.

    python -m tools.blocking           write onibus/client/blocking
    python -m tools.blocking --check   fail if it is out of date

The generator replaces words, omits the lines between `# blocking: leave out` and
`# blocking: go on`, and formats the result. In-process transports and lock renewal, a task in one
client and a thread in the other, are written by hand.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "onibus" / "client" / "aio"
TARGET = ROOT / "onibus" / "client" / "blocking"

#: Fixes by ruff after the replacements.
_FIX = ["check", "--select", "I,F401,UP028", "--fix-only", "--unsafe-fixes", "-q"]

#: Files of one client only, or written by hand in both.
BY_HAND = {"__init__.py", "in_process.py", "renewing.py"}

_LEFT_OUT = re.compile(r" *# blocking: leave out\n.*?# blocking: go on\n\n?", re.DOTALL)
_WORDS = [
    (r"\bhttpx\.AsyncClient\b", "httpx.Client"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\b__a(enter|exit|iter)__\b", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"`async with\b", "`with"),
    (r"onibus\.client\.aio\b", "onibus.client.blocking"),
]


def blocking(text: str) -> str:
    """Return the blocking form of a module."""
    text = _LEFT_OUT.sub("", text)
    for word, instead in _WORDS:
        text = re.sub(word, instead, text)
    return _formatted(text)


def _formatted(text: str) -> str:
    for command in (_FIX, ["format", "-q"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", "onibus/made.py", "-"],
            input=text,
            capture_output=True,
            check=True,
            text=True,
            cwd=ROOT,
        )
        text = done.stdout
    return text


def made() -> dict[Path, str]:
    """Return the generated files of the blocking client."""
    return {
        TARGET / path.name: blocking(path.read_text("utf-8"))
        for path in sorted(SOURCE.glob("*.py"))
        if path.name not in BY_HAND
    }


def stale() -> list[str]:
    """Return the names of files that are out of date."""
    fresh = made()
    found = [path.name for path, text in fresh.items() if _text(path) != text]
    known = {path.name for path in fresh} | BY_HAND
    return found + [path.name for path in TARGET.glob("*.py") if path.name not in known]


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description="Make the blocking client.")
    parser.add_argument("--check", action="store_true", help="only list files that are out of date")
    if parser.parse_args(arguments).check:
        wrong = stale()
        for name in wrong:
            print(f"{name} is out of date: run python -m tools.blocking", file=sys.stderr)
        return 1 if wrong else 0
    for path, text in made().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
