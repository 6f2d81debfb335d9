"""A client loads only the light part of Onibus; other parts name the extra that they need."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from onibus.extras import EXTRAS, MissingExtra, advice, explained
from tests.source_tree import ROOT, text_of

#: The promise of the base installation: see pyproject.toml.
OUR_MODULES_MAX = 60
OPTIONAL = [*sorted(name for packages in EXTRAS.values() for name in packages), "uvloop"]

#: Lets an import of an optional package fail, as it does where the package is not installed.
HIDE = f"""
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a separate Python."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["Client", "AsyncClient"])
def test_a_client_loads_few_modules_and_no_optional_package(name: str) -> None:
    done = run(f"from onibus.client import {name}; import sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    modules = done.stdout.split()
    assert not {module.partition(".")[0] for module in modules} & set(OPTIONAL)
    ours = [module for module in modules if module.partition(".")[0] == "onibus"]
    assert len(ours) <= OUR_MODULES_MAX, "\n".join(ours)


def test_commands_are_listed_without_any_extra() -> None:
    done = run(HIDE + "from onibus.cli.entry import main; main()", "--help")
    assert done.returncode == 0, done.stderr
    assert "receive" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["serve", "--ephemeral"], "server"),
        (["doctor"], "server"),
        (["up"], "all"),
        (["pipeline", "audit", "lake"], "spark"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(arguments: list[str], extra: str) -> None:
    done = run(HIDE + "from onibus.cli.entry import main; main()", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("onibus: ")
    assert sentence.endswith(f" is not installed: run pip install 'onibus[{extra}]'")


def test_a_program_that_embeds_a_bus_is_told_to_install_the_server() -> None:
    done = run(HIDE + "from onibus import Bus")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.endswith("run pip install 'onibus[server]'"), done.stderr


def test_bulk_calls_of_a_client_name_their_extra() -> None:
    done = run(HIDE + "from onibus.client.convert import arrow_table; arrow_table(b'')")
    last = done.stderr.splitlines()[-1]
    assert last.endswith("pyarrow is not installed: run pip install 'onibus[arrow]'"), done.stderr


def test_other_missing_modules_are_not_explained() -> None:
    assert advice(ModuleNotFoundError("x", name="somewhere.else")) is None
    with pytest.raises(ModuleNotFoundError, match="nowhere") as caught, explained():
        raise ModuleNotFoundError("nowhere", name="nowhere")
    assert not isinstance(caught.value, MissingExtra)


def test_a_server_runs_without_uvloop() -> None:
    program = (
        "import sys; sys.modules['uvloop'] = None\n"
        "import asyncio\n"
        "from onibus.cli.running import _run\n"
        "async def where(): print(type(asyncio.get_running_loop()).__module__)\n"
        "_run(where())"
    )
    done = run(program)
    assert done.stdout.startswith("asyncio."), done.stderr
    assert run(program.partition("\n")[2]).stdout.startswith("uvloop")


def test_extras_are_those_of_the_metadata() -> None:
    declared = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        names = {one.partition(">")[0] for one in declared[extra]}
        # A package is imported without its extras, and Protobuf by the name of its maker.
        names = {
            one if one.startswith("onibus") else one.partition("[")[0].replace("protobuf", "google")
            for one in names
        }
        # What an earlier extra brings is named there.
        assert set(packages) <= names
        assert names - set(packages) <= {"onibus[arrow]", *EXTRAS["server"]}, extra
