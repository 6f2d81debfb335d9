"""Pages name only functions, fields, options and commands that exist.

A name in backticks is checked if it looks like code: a call `f(…)`, a dotted name `bus.send`, a
name with an underscore, or a command that starts with `onibus` or `make`. Every part of a name must
be an identifier or a word of a string in the code; docstrings and comments do not count.
"""

from __future__ import annotations

import ast
import builtins
import re
import shlex
from collections.abc import Iterator
from functools import cache

import pytest
import typer
import typer.main

from onibus.cli.main import app
from tests.source_tree import ROOT, python_files, text_of, tree_of

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (ROOT, ROOT / "docs", ROOT / "examples")
    for path in (folder.glob("*.md") if folder == ROOT else folder.rglob("*.md"))
    # Decisions and the changelog are about their own time.
    if "decisions" not in path.parts and path.name != "CHANGELOG.md"
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
INDENTED = re.compile(r"^    ((?:onibus|make) .+)$", re.MULTILINE)
CALL = re.compile(r"([A-Za-z_][\w.]*)\(.*\)")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
SNAKE = re.compile(r"[A-Za-z]\w*_\w*")
FILE = re.compile(r".*\.(?:py|sql|md|toml|json|html|pem|sqlite|svg|txt|yml|service)")
WORD = re.compile(r"\w+")

#: The folders whose code pages may name. Tests do not count: they outlive what they name.
FOLDERS = ("onibus", "pyspark_onibus", "bench", "examples", "tools")

#: Names of other software that our code does not use. Never add a name from Onibus.
FOREIGN = {
    *("AmqpOverWebsocket", "ForwardTo", "SubscriptionProperties", "TransportType"),
    *("F_FULLFSYNC", "HADOOP_CONF_DIR", "rand"),
    # Samples of azure-servicebus.
    "authenticate_using_azure_named_key_credential",
    "authenticate_using_azure_sas_credential",
    "auto_lock_renew",
    "client_identity_authentication",
    "connection_to_custom_endpoint_address",
    "sample_code_servicebus",
}


def code_names() -> Iterator[str]:
    """Yield every identifier in our code, and the words of its strings except docstrings."""
    for path in python_files(*FOLDERS):
        tree = tree_of(path)
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        yield from path.removesuffix(".py").split("/")
        for node in ast.walk(tree):
            yield from names_of(node, docstrings)


def names_of(node: ast.AST, docstrings: set[int]) -> Iterator[str]:
    """Yield the names that one node introduces or uses."""
    match node:
        case ast.Name():
            yield node.id
        case ast.Attribute():
            yield node.attr
        case ast.arg() | ast.keyword():
            yield node.arg or ""
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.alias():
            yield from WORD.findall(node.name)
        case ast.Constant(value=str() as text) if id(node) not in docstrings:
            yield from WORD.findall(text)
        case ast.Constant(value=bytes() as data):
            yield from WORD.findall(data.decode("latin-1"))


@cache
def known() -> frozenset[str]:
    """Return every name that a page may use."""
    settings = [*(ROOT / "examples").glob("onibus.*"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    others = [*(ROOT / "onibus").rglob("*.sql"), *settings]
    words = {word for path in others for word in WORD.findall(path.read_text("utf-8"))}
    return frozenset({*code_names(), *dir(builtins), *words, *FOREIGN})


def unknown_names(text: str) -> list[str]:
    """Return the names in backticks that the code does not have."""
    found = set()
    for inline in INLINE.findall(FENCE.sub("", text)):
        call = CALL.fullmatch(inline)
        name = call[1] if call else inline
        if FILE.fullmatch(name) or not (call or DOTTED.fullmatch(name) or SNAKE.fullmatch(name)):
            continue
        # Every option is also a variable: ONIBUS_HTTP_PORT.
        option = name.removeprefix("ONIBUS_").lower()
        if not (set(name.split(".")) <= known() or option in known()):
            found.add(inline)
    return sorted(found)


def unknown_commands(text: str) -> list[str]:
    """Return the commands, in backticks or indented, that do not exist."""
    blocks = FENCE.sub("", text)
    commands = [one for one in INLINE.findall(blocks) if one.startswith(("onibus ", "make "))]
    return [one for one in [*commands, *INDENTED.findall(blocks)] if not exists(one)]


def exists(command: str) -> bool:
    """Return whether a command of `make` or of the command line exists, with its options."""
    words = shlex.split(command.replace("…", " "), comments=True)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE)
        return all(word in targets or "=" in word or word.startswith("#") for word in words[1:2])
    place: typer.core.TyperGroup | typer.core.TyperCommand = root()
    options = {"--help", "--version"}
    rest = words[1:]
    while isinstance(place, typer.core.TyperGroup):
        options |= {name for one in place.params for name in (*one.opts, *one.secondary_opts)}
        if not rest or rest[0].startswith("-") or rest[0].isupper():
            break
        if rest[0] not in place.commands:
            return False
        place = place.commands[rest.pop(0)]  # type: ignore[assignment]
    options |= {name for one in place.params for name in (*one.opts, *one.secondary_opts)}
    return all(word.partition("=")[0] in options for word in rest if re.match(r"--?[a-z]", word))


@cache
def root() -> typer.core.TyperGroup:
    """Return the command line as a tree of commands."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group


@pytest.mark.parametrize("page", PAGES)
def test_names_in_backticks_exist(page: str) -> None:
    assert not unknown_names(text_of(page))


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    assert not unknown_commands(text_of(page))


def test_foreign_names_are_needed() -> None:
    shown = {word for page in PAGES for word in WORD.findall(text_of(page))}
    assert not FOREIGN - shown, "remove names that no page uses"


def test_unknown_names_are_seen() -> None:
    page = (
        "`no_such_name`, `bus.no_such_call`, `vanished()`, `bus.send`, `receive(limit)`, `word`, "
    )
    page += "`ONIBUS_HTTP_PORT`, `ONIBUS_NO_SUCH_OPTION`"
    assert unknown_names(page) == [
        "ONIBUS_NO_SUCH_OPTION",
        "bus.no_such_call",
        "no_such_name",
        "vanished()",
    ]


def test_unknown_commands_are_seen() -> None:
    page = "`onibus vanish`, `make vanish`, `onibus queue create q --vanish`, `onibus top`\n"
    page += "\n    make run\n    onibus queue vanish\n"
    assert unknown_commands(page) == [
        "onibus vanish",
        "make vanish",
        "onibus queue create q --vanish",
        "onibus queue vanish",
    ]
