"""The repository as text and as imports, for the tests that read it."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Folders with Python code of ours.
FOLDERS = ("onibus", "pyspark_onibus", "bench", "tests", "examples", "tools")


def python_files(*folders: str) -> list[str]:
    """Return the paths of all Python files below the folders, relative to the root."""
    found = (path for folder in folders or FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@cache
def text_of(path: str) -> str:
    """Return a file's text."""
    return (ROOT / path).read_text("utf-8")


@cache
def tree_of(path: str) -> ast.Module:
    """Return a Python file, parsed."""
    return ast.parse(text_of(path), filename=path)


def project_files() -> list[str] | None:
    """Return what git tracks or would, relative to the root; None when there is no git."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return sorted(p for p in set(listed.stdout.split("\0")) if p and (ROOT / p).is_file())


def module_name(path: str) -> str:
    """Return "a.b" for a/b.py and for a/b/__init__.py."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(path: str, tree: ast.Module | None = None) -> Iterator[tuple[str, int]]:
    """Yield (dotted name, line) of everything a file imports, wherever in it.

    `from a import b` gives "a.b", whether b is a module or a name in it; see `resolve`.
    """
    package = module_name(path).split(".")
    if not path.endswith("/__init__.py"):
        package = package[:-1]
    for node in ast.walk(tree or tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def resolve(name: str, modules: set[str]) -> str | None:
    """Return the module of ours that a dotted name is, or is in."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None
