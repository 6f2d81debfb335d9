"""The documentation is true: its programs run, its links lead somewhere, its lists are whole."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from onibus import (
    Bus,
    Claim,
    CorrelationFilter,
    Filter,
    LogPositions,
    Message,
    Quotas,
    ReaderInfo,
    ReceivedMessage,
    Rule,
    Sent,
    SentBatch,
    SqlAction,
    SqlFilter,
)
from onibus.api.delivery import Resubmitted
from onibus.api.entities import EntityInfo
from onibus.api.staging import Published, Staged
from onibus.client import Unreachable
from onibus.core import errors, limits
from onibus.core.arrow_block import SCHEMA
from onibus.core.claimed_rows import CLAIMED_SCHEMA
from onibus.core.inspection import SessionInfo
from onibus.core.log_batch import READ_SCHEMA
from onibus.core.outcomes import Fate
from onibus.core.settings import FIXED
from onibus.directory.entity import KINDS
from onibus.receiver import FifoReceiver, Receiver, SessionReceiver
from onibus.transaction import Transaction
from tests.source_tree import ROOT, text_of
from tools import lifecycle, promises
from tools.includes import INCLUDE

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUICK_START = re.compile(
    r"^<!-- quick start: [\w ]+ -->\n\n```python\n.*?^```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FAMILIES = {
    "refused": errors.Refused,
    "unknown": errors.Unknown,
    "failed": errors.Failed,
    "rule": errors.FilterFailed,
}

#: Public by name only: for receivers inside the package.
INTERNAL_NAMES = ("ask", "tell", "admit_arrow", "keep_time", "check_alive")
INTERNAL = {(Bus, name) for name in INTERNAL_NAMES}


def programs(page: str) -> list[tuple[int, str]]:
    """Return (line, source) of a page's Python blocks, except those that run elsewhere.

    Programs of `examples/` have their own tests, and so have the quick starts of the README.
    """
    text = text_of(page)
    for elsewhere in (INCLUDE, QUICK_START):
        text = elsewhere.sub(lambda match: re.sub(r"\S", " ", match[0]), text)
    return [
        (text.count("\n", 0, match.start(2)) + 1, match[2])
        for match in FENCE.finditer(text)
        if match[1] == "python"
    ]


def run_page(page: str) -> None:
    """Run a page's blocks in order, in one namespace. They may await outside of any function."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for line, source in programs(page):
            padded = "\n" * (line - 1) + source
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(padded, str(ROOT / page), "exec", flags=flags, dont_inherit=True)
            result = eval(code, namespace)
            if inspect.iscoroutine(result):
                runner.run(result)


