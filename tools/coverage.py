"""Print what the tests cover: `make coverage` runs it over the data that coverage combined."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from coverage import Coverage

#: Modules with fewer statements are left out of the list.
_STATEMENTS_MIN = 10
_LISTED = 10


def share(covered: int, whole: int) -> str:
    """Return a share in per cent, with the numbers that it is of."""
    return f"{100 * covered / max(whole, 1):.1f} % ({covered:,} of {whole:,})"


def report(told: dict[str, Any]) -> str:
    """Return the figures of coverage's JSON report, and the modules that it covers least."""
    totals = told["totals"]
    lines = [
        f"lines     {share(totals['covered_lines'], totals['num_statements'])}",
        f"branches  {share(totals['covered_branches'], totals['num_branches'])}",
        "",
        "least covered modules (lines and branches):",
    ]
    modules = [
        (one["summary"]["percent_covered"], path)
        for path, one in told["files"].items()
        if one["summary"]["num_statements"] >= _STATEMENTS_MIN
    ]
    lines += [f"  {percent:5.1f} %  {path}" for percent, path in sorted(modules)[:_LISTED]]
    return "\n".join(lines)


def main() -> None:
    """Read .coverage and print the report."""
    measured = Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "coverage.json"
        measured.json_report(outfile=str(path))
        print(report(json.loads(path.read_text("utf-8"))))


if __name__ == "__main__":
    main()
