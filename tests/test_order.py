"""Core, shards and broker iterate over nothing whose order differs from process to process.

The order of a set of strings follows from the hash seed of the process, that of a set of objects
from their addresses. A run that depends on either cannot be replayed. So code may sort or count a
set or test membership, but must not walk it. A dict keeps the order of insertion.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

import pytest

from tests.source_tree import python_files, tree_of

FILES = python_files(
    "onibus/core", "onibus/shard", "onibus/directory", "onibus/gateway", "onibus/store"
)

#: Calls that turn a set into something with an order.
ORDERING = {"list", "tuple", "iter", "enumerate", "next", "zip", "map", "filter", "dict.fromkeys"}
#: Calls whose result does not depend on the order.
ORDERLESS = {"sorted", "sum", "min", "max", "any", "all", "len", "set", "frozenset"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
OPERATORS = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.Sub)


def _is_set_type(annotation: ast.expr) -> bool:
    return ast.unparse(annotation).startswith(("set[", "frozenset[", "Set["))


def _attributes_of_sets(tree: ast.Module) -> set[str]:
    """Return the attributes and functions that are sets, or return one, anywhere in a file."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and _is_set_type(node.annotation):
            found.add(ast.unparse(node.target))
        elif isinstance(node, ast.FunctionDef) and node.returns and _is_set_type(node.returns):
            found |= {f"{node.name}()", f"self.{node.name}()"}
    return {name for name in found if "." in name or "(" in name}


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a scope, and the functions in it, but not what is in those."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, FUNCTIONS):
            yield from _inside(node)


def _local_sets(scope: ast.AST) -> set[str]:
    """Return the names that are given a set in a scope: variables and parameters."""
    names = set()
    for node in _inside(scope):
        if isinstance(node, ast.AnnAssign) and _is_set_type(node.annotation):
            names.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign) and _is_set(node.value, set()):
            names |= {ast.unparse(target) for target in node.targets}
        elif isinstance(node, ast.arg) and node.annotation and _is_set_type(node.annotation):
            names.add(node.arg)
    return names


def _is_set(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        return called in ("set", "frozenset") or f"{called}()" in names
    if isinstance(node, ast.BinOp) and isinstance(node.op, OPERATORS):
        return any(_is_set(side, names) or _is_keys(side) for side in (node.left, node.right))
    return ast.unparse(node) in names


def _is_keys(node: ast.expr) -> bool:
    """Return whether it is a view of keys: sets are made of those by `&`, `|`, `^` and `-`."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".keys")


def walked_sets(path: str, tree: ast.Module) -> list[str]:
    """Return where a file depends on the order of a set."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for node in _walked_sets(tree, _attributes_of_sets(tree))
    ]


def _walked_sets(scope: ast.AST, outer: set[str]) -> Iterator[ast.expr]:
    names = outer | _local_sets(scope)
    inside = list(_inside(scope))
    yield from (node for node in _walked(inside) if _is_set(node, names))
    for node in inside:
        if isinstance(node, FUNCTIONS):
            yield from _walked_sets(node, names)


def _walked(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """Yield everything that is walked in its own order."""
    orderless = {
        id(argument)
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ORDERLESS
        for argument in node.args
    }
    for node in nodes:
        if isinstance(node, ast.For):
            yield node.iter
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.DictComp)):
            if id(node) not in orderless:
                yield from (part.iter for part in node.generators)
        elif isinstance(node, ast.Starred) or _is_appended(node):
            yield node.value
        elif isinstance(node, ast.Call):
            yield from _walked_by_call(node)


def _is_appended(node: ast.AST) -> TypeGuard[ast.AugAssign]:
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)


def _walked_by_call(node: ast.Call) -> Iterator[ast.expr]:
    if ast.unparse(node.func) in ORDERING:
        yield from node.args
    elif isinstance(node.func, ast.Attribute):
        if node.func.attr == "pop" and not node.args:
            yield node.func.value
        elif node.func.attr in ("extend", "join"):
            yield from node.args


def test_no_set_is_walked() -> None:
    found = [one for path in FILES for one in walked_sets(path, tree_of(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "for one in {a, b}: pass",
        "for one in set(found): pass",
        "stores = {partition.store for partition in partitions}\nfor store in stores: pass",
        "self._touched: set[int] = set()\nfor one in self._touched: pass",
        "def owners() -> set[str]: ...\nfor owner in owners(): pass",
        "def f(names: set[str]): return [one for one in names]",
        "def f(names: set[str]):\n    def g():\n        return list(names)",
        "list(set(found))",
        "stores = {1}\nstores.pop()",
        "for key in mine.keys() & others.keys(): pass",
        "found += {a, b}",
        "[*{a, b}]",
    ],
)
def test_walked_sets_are_seen(source: str) -> None:
    assert len(walked_sets("x.py", ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "for one in sorted({a, b}): pass",
        "sum(one.size for one in {a, b})",
        "x = {one for one in {a, b}}",
        "for one in dict.fromkeys(found): pass",
        "a in {b, c}",
        "def f(names: set[str]): pass\ndef g(names): return list(names)",
    ],
)
def test_sets_may_be_asked_for_members(source: str) -> None:
    assert walked_sets("x.py", ast.parse(source)) == []
