"""The quick starts of the README run exactly as printed: fresh environment, default ports."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT, project_files, text_of

HELPER = ROOT / "tests/documentation/default_ports.py"
QUICK_START = re.compile(
    r"^### [^\n]*\n(?P<before>(?:(?!^###? ).)*?)<!-- quick start: (?P<name>[\w ]+) -->\n\n"
    r"```python\n(?P<program>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
#: The line of the Spark program that an activated environment does without.
IMPORT = "import onibus.spark  # Spark then runs the Python of this environment\n"
#: The effect of `source venv/bin/activate` on Spark.
ACTIVATE = """import os, sys
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
"""
EXPECTED = {
    "service bus": ["received 3 apples"],
    "sqs": ["received step 1"],
    "spark": ["|       s-1|5 pears|", "|       s-2|7 plums|"],
}


def quick_starts() -> dict[str, tuple[str, str]]:
    """Return the install command and the program of each quick start by its name."""
    found = {}
    for match in QUICK_START.finditer(text_of("README.md")):
        [install] = re.findall(r"pip install [^`\n]+", match["before"])
        found[match["name"]] = (install, match["program"])
    return found


def separate_network() -> list[str]:
    """Return the command that gives a program its own loopback, and so all ports."""
    for command in (["unshare", "--net"], ["unshare", "--net", "--map-root-user"]):
        if (
            shutil.which(command[0])
            and not subprocess.run([*command, "true"], check=False).returncode
        ):
            return command
    pytest.skip("needs Linux network namespaces: the quick starts use fixed ports")


def clone_into(folder: Path) -> None:
    """Copy the files of the project."""
    files = project_files()
    if files is None:
        pytest.skip("not a git checkout")
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)


def environment() -> dict[str, str]:
    """Return the variables of a user's shell, without those of this environment."""
    ours = Path(sys.executable).parent
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        and not name.startswith(("ONIBUS", "PYSPARK", "AWS_", "SERVICEBUS"))
    }
    places = [one for one in kept["PATH"].split(os.pathsep) if one and Path(one) != ours]
    return {**kept, "PATH": os.pathsep.join(places), "SPARK_LOCAL_IP": "127.0.0.1"}


def check(names: list[str], python: Path, folder: Path, verb: str) -> None:
    """Run quick starts with a Python against a server, and compare what they print."""
    programs = {name: folder / f"{name.replace(' ', '_')}.py" for name in names}
    for name, path in programs.items():
        path.write_text(quick_starts()[name][1], "utf-8")
    if "spark" in names:
        source = quick_starts()["spark"][1]
        assert IMPORT in source
        programs["spark, activated"] = folder / "activated.py"
        programs["spark, activated"].write_text(ACTIVATE + source.replace(IMPORT, ""), "utf-8")
    command = [*separate_network(), sys.executable, str(HELPER), verb, str(python), str(folder)]
    command += [str(path) for path in programs.values()]
    variables = {**environment(), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    done = json.loads(ended.stdout)
    for name, path in programs.items():
        code, shown, errors = done[str(path)]
        assert code == 0, errors
        for words in EXPECTED[name.partition(",")[0]]:
            assert words in shown


def test_a_quick_start_has_at_most_ten_lines() -> None:
    found = quick_starts()
    assert found.keys() == EXPECTED.keys()
    for _, program in found.values():
        assert len([line for line in program.splitlines() if line]) <= 10


def test_quick_starts_run_on_the_default_ports(tmp_path: Path) -> None:
    check(["service bus", "sqs"], Path(sys.executable), tmp_path, "serve")


@pytest.mark.slow
def test_quick_starts_run_in_a_fresh_environment(tmp_path: Path) -> None:
    clone, venv, elsewhere = (tmp_path / name for name in ("clone", "venv", "elsewhere"))
    elsewhere.mkdir()
    clone_into(clone)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin/python"
    for install, _ in quick_starts().values():
        words = shlex.split(install)
        assert words[:2] == ["pip", "install"]
        subprocess.run(
            [str(python), "-m", *words, "--quiet", "--disable-pip-version-check"],
            cwd=clone,
            env=environment(),
            check=True,
        )
    check(list(EXPECTED), python, elsewhere, "up")
