"""The style is a test: sizes, docstrings, leftovers, dead modules, paths of one machine."""

from __future__ import annotations

import ast
import re

import pytest

from tests.source_tree import (
    FOLDERS,
    ROOT,
    imports_of,
    module_name,
    project_files,
    python_files,
    resolve,
    text_of,
    tree_of,
)

FILE_LINES_MAX = 600
#: Files that are as long as their subject: every command is on one page.
LONG_FILES = {"onibus/core/commands.py"}
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
#: Packages of long-running servers.
SERVING = (
    "core",
    "store",
    "shard",
    "directory",
    "gateway",
    "calls",
    "security",
    "operation",
    "protocols",
    "server",
)

# Written so that this file does not find itself.
LEFTOVER = re.compile(r"\b(?:T[O]DO|F[I]XME|X{3}|H[A]CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.~/$}-])/(?:work|root|home|Users)(?![\w.-])")
TOO_LONG = re.compile(f".{{{COLUMNS_MAX + 1}}}")

#: Every Python file of ours.
FILES = python_files(*FOLDERS)


def long_functions(tree: ast.Module) -> list[str]:
    """Return "name: lines" of functions over the limit, docstring and decorators included."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = (node.end_lineno or node.lineno) - first + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{node.name}: {lines} lines")
    return found


def matching_lines(pattern: re.Pattern[str], path: str, text: str) -> list[str]:
    """Return "path:line: text" of the lines in which the pattern is found."""
    lines = enumerate(text.splitlines(), start=1)
    return [f"{path}:{number}: {line.strip()}" for number, line in lines if pattern.search(line)]


def self_references(tree: ast.Module) -> list[str]:
    """Return the functions inside functions that refer to themselves."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    outer = [node for node in ast.walk(tree) if isinstance(node, functions)]
    inner = {
        node
        for function in outer
        for node in ast.walk(function)
        if isinstance(node, functions) and node is not function
    }
    return [
        node.name
        for node in inner
        if any(isinstance(one, ast.Name) and one.id == node.name for one in ast.walk(node))
    ]


def is_entry_point(tree: ast.Module) -> bool:
    """Tell whether the module is written to be run."""
    return any(
        isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        for node in tree.body
    )


def dead_modules() -> list[str]:
    """Return the modules of onibus that nobody imports and that are no entry points."""
    modules = {module_name(path) for path in python_files()}
    imported = {
        resolve(name, modules)
        for path in python_files()
        for name, _ in imports_of(path)
        if resolve(name, modules) != module_name(path)
    }
    return [
        path
        for path in python_files("onibus")
        if module_name(path) not in imported
        and not path.endswith(("/__init__.py", "/__main__.py"))
        and not is_entry_point(tree_of(path))
    ]


def test_files_are_short() -> None:
    lines = {path: len(text_of(path).splitlines()) for path in FILES if path not in LONG_FILES}
    found = [f"{path}: {n} lines" for path, n in lines.items() if n > FILE_LINES_MAX]
    assert not found, "\n".join(found)


def test_functions_are_short() -> None:
    found = [f"{path}: {one}" for path in FILES for one in long_functions(tree_of(path))]
    assert not found, "\n".join(found)


def test_lines_are_short() -> None:
    found = [line for path in FILES for line in matching_lines(TOO_LONG, path, text_of(path))]
    assert not found, "\n".join(found)


def test_modules_say_what_they_own() -> None:
    # An empty __init__.py owns nothing.
    found = [path for path in FILES if text_of(path) and not ast.get_docstring(tree_of(path))]
    assert not found, f"modules without a docstring: {', '.join(found)}"


def test_no_function_keeps_itself() -> None:
    """A function that refers to itself is a cycle: it keeps its data until the collector runs."""
    files = python_files(*(f"onibus/{name}" for name in SERVING))
    found = [f"{path}: {name}" for path in files for name in self_references(tree_of(path))]
    assert not found, "\n".join(found)


def test_functions_that_keep_themselves_are_seen() -> None:
    again = "def f():\n    def g():\n        soon(g)\n    g()"
    assert self_references(ast.parse(again)) == ["g"]
    assert self_references(ast.parse(again.replace("soon(g)", "soon(f)"))) == []


def test_no_module_is_dead() -> None:
    dead = dead_modules()
    assert not dead, f"nobody imports {', '.join(dead)}"


def test_no_class_name_stands_for_three_things() -> None:
    named: dict[str, list[str]] = {}
    for path in python_files("onibus"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(path)
    found = [f"{name}: {', '.join(paths)}" for name, paths in named.items() if len(paths) > 2]
    assert not found, "\n".join(found)


def test_no_leftovers_and_no_paths_of_one_machine() -> None:
    files = project_files()
    if files is None:
        pytest.skip("not a git checkout")
    found = []
    for path in files:
        content = (ROOT / path).read_bytes()
        if b"\0" not in content:
            text = content.decode("utf-8")
            found += matching_lines(LEFTOVER, path, text)
            found += matching_lines(MACHINE_PATH, path, text)
    assert not found, "\n".join(found)


def test_leftovers_are_seen() -> None:
    for word in ("ODOT", "EMXIF", "X" * 3, "KCAH"):
        text = f"x = 1\n# {word[::-1]}: y"
        assert len(matching_lines(LEFTOVER, "a.py", text)) == 1, text
    assert matching_lines(LEFTOVER, "a.py", "# to do; hacking; XXXX") == []


def test_paths_of_one_machine_are_seen() -> None:
    for text in ("{}home/someone/x", 'open("{}work/x")', "cd {}root", "x={}Users/x"):
        assert matching_lines(MACHINE_PATH, "a", text.format("/")), text
    for text in ("testing/workload.py", "/workload", "https://host/home", "a/work/b", "./root/x"):
        assert matching_lines(MACHINE_PATH, "a", text) == [], text


def test_long_functions_are_seen() -> None:
    body = "\n".join("    pass" for _ in range(FUNCTION_LINES_MAX))
    assert long_functions(ast.parse(f"def f():\n{body}")) == ["f: 71 lines"]
    assert long_functions(ast.parse(f"def f():\n{body[9:]}")) == []


def impatient_clients(tree: ast.Module) -> list[int]:
    """Return the lines of httpx calls without a timeout."""
    calls = {"Client", "AsyncClient", "get", "post", "put", "delete", "request", "stream"}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and (node.func.value.id, node.func.attr in calls) == ("httpx", True)
        and not any(word.arg == "timeout" for word in node.keywords)
    ]


def test_clients_of_tests_are_patient() -> None:
    """By default httpx gives up after five seconds, which a busy machine may need."""
    assert impatient_clients(ast.parse("httpx.Client()\nhttpx.get('/', timeout=1)")) == [1]
    found = {path: impatient_clients(tree_of(path)) for path in python_files("tests")}
    assert not {path: lines for path, lines in found.items() if lines}
