"""Compiles the busiest modules beside their sources, with mypyc and a C compiler.

    make compiled       compile them (python -m tools.compiled)
    make interpreted    take away what was compiled

Python prefers a compiled module to its source: after a change of a source they must be made again,
or taken away. The benches compile a copy (build/), and leave the sources as they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: What they have in common is in one library of this name.
LIBRARY = "onibus.compiled"

#: Not among them, for a compiled function takes no argument of another type than it says:
#: modules that check what callers hand in (broker/receiving.py, core/path/admit.py, …). Nor those
#: with msgspec's structs, whose options mypyc drops.
MODULES = {
    "onibus/core": """
        block dead_letters fans holds id_generation id_runs lifecycle log marks numbering outcomes
        partition records remembered_ids runs sessions subscription tally timers views
        """,
    "onibus/core/path": """
        attempts claim compact complete dead_letter deduplicate delay deliver enqueue expire fan_out
        read room route schedule stamp work
        """,
    "onibus/broker": """
        admission alarms commit_loop deleting entity idling key_rows pages ticking
        """,
    "onibus/protocols/http": """
        connection date deadline heads held reading usual_heads
        """,
    "onibus/protocols/sqs": """
        app errors handles json_protocol md5 messages profile queues sigv4
        """,
    "onibus/protocols/sqs/actions": "checking receiving sending settling",
}


def sources() -> list[str]:
    """Return the paths of what is compiled, from the root."""
    return [f"{folder}/{name}.py" for folder, names in MODULES.items() for name in names.split()]


def build(root: Path) -> None:
    """Compile them, beside their sources in that directory."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.chdir(root)
    for made in (root / "onibus").rglob("*.so"):
        made.unlink()
    extensions = mypycify(
        sources(), group_name=LIBRARY, opt_level="3", debug_level="0", target_dir="build/compiled"
    )
    command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
    command.inplace = True
    command.ensure_finalized()
    command.run()


def compiled_copy() -> Path | None:
    """Return a directory with a copy of the package as it is now, compiled; None where that fails.

    It is kept under build/ until the package changes.
    """
    digest = sha256()
    for path in sorted((ROOT / "onibus").rglob("*.py")):
        digest.update(path.read_bytes())
    copy = ROOT / "build" / f"copy-{digest.hexdigest()[:16]}"
    done = copy / "done"
    if not done.exists():
        for old in (ROOT / "build").glob("copy-*"):
            shutil.rmtree(old)
        left_out = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / "onibus", copy / "onibus", ignore=left_out)
        shutil.copy(ROOT / "pyproject.toml", copy)
        command = [sys.executable, "-m", "tools.compiled", str(copy)]
        if subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode:
            return None
        done.touch()
    return copy


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
