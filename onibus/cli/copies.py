"""`onibus backup` and `onibus restore`: copies of a data directory, made while a server works."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.progress import Progress

from onibus.cli.output import bytes_text, moment
from onibus.cli.session import Session, command
from onibus.cli.values import named

if TYPE_CHECKING:
    from onibus.server.backup import Manifest

Backup = Annotated[Path, typer.Argument(help="The directory of the backup.")]
Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Directory of the data (data).")
]
ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="The server's: it says where the data are."),
]
Stores = Annotated[
    list[str] | None,
    typer.Option("--store", metavar="NAME=DIR", help="A store that is in another directory."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "backup", asks_server=False)(backup)
    command(app, "restore", asks_server=False)(restore)


def backup(
    session: Session,
    target: Backup,
    data: Data = None,
    config: ConfigFile = None,
    stores: Stores = None,
) -> None:
    """Copy a data directory into a new one, all stores at one moment; its server goes on."""
    from onibus.server.backup import backup as copy

    source, places, reserve = places_of(data, config, stores)
    with session.out.progress() as progress:
        bars = _bars(progress, "copying")
        made = copy(source, target, places=places, progress=bars, reserve_bytes=reserve)
    _tell(session, made, target, f"commits waited {made.held_ms:.1f} ms for it")


def restore(
    session: Session,
    source: Backup,
    data: Data = None,
    config: ConfigFile = None,
    stores: Stores = None,
) -> None:
    """Make a data directory of a backup, once every byte of it is verified."""
    from onibus.server.backup import read_manifest
    from onibus.server.restore import restore as copy

    target, places, _ = places_of(data, config, stores)
    if config is not None:
        # A configuration may name stores that came after the backup: they are made when it starts.
        kept = {store.name for store in read_manifest(source).stores}
        places = {name: place for name, place in places.items() if name in kept}
    with session.out.progress() as progress:
        made = copy(source, target, places=places, progress=_bars(progress, "restoring"))
    _tell(session, made, target, f"as it was at {moment(made.made_ms)} UTC")


def places_of(
    data: Path | None, config: str | None, stores: list[str] | None
) -> tuple[Path, dict[str, str], int]:
    """Return where the data are, the stores that are elsewhere, and the reserve of their disks."""
    from onibus.core.errors import InvalidArgument
    from onibus.server.config import load

    # All that is copied is its owner's, as the data are.
    os.umask(0o077)
    try:
        found = load(config, os.environ, {"data": None if data is None else str(data)})
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None
    elsewhere = found.stores | named(stores, "--store")
    return Path(found.options.data), elsewhere, found.options.reserve_bytes


def _bars(progress: Progress, what: str) -> Any:
    """Return what shows a bar for each store."""
    bars: dict[str, Any] = {}

    def show(name: str, done: int, total: int) -> None:
        if name not in bars:
            bars[name] = progress.add_task(f"{what} {name}")
        progress.update(bars[name], completed=done, total=total)

    return show


def _tell(session: Session, made: Manifest, where: Path, more: str) -> None:
    sentence = f"{where}: {len(made.stores)} stores, {bytes_text(made.bytes)}; {more}"
    plain = {"directory": str(where), "bytes": made.bytes} | msgspec.to_builtins(made)
    session.out.done(plain, sentence)
