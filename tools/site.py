"""The documentation site: hooks for MkDocs, which `make site` runs.

The pages stay as GitHub shows them. These hooks add the README as the home page and the changelog,
derive the navigation from the index `docs/README.md`, and point links that leave `docs/` to copies
of the files in the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent

#: Pages of the site that come from elsewhere: path in the site to path in the repository.
ADDED = {
    "index.md": "README.md",
    "contents.md": "docs/README.md",
    "changelog.md": "CHANGELOG.md",
    "examples.md": "examples/README.md",
}
LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
SECTION = re.compile(r"^## (?P<title>.+)\n(?P<rows>(?:(?!^## ).*\n)*)", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def title_of(page: str) -> str:
    """Return the first heading of a page of the repository."""
    for line in (ROOT / page).read_text("utf-8").splitlines():
        if line.startswith("# "):
            return line[2:].strip()
    raise ValueError(f"{page} has no heading")


def navigation() -> list[Any]:
    """Return the sections of the index with the titles of their pages."""
    index = (ROOT / "docs/README.md").read_text("utf-8")
    nav: list[Any] = [{"Home": "index.md"}]
    for section in SECTION.finditer(index):
        links = re.findall(r"^\| \[[^\]]*\]\(([^)#]+\.md)\)", section["rows"], re.MULTILINE)
        pages = [link for link in dict.fromkeys(links) if not link.startswith("../")]
        if pages:
            titles = [{title_of(f"docs/{page}"): page} for page in pages]
            nav.append({section["title"]: titles})
    more = {"Contents": "contents.md", "Examples": "examples.md", "Changelog": "changelog.md"}
    nav.append({"More": [{title: page} for title, page in more.items()]})
    return nav


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation."""
    config.nav = navigation()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that come from elsewhere, and the files that pages link to."""
    if (index := files.get_file_from_path("README.md")) is not None:
        files.remove(index)
    for place, source in ADDED.items():
        content = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, place, content=content))
    linked: set[str] = set()
    for file in files.documentation_pages():
        linked |= {target for target in _targets(file.src_uri, file.content_string) if target}
    known = {*ADDED.values(), *(f"docs/{file.src_uri}" for file in files)}
    for target in sorted(linked - known):
        path = ROOT / target
        if path.is_file():
            files.append(File.generated(config, _place(target), content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to their places in the site."""
    del config
    here = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        target = _resolved(here, match["target"])
        if target is None:
            return match[0]
        place = _place(target)
        if (ROOT / target).is_dir() or files.get_file_from_path(place) is None:
            return match[0]
        relative = posixpath.relpath(place, posixpath.dirname(here) or ".")
        return f"{relative}{match['anchor'] or ''}"

    parts, last = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(moved, markdown[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, LINK.sub(moved, markdown[last:])])


def _targets(here: str, markdown: str) -> list[str | None]:
    """Return the files of the repository that a page links to."""
    return [_resolved(here, match["target"]) for match in LINK.finditer(FENCE.sub("", markdown))]


def _resolved(here: str, target: str) -> str | None:
    """Return the path in the repository of a link in a page of the site; None for other links."""
    if re.match(r"[a-z]+:", target):
        return None
    source = ADDED.get(here, f"docs/{here}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _place(target: str) -> str:
    """Return the path in the site of a file of the repository."""
    for place, source in ADDED.items():
        if source == target:
            return place
    inside = target.removeprefix("docs/")
    return inside if inside != target else f"repository/{target}"
