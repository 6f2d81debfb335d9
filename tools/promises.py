"""Generator of docs/promises.md: the tests of each promise in docs/semantics.md.

    python -m tools.promises           write docs/promises.md
    python -m tools.promises --check   fail if it is out of date

A promise is a line "- D1 its text" in docs/semantics.md. A test carries the marker
`pytest.mark.promise("D1", ...)` on the function, on its class, or in the module's `pytestmark`.
This module parses the tests without importing them, so the ids must be literal strings. It skips
tests that are skipped or expected to fail. A marker outside a test is an error.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEMANTICS = ROOT / "docs" / "semantics.md"
PAGE = ROOT / "docs" / "promises.md"
TESTS = ROOT / "tests"

_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def _ids(letter: str, *numbers: int | range) -> tuple[str, ...]:
    flat = (n for item in numbers for n in (item if isinstance(item, range) else (item,)))
    return tuple(f"{letter}{n}" for n in flat)


#: The promises this version must keep: without a test for each of them the build fails.
REQUIRED = (
    *_ids("D", range(1, 12)),
    *_ids("F", range(1, 11)),
    *_ids("P", range(1, 14)),
    *_ids("S", range(1, 9)),
    *_ids("L", range(1, 6)),
    *_ids("B", range(1, 11)),
    "B11",
    *_ids("R", range(1, 10)),
    *_ids("X", range(1, 13)),
)


class BadMarker(Exception):
    """A promise marker that cannot be read, or that no test carries."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One line of the semantics."""

    id: str
    section: str
    text: str

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=\.)\s", self.text, maxsplit=1)[0]


def read_promises(semantics: str) -> dict[str, Promise]:
    """Return the promises by id, in the order of the text."""
    promises: dict[str, Promise] = {}
    section, current = "", None
    for line in semantics.splitlines():
        start = re.match(r"- ([A-Z]\d+) (.+)", line)
        if line.startswith("## "):
            section, current = line[3:].strip(), None
        elif start:
            current = start[1]
            if current in promises:
                raise ValueError(f"{current} is promised twice")
            promises[current] = Promise(current, section, start[2].strip())
        elif current and line.startswith("  "):
            text = f"{promises[current].text} {line.strip()}"
            promises[current] = Promise(current, section, text)
        else:
            current = None
    return promises


def scan_file(source: str, path: str) -> dict[str, list[str]]:
    """Return promise id → node ids of the tests of one file that carry it."""
    tree = ast.parse(source, filename=path)
    carried: dict[str, list[str]] = {}
    attached: set[ast.Call] = set()
    for node_id, marks in _tests(tree, path, list(_module_marks(tree))):
        calls = [call for mark in marks for call in _promise_calls(mark)]
        attached.update(calls)
        if any(_is_off(mark) for mark in marks):
            continue
        for call in calls:
            for promise in _literal_ids(call, path):
                carried.setdefault(promise, []).append(node_id)
    for call in _promise_calls(tree):
        if call not in attached:
            raise BadMarker(f"{path}:{call.lineno}: no test carries this promise marker")
    return carried


def scan_tests(tests: Path = TESTS) -> dict[str, list[str]]:
    """Return promise id → sorted node ids of all tests that carry it."""
    carried: dict[str, set[str]] = {}
    for file in sorted(tests.rglob("*.py")):
        path = file.relative_to(tests.parent).as_posix()
        for promise, node_ids in scan_file(file.read_text("utf-8"), path).items():
            carried.setdefault(promise, set()).update(node_ids)
    return {promise: sorted(node_ids) for promise, node_ids in carried.items()}


def _tests(
    tree: ast.Module | ast.ClassDef, prefix: str, outer: list[ast.expr]
) -> Iterator[tuple[str, list[ast.expr]]]:
    """Yield each test function below the tree with every decorator that bears on it."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            marks = [*outer, *node.decorator_list, *_module_marks(node)]
            yield from _tests(node, f"{prefix}::{node.name}", marks)
        elif isinstance(node, _FUNCTION) and node.name.startswith("test"):
            yield f"{prefix}::{node.name}", [*outer, *node.decorator_list]


def _module_marks(tree: ast.Module | ast.ClassDef) -> Iterator[ast.expr]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        ):
            yield from node.value.elts if isinstance(node.value, ast.List) else [node.value]


def _promise_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_mark(node.func, "promise"):
            yield node


def _is_mark(node: ast.expr, name: str) -> bool:
    """Return whether a node is `pytest.mark.<name>` or `mark.<name>`."""
    if not (isinstance(node, ast.Attribute) and node.attr == name):
        return False
    owner = node.value
    return (isinstance(owner, ast.Attribute) and owner.attr == "mark") or (
        isinstance(owner, ast.Name) and owner.id == "mark"
    )


def _is_off(mark: ast.expr) -> bool:
    called = mark.func if isinstance(mark, ast.Call) else mark
    return _is_mark(called, "skip") or _is_mark(called, "xfail")


def _literal_ids(call: ast.Call, path: str) -> Iterator[str]:
    if not call.args or call.keywords:
        raise BadMarker(f"{path}:{call.lineno}: a promise marker takes only ids")
    for argument in call.args:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise BadMarker(f"{path}:{call.lineno}: a promise marker takes literal ids")
        yield argument.value


def unknown_ids(promises: Iterable[str], carried: dict[str, list[str]]) -> list[str]:
    """Return "id: test" for markers whose id is not a promise."""
    known = set(promises)
    return [f"{i}: {test}" for i, tests in carried.items() if i not in known for test in tests]


def render(promises: dict[str, Promise], carried: dict[str, list[str]]) -> str:
    """Return the page."""
    lines = [
        "# Promises and their tests",
        "",
        "Generated by `make promises` from [semantics.md](semantics.md) and the markers in",
        "`tests/`; do not edit. The page shows the first sentence of each promise.",
    ]
    section = ""
    for promise in promises.values():
        if promise.section != section:
            section = promise.section
            lines += ["", f"## {section}"]
        lines += ["", f"**{promise.id}** {promise.summary}", ""]
        tests = carried.get(promise.id, [])
        absent = "no test yet" if promise.id in REQUIRED else "not in this version"
        lines += [f"- `{test}`" for test in tests] or [f"- *{absent}*"]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(prog="python -m tools.promises", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    check = parser.parse_args(arguments).check
    page = render(read_promises(SEMANTICS.read_text("utf-8")), scan_tests())
    name = PAGE.relative_to(ROOT)
    if check:
        current = PAGE.exists() and PAGE.read_text("utf-8") == page
        print(f"{name} is up to date" if current else f"{name} is out of date: make promises")
        return 0 if current else 1
    PAGE.write_text(page, "utf-8")
    print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
