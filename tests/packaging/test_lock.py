"""The metadata declares ranges; requirements/ pins them, with hashes, for every environment."""

from __future__ import annotations

import re
import tomllib
from itertools import chain

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.source_tree import text_of

PROJECT = tomllib.loads(text_of("pyproject.toml"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
#: Files, and the extras that each of them is for.
FILES = {
    "server": ["server", "arrow", "uvloop"],
    "all": ["server", "arrow", "uvloop", "spark"],
    "development": list(EXTRAS),
    "lowest": list(EXTRAS),
}


def wanted(extras: list[str]) -> list[Requirement]:
    """Return the requirements of the package and of some extras, other than its own extras."""
    lines = chain(PROJECT["dependencies"], *(EXTRAS[extra] for extra in extras))
    return [one for one in map(Requirement, lines) if one.name != "onibus"]


def pinned(name: str) -> dict[str, str]:
    """Return the versions of a file by package; each has at least one hash."""
    text = text_of(f"requirements/{name}.txt")
    pins: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", text):
        match = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", block)
        if match:
            assert "--hash=sha256:" in block, block.splitlines()[0]
            pins[canonicalize_name(match[1])] = match[2]
    return pins


def test_the_metadata_declares_ranges() -> None:
    for one in wanted(list(EXTRAS)):
        assert {part.operator for part in one.specifier} == {">=", "<"}, str(one)


@pytest.mark.parametrize("name", FILES)
def test_a_file_pins_what_the_metadata_allows(name: str) -> None:
    pins = pinned(name)
    for one in wanted(FILES[name]):
        assert one.specifier.contains(pins[canonicalize_name(one.name)]), str(one)
    assert "setuptools" in pins


def test_files_agree() -> None:
    development = pinned("development")
    for name in ("server", "all"):
        assert pinned(name).items() <= development.items(), name


def test_lowest_versions_are_the_lower_bounds() -> None:
    lowest = pinned("lowest")
    for one in wanted(["server", "arrow", "spark", "uvloop"]):
        (bound,) = (part.version for part in one.specifier if part.operator == ">=")
        found = lowest[canonicalize_name(one.name)]
        assert found == bound or found.startswith(f"{bound}."), f"{one}: {found}"


@pytest.mark.parametrize("name", FILES)
def test_a_file_names_no_index(name: str) -> None:
    assert not re.findall(r"^--|://", text_of(f"requirements/{name}.txt"), re.MULTILINE)
