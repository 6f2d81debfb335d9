"""`onibus backup` and `onibus restore`: copy a data directory while a server uses it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.progress import Progress

from onibus.cli.output import bytes_text, moment
from onibus.cli.session import CommandSession, command
from onibus.cli.values import named

if TYPE_CHECKING:
    from onibus.server.backup import Manifest

Backup = Annotated[Path, typer.Argument(help="Directory of the backup.")]
Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Data directory. Default: data.")
]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="Configuration file of the server, which names its data."
    ),
]
Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--store", metavar="NAME=DIR", help="Directory of a store outside --data. Repeatable."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "backup", asks_server=False)(backup)
    command(app, "restore", asks_server=False)(restore)


def backup(
    session: CommandSession,
    target: Backup,
    data: Data = None,
    config: ConfigFile = None,
    stores: Stores = None,
) -> None:
    """Copy a data directory while its server runs."""
    from onibus.server.backup import backup as copy

    source, places, reserve = places_of(data, config, stores)
    refuse_unknown(source, stores)
    with session.out.progress() as progress:
        bars = _bars(progress, "copying")
        made = copy(source, target, places=places, progress=bars, reserve_bytes=reserve)
    _report(session, made, target, f"commits were paused for {made.held_ms:.1f} ms")


def restore(
    session: CommandSession,
    source: Backup,
    data: Data = None,
    config: ConfigFile = None,
    stores: Stores = None,
) -> None:
    """Restore a data directory from a verified backup."""
    from onibus.server.backup import read_manifest
    from onibus.server.restore import restore as copy

    target, places, _ = places_of(data, config, stores)
    if config is not None:
        # The configuration may name stores newer than the backup: the server creates those.
        kept = {store.name for store in read_manifest(source).stores}
        places = {name: place for name, place in places.items() if name in kept}
    with session.out.progress() as progress:
        made = copy(source, target, places=places, progress=_bars(progress, "restoring"))
    _report(session, made, target, f"restored to {moment(made.made_ms)} UTC")


def places_of(
    data: Path | None, config: str | None, stores: list[str] | None
) -> tuple[Path, dict[str, str], int]:
    """Return the data directory, the stores outside it, and the disk space to keep free."""
    from onibus.core.errors import InvalidArgument
    from onibus.server.config import load

    # Copies are readable by their owner only, like the data.
    os.umask(0o077)
    try:
        found = load(config, os.environ, {"data": None if data is None else str(data)})
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None
    elsewhere = found.stores | named(stores, "--store")
    return Path(found.options.data), elsewhere, found.options.reserve_bytes


def refuse_unknown(data: Path, stores: list[str] | None) -> None:
    """Reject `--store` with a name that the namespace does not record.

    The configuration may name stores that the server has not created yet.
    """
    from onibus.core.errors import Damaged, StoreFailed
    from onibus.directory.namespace import NAME
    from onibus.server.data_directory import find_paths

    given = named(stores, "--store")
    try:
        known = [name for name in find_paths(data) if name != NAME] if given else []
    except (Damaged, StoreFailed):
        # The command reports the damage.
        return
    for name in given:
        if name not in known:
            raise typer.BadParameter(f"unknown store {name!r} in --store: use {', '.join(known)}")


def _bars(progress: Progress, what: str) -> Any:
    """Return a function that shows a progress bar for each store."""
    bars: dict[str, Any] = {}

    def show(name: str, done: int, total: int) -> None:
        if name not in bars:
            bars[name] = progress.add_task(f"{what} {name}")
        progress.update(bars[name], completed=done, total=total)

    return show


def _report(session: CommandSession, made: Manifest, where: Path, more: str) -> None:
    sentence = f"{where}: {len(made.stores)} stores, {bytes_text(made.bytes)}; {more}"
    plain = {"directory": str(where), "bytes": made.bytes} | msgspec.to_builtins(made)
    session.out.done(plain, sentence)
