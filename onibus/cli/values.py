"""Values on the command line: settings, durations, times and properties."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

import typer

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d)?")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(written: str) -> int:
    """Parse 500ms, 30s, 10m, 2h or 7d; a bare number is in milliseconds."""
    match = _DURATION.fullmatch(written.strip().lower())
    if match is None:
        raise typer.BadParameter(f"{written!r} is not a duration: write 500ms, 30s, 10m, 2h or 7d")
    return round(float(match[1]) * _UNIT_MS[match[2] or "ms"])


def optional_ms(written: str | None) -> int | None:
    return None if written is None else duration_ms(written)


def keep_ms_of(written: str | None) -> int | None:
    """Parse how long a lake keeps rows; 0 for all, None for what the lake records."""
    if written is None:
        return None
    keep_ms = 0 if written == "all" else duration_ms(written)
    if written != "all" and keep_ms < _UNIT_MS["d"]:
        raise typer.BadParameter(f"--keep is {written}: use at least 1d, or all")
    return keep_ms


def moment_ms(written: str | None) -> int | None:
    """Parse an ISO 8601 time (UTC by default), or a duration before now."""
    if written is None:
        return None
    if _DURATION.fullmatch(written.strip().lower()):
        return time.time_ns() // 1_000_000 - duration_ms(written)
    return _iso_ms(written)


def future_ms(at: str | None, after: str | None) -> int | None:
    """Return the requested time, given as a time or as a delay."""
    if at is not None and after is not None:
        raise typer.BadParameter("give --at or --in, not both")
    if after is not None:
        return time.time_ns() // 1_000_000 + duration_ms(after)
    return None if at is None else _iso_ms(at)


def _iso_ms(written: str) -> int:
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise typer.BadParameter(f"{written!r} is not a time: write 2026-11-16T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def named(pairs: list[str] | None, flag: str) -> dict[str, str]:
    """Parse repeated name=value options."""
    found: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{flag} takes name=value, not {pair!r}")
        found[name] = value
    return found


def properties_of(pairs: list[str] | None) -> dict[str, Any]:
    """Parse properties: numbers, true, false and null as JSON, the rest as strings."""
    return {name: plain_value(value) for name, value in named(pairs, "--property").items()}


def plain_value(written: str) -> Any:
    """Parse a value as JSON, or keep it as a string."""
    import msgspec

    try:
        value = msgspec.json.decode(written)
    except msgspec.DecodeError:
        return written
    return written if isinstance(value, (dict, list)) else value


def settings_of(pairs: list[str] | None) -> dict[str, Any]:
    """Parse settings (docs/settings.md); times (…_ms) also as 30s, 10m, 2h or 7d."""
    found: dict[str, Any] = {}
    for name, value in named(pairs, "--set").items():
        key = name.replace("-", "_")
        if value.lower() in ("none", "never"):
            found[key] = None
        elif key.endswith("_ms") or key.endswith("_ms_max"):
            found[key] = duration_ms(value)
        elif key in ("user_metadata", "forward_to", "forward_dead_letters_to"):
            found[key] = value
        else:
            found[key] = plain_value(value)
    return found