def anchors(page: str) -> set[str]:
    """Return the names by which headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def broken_links(page: str, text: str) -> Iterator[str]:
    """Yield the links of a page that lead to no file or no heading of ours."""
    for link in LINK.findall(FENCE.sub("", text)):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        if not target.exists():
            yield link
        elif anchor:
            inside = target.resolve().relative_to(ROOT).as_posix()
            if anchor not in anchors(inside):
                yield link


def missing_files(text: str) -> list[str]:
    """Return the code files that a page names and that are not there."""
    named = set(re.findall(r"`([\w./-]+\.(?:py|sql|md|toml))`", FENCE.sub("", text)))
    folders = ("", "onibus", "onibus/core", "onibus/core/path", "onibus/core/rules", "docs")
    return sorted(
        name for name in named if not any((ROOT / folder / name).exists() for folder in folders)
    )


def rows(page: str, first: str) -> list[list[str]]:
    """Return the cells of every table of a page whose first column has that heading."""
    found: list[list[str]] = []
    inside = False
    for line in text_of(page).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == first:
            inside = True
        elif inside and not set(line) <= set("|- "):
            found.append(cells)
    return found


def word(cell: str) -> str:
    """Return the code word in a cell."""
    match = re.fullmatch(r"`(\w+)`", cell)
    assert match, f"{cell} is no name in backticks"
    return match[1]


def value(cell: str) -> object:
    """Return the value that begins a cell, in backticks."""
    match = re.match(r"`([^`]+)`", cell)
    assert match, f"{cell} begins with no value in backticks"
    return ast.literal_eval(match[1])


@pytest.mark.parametrize("page", [page for page in PAGES if programs(page)])
def test_programs_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page)


def test_links_lead_somewhere() -> None:
    found = [f"{page}: {link}" for page in PAGES for link in broken_links(page, text_of(page))]
    assert not found, "\n".join(found)


def test_named_files_exist() -> None:
    found = [f"{page}: {name}" for page in PAGES for name in missing_files(text_of(page))]
    assert not found, "\n".join(found)


def test_every_page_is_in_the_index() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(text_of("docs/README.md"))}
    pages = [page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")]
    records = {page for page in pages if page.startswith("decisions/")}
    assert not set(pages) - records - linked - {"README.md"}
    listed = {f"decisions/{link}" for link in LINK.findall(text_of("docs/decisions/README.md"))}
    assert records - {"decisions/README.md"} <= listed


def test_every_error_is_listed_as_it_is() -> None:
    listed = {word(row[0]): row for row in rows("docs/errors.md", "class")}
    classes = {
        name: member
        for name, member in vars(errors).items()
        if isinstance(member, type) and issubclass(member, errors.OnibusError)
    }
    classes["Unreachable"] = Unreachable
    assert listed.keys() == classes.keys()
    for name, member in classes.items():
        _, code, family, again, meaning, advice = listed[name]
        assert code == f"`{member.code}`", name
        assert again == ("yes" if member.retryable else "no"), name
        assert meaning, name
        assert advice, name
        if member is not errors.OnibusError:
            assert issubclass(member, FAMILIES[family]), name


def test_codes_of_errors_are_unique() -> None:
    codes = [row[1] for row in rows("docs/errors.md", "class")]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("member", KINDS)
def test_every_setting_is_listed_as_it_is(member: type[msgspec.Struct]) -> None:
    every = rows("docs/settings.md", "setting")
    assert len({row[0] for row in every}) == len(every)
    assert {kind for row in every for kind in row[1].split(", ")} == set(KINDS.values())
    listed = {word(row[0]): row for row in every if KINDS[member] in row[1].split(", ")}
    fields = {field.name: field for field in msgspec.structs.fields(member)}
    assert listed.keys() == fields.keys()
    for name, field in fields.items():
        _, _, default, allowed, changeable, meaning = listed[name]
        made = field.default_factory
        expected = field.default if made is msgspec.NODEFAULT else made()
        assert value(default) == expected, name
        assert allowed, name
        assert changeable == ("no" if name in FIXED else "yes"), name
        assert meaning, name


def test_every_limit_is_listed_as_it_is() -> None:
    listed = {word(row[0]): row for row in rows("docs/limits.md", "limit")}
    numbers = {name: number for name, number in vars(limits).items() if name.isupper()}
    assert listed.keys() == numbers.keys()
    for name, number in numbers.items():
        assert value(listed[name][1]) == number, name


def section(page: str, heading: str) -> str:
    """Return the part of a page under a heading."""
    match = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text_of(page), re.MULTILINE | re.DOTALL)
    assert match, f"{page} has no heading {heading}"
    return match[1]


def first_cells(text: str) -> list[list[str]]:
    """Return the rows of the tables in a text that begin with something in backticks."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def public(member: type) -> dict[str, Any]:
    """Return what a class has that is not private, but for what the package needs itself."""
    names = [name for name in dir(member) if not name.startswith("_")]
    return {name: getattr(member, name) for name in names if (member, name) not in INTERNAL}


def arguments(signature: str) -> list[tuple[str, object]]:
    """Return names and defaults of the arguments in a call as the page writes it."""
    tree = ast.parse(f"def {signature}: pass").body[0]
    assert isinstance(tree, ast.FunctionDef)
    every = tree.args
    assert not every.posonlyargs
    defaults: list[ast.expr | None] = [None] * (len(every.args) - len(every.defaults))
    defaults += every.defaults
    found = list(zip(every.args, defaults, strict=True))
    found += [(one, None) for one in (every.vararg,) if one]
    found += zip(every.kwonlyargs, every.kw_defaults, strict=True)
    found += [(one, None) for one in (every.kwarg,) if one]
    empty = inspect.Parameter.empty
    return [(one.arg, ast.literal_eval(default) if default else empty) for one, default in found]


