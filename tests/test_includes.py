"""Pages show the code of programs that run: tools/includes.py, and the programs of how-to pages."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT, imports_of, text_of
from tools import includes

PROGRAMS = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "examples/how-to").glob("*.py")
)
HOW_TO = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/how-to").glob("*.md"))
BLOCK = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_of_a_page_runs(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [program])
    runpy.run_path(str(ROOT / program), run_name="__main__")
    assert not list(tmp_path.iterdir()), "the program leaves files behind"


def test_pages_show_the_current_code() -> None:
    stale = [
        page.relative_to(ROOT).as_posix()
        for page in includes.pages()
        if includes.render(page.read_text("utf-8")) != page.read_text("utf-8")
    ]
    assert not stale, f"run make docs: {', '.join(stale)}"


@pytest.mark.parametrize("page", HOW_TO)
def test_a_how_to_page_shows_only_code_of_programs(page: str) -> None:
    loose = BLOCK.findall(includes.INCLUDE.sub("", text_of(page)))
    assert not loose, loose


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_belongs_to_a_page(program: str) -> None:
    """A page that links to its program tells the reader how to run it."""
    linked = [page for page in HOW_TO if f"../../{program}" in text_of(page)]
    assert len(linked) == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_page_of_a_program_names_the_extras_it_needs(program: str) -> None:
    [page] = [page for page in HOW_TO if f"../../{program}" in text_of(page)]
    needs_arrow = any(name.split(".")[0] == "pyarrow" for name, _ in imports_of(program))
    extras = "server,arrow" if needs_arrow else "server"
    assert f"`onibus[{extras}]`" in text_of(page)


def test_parts_of_a_program_are_found_by_name() -> None:
    source = "import a\n\nimport b\n\n# why\nX = 1\n\n\n@d\ndef f():\n    return X\n"
    assert includes.definitions(source) == {
        "imports": "import a\n\nimport b",
        "X": "# why\nX = 1",
        "f": "@d\ndef f():\n    return X",
    }


def test_parts_of_a_program_are_spaced_as_in_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("import a\nX: int = 1\nY = 2\ndef f(): ...\nZ = 3\n")
    monkeypatch.setattr(includes, "ROOT", tmp_path)
    shown = includes.included("a.py", "imports, X, Y, f, Z")
    assert shown == "import a\n\nX: int = 1\nY = 2\n\n\ndef f(): ...\n\n\nZ = 3"


def test_missing_files_and_definitions_are_named() -> None:
    with pytest.raises(includes.Missing, match=r"nothing\.py does not exist"):
        includes.included("examples/nothing.py", None)
    with pytest.raises(includes.Missing, match="does not define nothing"):
        includes.included("tools/includes.py", "render, nothing")


def test_a_stale_block_is_replaced() -> None:
    page = "before\n\n<!-- include tools/includes.py: ROOT -->\n\n```python\nold\n```\n\nafter\n"
    shown = includes.render(page)
    assert "old" not in shown
    assert "ROOT = Path(__file__).resolve().parent.parent" in shown
    assert shown.startswith("before\n\n<!-- include")
    assert shown.endswith("```\n\nafter\n")
    assert includes.render(shown) == shown
