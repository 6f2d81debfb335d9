"""Folders of `onibus` stand in an order, and each imports only itself and those before it.

    core → api, store → shard → directory → gateway → bus.py and onibus itself → testing

The core does no I/O, reads no clock and draws no randomness: time and seeds are arguments. Only
our own imports are looked at; what numpy or pyarrow import is theirs.
"""

from __future__ import annotations

import ast

from tests.source_tree import imports_of, module_name, python_files, resolve, tree_of

#: Every module belongs to the layer with the longest name that begins its own.
LAYERS = {
    "onibus.core": 0,
    "onibus.security.rights": 1,
    "onibus.api": 1,
    "onibus.extras": 1,
    "onibus.store": 1,
    "onibus.shard": 2,
    "onibus.directory": 3,
    "onibus.gateway": 4,
    "onibus.bus": 5,
    "onibus.receiver": 5,
    "onibus.transaction": 5,
    "onibus.calls": 5,
    "onibus": 5,
    "onibus.testing": 6,
    "onibus.security": 6,
    "onibus.operation": 6,
    "onibus.protocols": 7,
    "onibus.client": 8,
    "onibus.server": 8,
    "onibus.spark": 9,
    "onibus.cli": 10,
    "onibus.__main__": 11,
}

FILES = python_files("onibus")
MODULES = {module_name(path) for path in FILES}

BANNED_IN_CORE = {
    *("apsw", "asyncio", "logging", "os", "random", "socket", "sqlite3", "threading", "time"),
    *("multiprocessing", "pathlib", "secrets", "shutil", "subprocess", "tempfile"),
}
BANNED_CALLS_IN_CORE = {
    *("open", "print", "input", "uuid.uuid1", "uuid.uuid4"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
}


def layer_of(module: str) -> str:
    """Return the layer of a module of ours; one outside all layers must be given a place."""
    layers = [name for name in LAYERS if module == name or module.startswith(name + ".")]
    layer = max(layers, key=len)
    if layer == "onibus" and module != "onibus":
        raise AssertionError(f"{module} stands in no layer: give it a place in LAYERS")
    return layer


def upward_imports(path: str, tree: ast.Module) -> list[str]:
    """Return what the file imports from layers after its own."""
    own = LAYERS[layer_of(module_name(path))]
    wrong = []
    for name, line in imports_of(path, tree):
        module = resolve(name, MODULES)
        if module is not None and LAYERS[layer_of(module)] > own:
            wrong.append(f"{path}:{line}: {name}")
    return wrong


def impurities(path: str, tree: ast.Module) -> list[str]:
    """Return the imports and calls by which a file reaches outside."""
    found = [
        f"{path}:{line}: import {name}"
        for name, line in imports_of(path, tree)
        if name.split(".")[0] in BANNED_IN_CORE
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            short = ".".join(called.split(".")[-2:])
            if {called, short} & BANNED_CALLS_IN_CORE or ".random." in called:
                found.append(f"{path}:{node.lineno}: {called}()")
    return found


def test_modules_import_only_earlier_layers() -> None:
    wrong = [one for path in FILES for one in upward_imports(path, tree_of(path))]
    assert not wrong, "\n".join(wrong)


def test_core_reaches_nothing_outside() -> None:
    files = python_files("onibus/core")
    found = [one for path in files for one in impurities(path, tree_of(path))]
    assert not found, "\n".join(found)


def test_core_reaches_no_other_layer_however_far() -> None:
    paths = {module_name(path): path for path in FILES}
    reached: set[str] = set()
    ahead = [module for module in MODULES if layer_of(module) == "onibus.core"]
    while ahead:
        module = ahead.pop()
        reached.add(module)
        found = {resolve(name, MODULES) for name, _ in imports_of(paths[module])}
        ahead += [m for m in found if m is not None and m not in reached]
    assert {module for module in reached if layer_of(module) != "onibus.core"} == set()


def test_upward_imports_are_seen() -> None:
    path = "onibus/core/path/admit.py"
    for source in (
        "from onibus.store.interface import Store",
        "from onibus import testing",
        "import onibus.gateway",
        "def late():\n    from ...store import interface",
    ):
        assert upward_imports(path, ast.parse(source)), source
    for source in (
        "from onibus.core import errors",
        "from ..errors import Refused",
        "import numpy",
    ):
        assert upward_imports(path, ast.parse(source)) == [], source
    assert upward_imports("onibus/testing/disk.py", ast.parse("import onibus.core.block")) == []


def test_impurities_are_seen() -> None:
    for source in (
        "import time",
        "import os.path",
        "from asyncio import Queue",
        "def f():\n    import socket",
        "datetime.datetime.now()",
        "np.random.default_rng()",
        "open('file')",
    ):
        assert impurities("onibus/core/x.py", ast.parse(source)), source
    assert impurities("onibus/core/x.py", ast.parse("from datetime import datetime")) == []
