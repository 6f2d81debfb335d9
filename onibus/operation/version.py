"""Installed version of Onibus."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """Return the version; a clone that is not installed has none."""
    try:
        return version("onibus")
    except PackageNotFoundError:
        return "unknown"
