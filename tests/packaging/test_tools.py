"""The tools behind `make coverage`, `make release` and `make bench` check before they act."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import bench.__main__
import bench.sending
from tools import coverage, release


def measured(path: str, percent: float, statements: int = 100) -> tuple[str, Any]:
    """Return a file of coverage's report."""
    return path, {"summary": {"percent_covered": percent, "num_statements": statements}}


def test_coverage_prints_both_figures_and_the_ten_least_covered_modules() -> None:
    totals = {
        "covered_lines": 900, "num_statements": 1_000, "covered_branches": 150, "num_branches": 200
    }  # fmt: skip
    files = dict(measured(f"m{n}.py", 50.0 + n) for n in range(12))
    files |= dict([measured("small.py", 0.0, statements=3)])
    lines = coverage.report({"totals": totals, "files": files}).splitlines()
    assert lines[0].split(maxsplit=1) == ["lines", "90.0 % (900 of 1,000)"]
    assert lines[1].split(maxsplit=1) == ["branches", "75.0 % (150 of 200)"]
    assert [line.split()[-1] for line in lines[4:]] == [f"m{n}.py" for n in range(10)]


def test_unknown_parts_of_the_bench_are_rejected_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "sending", "sendign"])
    monkeypatch.setattr(bench.sending, "measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(SystemExit) as caught:
        bench.__main__.main()
    assert caught.value.code == 2
    assert "unknown parts: sendign; choose from sending, " in capsys.readouterr().err


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed checkout whose changelog has version 1.2.3."""
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2026-11-18\n")
    commit = ("-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-qm", "one")
    for words in (["init", "-q"], ["add", "-A"], commit):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(release.run, "__kwdefaults__", {"cwd": tmp_path})
    return tmp_path


def test_a_clean_checkout_with_a_changelog_is_released(checkout: Path) -> None:
    release.check_checkout("1.2.3")


def test_a_checkout_with_changes_is_not_released(checkout: Path) -> None:
    (checkout / "new.py").write_text("")
    with pytest.raises(release.NotReady, match="commit or remove your changes"):
        release.check_checkout("1.2.3")


def test_a_version_without_a_changelog_is_not_released(checkout: Path) -> None:
    with pytest.raises(release.NotReady, match=r"no heading ## \[1\.2\.4\]"):
        release.check_checkout("1.2.4")


def test_a_version_is_released_once(checkout: Path) -> None:
    subprocess.run(["git", "tag", "v1.2.3"], cwd=checkout, check=True)
    with pytest.raises(release.NotReady, match=r"tag v1\.2\.3 exists"):
        release.check_checkout("1.2.3")
