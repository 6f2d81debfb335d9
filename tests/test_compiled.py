"""What is compiled exists, and has nothing that changes its meaning when it is compiled."""

from __future__ import annotations

import ast

import pytest

from tests.source_tree import ROOT, module_name, python_files, tree_of
from tools.compiled import sources

#: A compiled class that has one of these has no hash, unless it says one.
COMPARING = {"__lt__", "__le__", "__gt__", "__ge__", "__eq__"}

every_source = pytest.mark.parametrize("path", sources())


def classes(path: str) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]


@every_source
def test_it_is_there(path: str) -> None:
    assert (ROOT / path).is_file()


@every_source
def test_it_has_no_structs(path: str) -> None:
    bases = [ast.unparse(base) for one in classes(path) for base in one.bases]
    assert "msgspec.Struct" not in bases, "mypyc drops the options of a struct"


@every_source
def test_what_compares_has_a_hash(path: str) -> None:
    for one in classes(path):
        methods = {node.name for node in one.body if isinstance(node, ast.FunctionDef)}
        assert not methods & COMPARING or "__hash__" in methods, one.name


@every_source
def test_it_does_not_check_arguments(path: str) -> None:
    """A compiled function refuses a wrong type by itself, as TypeError, before it is looked at."""
    imported = [node.module for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom)]
    assert "onibus.core.checks" not in imported


@every_source
def test_each_error_that_is_caught_has_a_name_of_its_own(path: str) -> None:
    for function in ast.walk(tree_of(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            kinds: dict[str, str] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                    kind = ast.unparse(node.type)
                    assert kinds.setdefault(node.name, kind) == kind, function.name


@pytest.mark.parametrize("path", sorted(set(python_files("onibus")) - set(sources())))
def test_nothing_interpreted_inherits_from_it(path: str) -> None:
    compiled = {module_name(source) for source in sources()}
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.module in compiled
        for alias in node.names
    }
    for one in classes(path):
        bases = {ast.unparse(base) for base in one.bases}
        assert "Protocol" in bases or not bases & names, one.name
