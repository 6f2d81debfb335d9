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
import pytest

from onibus.core import errors, limits
from onibus.core.settings import FIXED, QueueSettings
from tests.source_tree import ROOT, text_of
from tools import lifecycle

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FAMILIES = {
    "refused": errors.Refused,
    "unknown": errors.Unknown,
    "failed": errors.Failed,
    "rule": errors.FilterFailed,
}


def programs(page: str) -> list[tuple[int, str]]:
    """Return (line, source) of the Python blocks of a page."""
    text = text_of(page)
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


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert not list(broken_links(page, text_of(page)))


@pytest.mark.parametrize("page", PAGES)
def test_named_files_are_there(page: str) -> None:
    assert not missing_files(text_of(page))


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


def test_every_setting_is_listed_as_it_is() -> None:
    listed = {word(row[0]): row for row in rows("docs/settings.md", "setting")}
    fields = {field.name: field for field in msgspec.structs.fields(QueueSettings)}
    assert listed.keys() == fields.keys()
    for name, field in fields.items():
        _, default, allowed, changeable, meaning = listed[name]
        assert value(default) == field.default, name
        assert allowed, name
        assert changeable == ("no" if name in FIXED else "yes"), name
        assert meaning, name


def test_every_limit_is_listed_as_it_is() -> None:
    listed = {word(row[0]): row for row in rows("docs/limits.md", "limit")}
    numbers = {name: number for name, number in vars(limits).items() if name.isupper()}
    assert listed.keys() == numbers.keys()
    for name, number in numbers.items():
        assert value(listed[name][1]) == number, name


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