@pytest.mark.parametrize("member", [Bus, Transaction, Receiver, SessionReceiver, FifoReceiver])
def test_every_call_is_listed_as_it_is(member: type) -> None:
    cells = first_cells(section("docs/api.md", member.__name__))
    listed = {re.split(r"\W", row[0].strip("`"))[0]: row for row in cells}
    assert len(listed) == len(cells)
    calls = public(member)
    assert listed.keys() == calls.keys()
    for name, call in calls.items():
        written, waits, meaning = listed[name]
        assert meaning, name
        if isinstance(call, property):
            assert (written, waits) == (f"`{name}`", "no")
            continue
        given = inspect.signature(call).parameters.values()
        real = [(one.name, one.default) for one in given if one.name != "self"]
        assert arguments(written.strip("`")) == real, name
        opens = inspect.signature(call).return_annotation == "OpeningBus"
        assert waits == ("yes" if opens or inspect.iscoroutinefunction(call) else "no"), name


@pytest.mark.parametrize(
    "member",
    [
        Message,
        ReceivedMessage,
        Sent,
        SentBatch,
        Resubmitted,
        Staged,
        Published,
        Claim,
        ReaderInfo,
        LogPositions,
        EntityInfo,
        SessionInfo,
        Filter,
        Rule,
        SqlFilter,
        SqlAction,
        CorrelationFilter,
        Quotas,
    ],
)
def test_every_field_is_listed_as_it_is(member: type) -> None:
    cells = first_cells(section("docs/api.md", member.__name__))
    listed = {word(row[0]): row for row in cells}
    assert len(listed) == len(cells)
    fields = inspect.signature(member).parameters
    properties = {
        name for name, one in inspect.getmembers(member) if isinstance(one, property)
    } - fields.keys()
    assert listed.keys() == fields.keys() | properties
    for name, (_, default, meaning) in listed.items():
        assert meaning, name
        if name in properties:
            assert default == "property", name
        elif fields[name].default is inspect.Parameter.empty and default == "required":
            continue
        else:
            wanted = default_of(member, name)
            named = default == f"`{wanted!r}`"
            assert named or value(default) == wanted, name


def default_of(member: type, name: str) -> object:
    """Return the default of a field of a struct or a dataclass."""
    if not issubclass(member, msgspec.Struct):
        return inspect.signature(member).parameters[name].default
    (field,) = [one for one in msgspec.structs.fields(member) if one.name == name]
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()


def test_the_columns_of_bulk_sends_are_listed_with_their_types() -> None:
    listed = {
        name: kind.split(":")[0]
        for names, kind in rows("docs/how-to/bulk.md", "column")
        for name in re.findall(r"`(\w+)`", names)
    }
    assert listed == {field.name: str(field.type) for field in SCHEMA}


@pytest.mark.parametrize(
    ("page", "schema"), [("read-the-log", READ_SCHEMA), ("claims", CLAIMED_SCHEMA)]
)
def test_columns_before_those_of_messages_are_named(page: str, schema: pa.Schema) -> None:
    named = set(re.findall(r"`(\w+)`", text_of(f"docs/how-to/{page}.md")))
    assert set(schema.names) - set(SCHEMA.names) <= named


def test_every_outcome_is_named() -> None:
    page = text_of("docs/how-to/read-the-log.md")
    words = {fate.name.lower().replace("_", "-") for fate in Fate}
    assert words <= set(re.findall(r"`([\w-]+)`", page))


def test_what_is_not_there_yet_is_marked() -> None:
    for promise in promises.read_promises(text_of("docs/semantics.md")).values():
        if promise.id in promises.REQUIRED:
            assert not promise.text.startswith("(not yet)"), promise.id
        else:
            assert "(not yet)" in promise.text, promise.id


def test_lifecycle_is_up_to_date() -> None:
    page = lifecycle.PAGE.read_text("utf-8")
    assert page == lifecycle.render(), "docs/lifecycle.md is stale: make docs"


def test_broken_links_are_seen() -> None:
    page = "docs/README.md"
    assert list(broken_links(page, "[a](nothing.md) [b](semantics.md#no-such)")) == [
        "nothing.md",
        "semantics.md#no-such",
    ]
    text = "[a](semantics.md#l-deferral) [b](../README.md)\n```text\n[c](d)\n```"
    assert not list(broken_links(page, text))


def test_missing_files_are_seen() -> None:
    assert missing_files("`core/nothing.py`, `core/partition.py`, `x.y()`") == ["core/nothing.py"]
