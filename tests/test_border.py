"""The border of the core: other layers ask a partition by commands, which are data.

A list says which modules above the broker still import internals of the core. It only gets shorter:
a line that is no longer needed fails the test.
"""

from __future__ import annotations

from tests.source_tree import imports_of, module_name, python_files, resolve, tree_of

#: Modules of the core that every layer may use: commands, what they carry, errors and limits.
PUBLIC = {
    *("checks", "commands", "errors", "inspection", "lifecycle", "limits", "message", "settings"),
    *("rules.correlation", "rules.rule", "rules.values", "tally"),
}
#: Layers that own partitions, and the timeline of Spark, which has none.
OWNERS = (
    "onibus.core",
    "onibus.store",
    "onibus.shard",
    "onibus.broker",
    "onibus.spark",
    "onibus.server.check",
)

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

FILES = python_files("onibus")
MODULES = {module_name(path) for path in FILES}


def core_imports(path: str) -> set[str]:
    """Return the modules of the core that a file imports, without the public ones."""
    found = {resolve(name, MODULES) for name, _ in imports_of(path, tree_of(path))}
    names = {one.removeprefix("onibus.core.") for one in found if one and ".core." in one}
    return {name for name in names if name not in PUBLIC}


def test_upper_layers_import_no_internals_of_the_core() -> None:
    found = {
        module_name(path): names
        for path in FILES
        if not module_name(path).startswith(OWNERS) and (names := core_imports(path))
    }
    assert found == IMPORTS
