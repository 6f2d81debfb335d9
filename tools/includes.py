"""Code on pages that comes from programs: copies parts of files into the pages that name them.

    python -m tools.includes           update the pages
    python -m tools.includes --check   fail if a page differs from its files

A page names a file, or top-level definitions of a Python file, in a comment before a code block:

    <!-- include examples/how-to/sessions.py: imports, main -->

The block below the comment is then replaced by those parts. `imports` stands for the import
statements. GitHub and the documentation site both show the block and hide the comment.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

INCLUDE = re.compile(
    r"^<!-- include (?P<file>[^\s:]+)(?:: (?P<names>[^>]+?))? -->\n\n```\w*\n.*?^```$",
    re.MULTILINE | re.DOTALL,
)
DEFINITION = re.compile(r"(?:@|class |def |async def )")
IMPORT = re.compile(r"(?:import|from) ")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml"}


class Missing(Exception):
    """A page names a file or a definition that does not exist."""


def pages() -> list[Path]:
    """Return every page that may include code."""
    folders = (ROOT / "docs", ROOT / "examples")
    return sorted(
        [*ROOT.glob("*.md"), *(one for folder in folders for one in folder.rglob("*.md"))]
    )


def definitions(source: str) -> dict[str, str]:
    """Return the source of each top-level definition by its name, and of the imports."""
    lines = source.splitlines()
    found: dict[str, str] = {}
    imports: list[tuple[int, int]] = []
    for node in ast.parse(source).body:
        first, last = node.lineno, node.end_lineno or node.lineno
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append((first, last))
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
            first = min([first, *(decorator.lineno for decorator in node.decorator_list)])
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            continue
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        found |= dict.fromkeys(names, "\n".join(lines[first - 1 : last]))
    if imports:
        found["imports"] = "\n".join(lines[imports[0][0] - 1 : imports[-1][1]])
    return found


def included(file: str, names: str | None) -> str:
    """Return a file, or those of its definitions that are named."""
    try:
        source = (ROOT / file).read_text("utf-8")
    except FileNotFoundError as error:
        raise Missing(f"{file} does not exist") from error
    if names is None:
        return source.strip("\n")
    known = definitions(source)
    wanted = [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise Missing(f"{file} does not define {', '.join(unknown)}")
    shown = ""
    for name in wanted:
        shown += _gap(shown, known[name]) + known[name]
    return shown


def _gap(before: str, after: str) -> str:
    """Return the blank lines between two parts: constants follow each other closely."""
    if not before:
        return ""
    if DEFINITION.match(after) or DEFINITION.match(before.rpartition("\n\n\n")[2]):
        return "\n\n\n"
    return "\n\n" if IMPORT.match(before.rpartition("\n")[2]) else "\n"


def render(page: str) -> str:
    """Return a page with its included blocks replaced by the current code."""

    def block(match: re.Match[str]) -> str:
        file, names = match["file"], match["names"]
        comment = match[0].partition("\n")[0]
        language = LANGUAGES.get(Path(file).suffix, "text")
        return f"{comment}\n\n```{language}\n{included(file, names)}\n```"

    return INCLUDE.sub(block, page)


def main() -> int:
    """Update or check all pages; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a page is out of date")
    check = parser.parse_args().check
    stale = []
    for path in pages():
        before = path.read_text("utf-8")
        after = render(before)
        if before != after:
            stale.append(path.relative_to(ROOT).as_posix())
            if not check:
                path.write_text(after, "utf-8")
    if check and stale:
        print("out of date, run make docs:", ", ".join(stale), file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
