"""Installations in fresh environments: small ones, and next to other versions than the locked."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from tools.release import SMOKE, version

#: What the base installation may add to an empty environment.
BASE_BYTES_MAX = 60_000_000
PATIENCE_S = 900


def run(*words: str | Path, cwd: Path) -> str:
    """Run a command away from the checkout; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment | {"NO_COLOR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout


def new_environment(directory: Path) -> Path:
    """Make an empty environment; return its Python."""
    run(sys.executable, "-m", "venv", directory, cwd=directory.parent)
    return directory / "bin" / "python"


def size_of(directory: Path) -> int:
    """Return the bytes of all files below a directory, without compiled modules."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if path.suffix != ".pyc")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", directory)
    run(*build, ROOT, cwd=directory)
    return directory / f"onibus-{version()}-py3-none-any.whl"


def test_a_wheel_has_the_product_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"onibus", "pyspark_onibus", f"onibus-{version()}.dist-info"}
    assert "pyspark_onibus/__init__.py" in names
    assert "onibus/py.typed" in names
    testing = {name for name in names if name.startswith("onibus/testing/")}
    assert testing == {f"onibus/testing/{name}.py" for name in ("__init__", "clock", "disk")}


def test_the_base_installation_is_small(wheel: Path, tmp_path: Path) -> None:
    python = new_environment(tmp_path / "environment")
    before = size_of(tmp_path)
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    assert size_of(tmp_path) - before < BASE_BYTES_MAX
    run(python, "-c", "from onibus.client import AsyncClient, Client", cwd=tmp_path)
    assert "receive" in run(python.parent / "onibus", "--help", cwd=tmp_path)
    done = subprocess.run(
        [python.parent / "onibus", "serve"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.stderr.endswith("run pip install 'onibus[server]'\n"), done.stderr


def test_a_bus_works_next_to_other_versions(wheel: Path, tmp_path: Path) -> None:
    """The versions are those that another program in the same environment asked for."""
    python = new_environment(tmp_path / "environment")
    others = ("numpy==2.2.6", "pyarrow==21.0.0")
    pip = (python, "-m", "pip", "install", "--quiet")
    run(*pip, *others, cwd=tmp_path)
    run(*pip, f"onibus[server,arrow] @ file://{wheel}", cwd=tmp_path)
    frozen = run(python, "-m", "pip", "freeze", cwd=tmp_path).split()
    assert set(others) <= set(frozen)
    run(python, "-c", SMOKE, cwd=tmp_path)
    bulk = (
        "import asyncio, pyarrow as pa\n"
        "from onibus import Bus\n"
        "async def main():\n"
        "    async with Bus.ephemeral() as bus:\n"
        "        await bus.create_queue('q')\n"
        "        await bus.send_arrow('q', pa.table({'body': [b'one', b'two']}))\n"
        "        assert bus.queue('q').active_count == 2\n"
        "asyncio.run(main())"
    )
    run(python, "-c", bulk, cwd=tmp_path)
