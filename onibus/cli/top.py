"""`onibus top`: live traffic of every entity.

Rates compare two snapshots of an entity. Outgoing messages are those counted as removed. Incoming
messages are those plus the growth of the queue. A topic's rate is the growth of its log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from onibus.api.entities import EntityInfo
from onibus.cli.output import age, text
from onibus.cli.session import CommandSession, command
from onibus.core.errors import EntityNotFound

if TYPE_CHECKING:
    from onibus.client import Client

#: The partition's index is in the top bits of a sequence number.
_INDEX_SHIFT = 48
#: Noisy groups that a line names.
_GROUPS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot of an entity."""

    info: EntityInfo[Any]
    at: float
    #: the number of messages that the log has ever accepted, its own or its topic's
    written: int
    oldest_ms: int | None

    @property
    def depth(self) -> int:
        info = self.info
        waiting = info.active_count + info.deferred_count + info.scheduled_count
        return waiting + info.dead_lettered_count


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "top")(top)


def top(
    session: CommandSession,
    interval: Annotated[float, typer.Option(help="Seconds between snapshots.", min=0.2)] = 2.0,
    looks: Annotated[
        int | None, typer.Option(help="Number of snapshots. Default: until Ctrl-C.")
    ] = None,
) -> None:
    """Show live rates, depths, noisy groups, oldest ages and duplicates of every entity."""
    with suppress(KeyboardInterrupt):
        _watch(session, interval, looks)


def _watch(session: CommandSession, interval: float, looks: int | None) -> None:
    before: dict[str, Look] = {}
    rounds = count() if looks is None else iter(range(looks))
    if session.out.as_json:
        for _ in _every(rounds, interval):
            before = _tell(session, before)
        return
    with Live(console=session.out.console, auto_refresh=False, screen=looks is None) as live:
        for _ in _every(rounds, interval):
            now = look_at_all(session.client)
            live.update(_table(before, now), refresh=True)
            before = now


def _every(rounds: Iterator[int], interval: float) -> Iterator[int]:
    for number in rounds:
        if number:
            time.sleep(interval)
        yield number


def _tell(session: CommandSession, before: dict[str, Look]) -> dict[str, Look]:
    now = look_at_all(session.client)
    for name, look in now.items():
        session.out.document(
            {"name": name, "kind": look.info.kind} | row_of(before.get(name), look)
        )
    return now


def look_at_all(client: Client) -> dict[str, Look]:
    """Return a snapshot of every entity, without those deleted while it runs."""
    infos: list[EntityInfo[Any]] = [client.queue(name) for name in client.queues()]
    for name in client.topics():
        topic = client.topic(name)
        infos.append(topic)
        infos += [client.subscription(one) for one in topic.subscriptions]
    looks = {}
    for info in infos:
        try:
            looks[info.name] = _look(client, info)
        except EntityNotFound:
            continue
    return looks


def _look(client: Client, info: EntityInfo[Any]) -> Look:
    source = info.name.partition("/subscriptions/")[0]
    latest = client.log_positions(source).latest
    mask = (1 << _INDEX_SHIFT) - 1 if len(latest) > 1 else -1
    written = sum((number & mask) - 1 for number in latest if number is not None)
    oldest = None
    if info.active_count:
        starts = [index << _INDEX_SHIFT for index in range(len(latest))]
        firsts = [one for start in starts for one in client.peek(info.name, start=start, limit=1)]
        oldest = min((one.enqueued_time_ms for one in firsts), default=None)
    return Look(info, time.monotonic(), written, oldest)


def row_of(before: Look | None, look: Look) -> dict[str, Any]:
    """Return the row of an entity; without an earlier snapshot it has no rates."""
    incoming = outgoing = duplicates = None
    if before is not None:
        seconds = max(look.at - before.at, 0.001)
        if look.info.kind == "topic":
            incoming = round((look.written - before.written) / seconds, 1)
        else:
            # Counted since the broker opened: a restart lowers the count.
            gone = max(look.info.gone_count - before.info.gone_count, 0)
            outgoing = round(gone / seconds, 1)
            incoming = round(max(look.depth - before.depth + gone, 0) / seconds, 1)
        dropped = look.info.duplicates_dropped - before.info.duplicates_dropped
        duplicates = round(dropped / seconds, 1)
    oldest = None if look.oldest_ms is None else time.time() * 1000 - look.oldest_ms
    return {
        "in_per_s": incoming,
        "out_per_s": outgoing,
        "active": look.info.active_count,
        "held": look.info.held_count,
        "deferred": look.info.deferred_count,
        "scheduled": look.info.scheduled_count,
        "dead": look.info.dead_lettered_count,
        "noisy": _noisy(look),
        "oldest_ms": None if oldest is None else round(max(oldest, 0)),
        "duplicates": look.info.duplicates_dropped,
        "duplicates_per_s": duplicates,
        "state": look.info.availability,
    }


def _noisy(look: Look) -> str | None:
    """Return the noisy groups by their names, the one with most in flight first (B10)."""
    groups = [one.group for one in look.info.noisy_groups]
    if not groups:
        return None
    more = [f"and {len(groups) - _GROUPS_SHOWN} more"] if len(groups) > _GROUPS_SHOWN else []
    return ", ".join(groups[:_GROUPS_SHOWN] + more)


def _table(before: dict[str, Look], now: dict[str, Look]) -> Table:
    table = Table("entity", box=None, header_style="bold")
    names = ("in/s", "out/s", "active", "held", "deferred", "scheduled", "dead", "noisy", "oldest")
    for column in (*names, "duplicates", "dup/s", "state"):
        table.add_column(column, justify="right")
    for name, look in now.items():
        row = row_of(before.get(name), look)
        row["oldest_ms"] = age(row["oldest_ms"])
        table.add_row(text(name), *(text(value) for value in row.values()))
    return table
