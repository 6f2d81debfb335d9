"""The border of the core: other layers ask a partition by commands, which are data.

The gateway and the directory ask a shard through its link. A list says what else they use.

Another list says which modules above the gateway still import internals of the core. It only gets
shorter: a line that is no longer needed fails the test.
"""

from __future__ import annotations

import ast

from onibus.shard.link import Link
from onibus.shard.shard import Shard
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
    "onibus.directory",
    "onibus.gateway",
    "onibus.spark",
    "onibus.server.check",
)

#: What else is imported from the core, and by which module.
IMPORTS = {
    "onibus.bus": {"block"},
    "onibus.calls.claims": {"claimed_rows"},
    "onibus.calls.log": {"log_batch"},
    "onibus.protocols.http.api.claims": {"claimed_rows"},
    "onibus.protocols.http.api.log": {"log_batch"},
    "onibus.protocols.http.arrow": {"arrow_block"},
}

#: What the gateway and the directory use of a shard beyond its link: they run in its process.
BEYOND_THE_LINK = {
    "onibus.directory.entity": {"returns", "shape"},
    "onibus.directory.namespace": {"begin", "identity", "notice", "shape"},
    "onibus.directory.probing": {"turn_away"},
    "onibus.directory.works": {"boot", "partitions", "works", "write"},
    "onibus.gateway.broker": {
        *("add", "commit_all", "drop", "error", "flush_later", "identity", "is_due", "loop"),
        *("notice", "partitions", "seen", "staged", "stop", "take_offline", "threads"),
        *("tidy_soon", "turn_away", "watch"),
    },
    "onibus.gateway.reading": {"partition_failed", "read_beside"},
    "onibus.gateway.ticking": {"flush"},
}
#: The only module outside the shards that reads the state of a partition: it checks a directory
#: that no server has open.
CHECKS_STATE = {"onibus.server.check"}

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


def uses_of_the_core(path: str) -> list[str]:
    """Return where a file reads the state of a partition instead of sending it a command."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree_of(path))
        if (isinstance(node, ast.Attribute) and node.attr == "core")
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "online"
        )
    ]


def test_only_shards_touch_the_state_of_a_partition() -> None:
    found = {
        module_name(path): uses
        for path in FILES
        if not module_name(path).startswith(("onibus.core", "onibus.shard"))
        and (uses := uses_of_the_core(path))
    }
    assert found.keys() == CHECKS_STATE, found


def uses_of_a_shard(path: str) -> set[str]:
    """Return the attributes of shards that a file uses, without those of the link."""
    known: set[str] = set(dir(Shard))
    for node in ast.walk(tree_of("onibus/shard/shard.py")):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            known.add(node.attr)
    found = {
        node.attr
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value).rpartition(".")[2].partition("[")[0]
        in ("store", "_store", "stores", "shard")
    }
    return found & known - set(dir(Link)) - set(Link.__annotations__)


def test_the_gateway_and_the_directory_ask_shards_through_the_link() -> None:
    link: type[Link] = Shard
    assert link is Shard
    paths = python_files("onibus/gateway", "onibus/directory")
    found = {module_name(path): uses for path in paths if (uses := uses_of_a_shard(path))}
    assert found == BEYOND_THE_LINK, "add it to shard/link.py, or use the link"
