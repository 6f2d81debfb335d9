"""The documentation site builds without warnings and loads nothing from other hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT

pytest.importorskip("mkdocs")

#: What a browser fetches when it shows a page, unlike the targets of links.
FETCHED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?(https?:[^"'\s>]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make site` does, into a temporary folder."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    places = {
        path.with_suffix(".html") if path.name != "README.md" else path.with_name("index.html")
        for path in pages
    }
    assert not [str(place) for place in places if not (site / place).is_file()]


def test_the_home_page_has_the_readme_and_all_readers(site: Path) -> None:
    home = (site / "index.html").read_text("utf-8")
    assert "Onibus is a durable message bus" in home
    for reader in ("service-bus", "sqs", "spark"):
        assert f'href="start/{reader}.html"' in home


def test_pages_fetch_nothing_from_other_hosts(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not FETCHED.findall(path.read_text("utf-8")), path


def test_the_search_index_is_local(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))
    found = [one["location"] for one in index["docs"] if "duplicate detection" in one["text"]]
    assert "how-to/duplicates.html" in found


def test_links_to_programs_lead_to_copies_of_them(site: Path) -> None:
    page = (site / "how-to/duplicates.html").read_text("utf-8")
    assert 'href="../repository/examples/how-to/duplicates.py"' in page
    copy = (site / "repository/examples/how-to/duplicates.py").read_bytes()
    assert copy == (ROOT / "examples/how-to/duplicates.py").read_bytes()
