"""Build a release and try it: `make release`.

The version is the one in pyproject.toml. The source archive and the wheel are built into dist/.
Each is installed into a fresh environment, with the locked versions of what a server needs, and
must pass a smoke test there. Then the commit gets the tag v<version>. With `--dry-run` it does not.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
LOCK = ROOT / "requirements" / "server.txt"

#: A bus in the program, and a client of it: sends, receives, survives being opened again.
SMOKE = """
import asyncio, sys
from onibus import Bus, Message
from onibus.client import AsyncClient

async def main():
    async with Bus.open("data") as bus:
        await bus.create_queue("orders")
        await AsyncClient.on(bus).send("orders", Message(body=b"one"))
    async with Bus.open("data") as bus:
        async with bus.receiver("orders") as receiver:
            (message,) = await receiver.receive()
            await receiver.complete(message)
            assert message.body == b"one"

asyncio.run(main())
"""


class NotReady(Exception):
    """The checkout cannot be released as it is."""


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return what it printed; its errors stay visible."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise NotReady(f"{' '.join(map(str, words[:4]))} … failed: {done.stdout[-2_000:]}")
    return done.stdout


def version() -> str:
    """Return the version that pyproject.toml declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def check_checkout(wanted: str) -> None:
    """Reject a checkout with changes, without a changelog of the version, or tagged already."""
    if run("git", "status", "--porcelain").strip():
        raise NotReady("commit or remove your changes first: git status lists them")
    if f"## [{wanted}] - " not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        raise NotReady(f"CHANGELOG.md has no heading ## [{wanted}] - <date>")
    if run("git", "tag", "--list", f"v{wanted}").strip():
        raise NotReady(f"tag v{wanted} exists: raise the version in pyproject.toml")


def build(wanted: str) -> list[Path]:
    """Build the source archive and the wheel; return their paths."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
    made = [DIST / f"onibus-{wanted}.tar.gz", DIST / f"onibus-{wanted}-py3-none-any.whl"]
    missing = [path.name for path in made if not path.is_file()]
    if missing:
        raise NotReady(f"not built: {', '.join(missing)}")
    return made


def install(archive: Path, directory: Path) -> Path:
    """Install an archive and what a server needs into a fresh environment; return its Python."""
    run(sys.executable, "-m", "venv", directory)
    python = directory / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--require-hashes", "-r", LOCK)
    run(*pip, "--no-deps", "--no-build-isolation", archive)
    return python


def smoke_test(archive: Path, wanted: str) -> None:
    """Install an archive, and run the command line and a bus far from the checkout."""
    with tempfile.TemporaryDirectory(prefix="onibus-release-") as directory:
        home = Path(directory)
        python = install(archive, home / "environment")
        told = run(python.parent / "onibus", "--version", cwd=home).strip()
        if told != f"onibus {wanted}":
            raise NotReady(f"{archive.name} says {told!r}")
        run(python, "-c", SMOKE, cwd=home)
        run(
            python,
            "-c",
            "import importlib.util as u; assert u.find_spec('pyspark_onibus')",
            cwd=home,
        )


def main() -> None:
    """Run the steps of a release; exit with 1 at the first that fails."""
    parser = argparse.ArgumentParser(prog="make release")
    parser.add_argument("--dry-run", action="store_true", help="build and try only")
    dry = parser.parse_args().dry_run
    wanted = version()
    try:
        if not dry:
            check_checkout(wanted)
        for archive in build(wanted):
            smoke_test(archive, wanted)
            print(f"{archive.name}: installs and works", flush=True)
        if not dry:
            run("git", "tag", "--annotate", f"v{wanted}", "--message", f"Onibus {wanted}")
    except NotReady as error:
        sys.exit(f"no release: {error}")
    print(f"onibus {wanted}: {'dry run, no tag' if dry else f'tagged v{wanted}'}")


if __name__ == "__main__":
    main()
