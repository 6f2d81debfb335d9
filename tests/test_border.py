"""The border of the core: other layers ask a partition by commands, which are data.

Two lists say where the old ways remain: imports of the core's internals above the broker, and
functions that the broker runs on a partition. Both only get shorter: a line that is no longer
needed fails the test.
"""

from __future__ import annotations

import ast

from tests.source_tree import imports_of, module_name, python_files, resolve, tree_of

#: Modules of the core that every layer may use: commands, what they carry, errors and limits.
PUBLIC = {
    *("checks", "commands", "errors", "inspection", "lifecycle", "limits", "message", "settings"),
    *("rules.correlation", "rules.rule", "rules.values", "tally"),
}
#: Layers that own partitions, and the timeline of Spark, which has none.
OWNERS = ("onibus.core", "onibus.store", "onibus.broker", "onibus.spark", "onibus.server.check")

#: What else is imported from the core, and by which module.
IMPORTS = {
    "onibus.bus": {"block"},
    "onibus.calls.claims": {"claimed_rows"},
    "onibus.calls.log": {"log_batch"},
    "onibus.operation.collector": {"fair_queue", "numbering", "partition", "subscription"},
    "onibus.operation.figures": {"numbering", "subscription"},
    "onibus.protocols.http.api.claims": {"claimed_rows"},
    "onibus.protocols.http.api.log": {"log_batch"},
    "onibus.protocols.http.api.overview": {"fair_queue"},
    "onibus.protocols.http.api.receivers": {"block"},
    "onibus.protocols.http.arrow": {"arrow_block"},
}

#: How often a module passes a function that is run on a partition.
FUNCTIONS = {
    "onibus.broker.forwarding": 2,
    "onibus.broker.moving": 1,
    "onibus.broker.replaying": 2,
    "onibus.broker.resubmitting": 3,
    "onibus.broker.sending": 1,
    "onibus.broker.transferring": 2,
    "onibus.broker.turns": 2,
    "onibus.broker.works": 7,
}
_RUN_FUNCTIONS = {"change", "change_in", "ask"}

FILES = python_files("onibus")
MODULES = {module_name(path) for path in FILES}


def core_imports(path: str) -> set[str]:
    """Return the modules of the core that a file imports, without the public ones."""
    found = {resolve(name, MODULES) for name, _ in imports_of(path, tree_of(path))}
    names = {one.removeprefix("onibus.core.") for one in found if one and ".core." in one}
    return {name for name in names if name not in PUBLIC}


def functions_passed(tree: ast.Module) -> int:
    """Return how often a function is passed to a broker, to be run on a partition."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
    return sum(
        method.attr in _RUN_FUNCTIONS and ast.unparse(method.value).split(".")[-1] in _BROKERS
        for method in methods
    )


_BROKERS = {"broker", "_broker"}


def test_upper_layers_import_no_internals_of_the_core() -> None:
    found = {
        module_name(path): names
        for path in FILES
        if not module_name(path).startswith(OWNERS) and (names := core_imports(path))
    }
    assert found == IMPORTS


def test_partitions_are_asked_by_commands() -> None:
    found = {module_name(path): functions_passed(tree_of(path)) for path in FILES}
    assert {module: count for module, count in found.items() if count} == FUNCTIONS


def test_passed_functions_are_seen() -> None:
    assert functions_passed(ast.parse("self._broker.ask(seat, look)")) == 1
    assert functions_passed(ast.parse("broker.use(entity, seat, command)")) == 0
