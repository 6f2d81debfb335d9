"""`onibus clock`: show the server's clock, or confirm it."""

from __future__ import annotations

import msgspec
import typer

from onibus.cli.entities import Yes
from onibus.cli.output import moment
from onibus.cli.session import CommandSession, command

clock_app = typer.Typer(help="Show the server's clock, or confirm it.", no_args_is_help=True)


@command(clock_app, "show")
def show_clock(session: CommandSession) -> None:
    """Show the server's clock, and the time that it has confirmed."""
    found = session.client.clock()
    ahead = {
        f"{one.entity}, partition {one.partition}": f"{one.ahead_ms / 1_000:,.0f} s"
        for one in found.stamps_ahead
    }
    session.out.fields(
        msgspec.to_builtins(found),
        {
            "clock (UTC)": moment(found.wall_ms),
            "confirmed (UTC)": moment(found.proven_ms),
            "in doubt": not found.sure,
            "enqueued times ahead of the clock": ahead or "none",
        },
    )


@command(clock_app, "accept")
def accept_clock(session: CommandSession, yes: Yes = False) -> None:
    """Confirm that the server's clock is correct.

    From now on messages expire, recorded ids are discarded and scheduled messages are enqueued by
    this clock. Enqueued times that a wrong clock set in the future are set back;
    `onibus pipeline audit` names the partitions concerned.
    """
    found = session.client.clock()
    if not yes:
        session.confirm(f"Is it {moment(found.wall_ms)} UTC now?", yes)
    back = session.client.accept_clock()
    places = ", ".join(f"{one.entity} (partition {one.partition})" for one in back)
    session.out.done(
        {"wall_ms": found.wall_ms, "set_back": msgspec.to_builtins(back)},
        f"accepted {moment(found.wall_ms)} UTC; enqueued times set back: {places or 'none'}",
    )
