"""The version of Onibus that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """Return it; in a clone that was not installed there is none."""
    try:
        return version("onibus")
    except PackageNotFoundError:
        return "unknown"
