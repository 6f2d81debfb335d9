"""`onibus clock`: show whether the server's clock is in doubt, and confirm it."""

from __future__ import annotations

import msgspec
import typer

from onibus.cli.entities import Yes
from onibus.cli.output import moment
from onibus.cli.session import Session, command

clock_app = typer.Typer(
    help="The server's clock: show whether it is in doubt, or confirm it.", no_args_is_help=True
)


@command(clock_app, "show")
def show_clock(session: Session) -> None:
    """Show the server's clock, and the time that is proven."""
    found = session.client.clock()
    ahead = {
        f"{one.entity}, partition {one.partition}": f"{one.ahead_ms / 1_000:,.0f} s"
        for one in found.stamps_ahead
    }
    session.out.fields(
        msgspec.to_builtins(found),
        {
            "clock (UTC)": moment(found.wall_ms),
            "proven (UTC)": moment(found.proven_ms),
            "in doubt": not found.sure,
            "stamps ahead of the clock": ahead or "none",
        },
    )


@command(clock_app, "accept")
def accept_clock(session: Session, yes: Yes = False) -> None:
    """Confirm that the server's clock is right.

    Time that was in doubt counts from now on: messages expire, recorded ids are discarded and
    scheduled messages are enqueued. Enqueued times that a wrong clock put into the future are set
    back; `onibus pipeline audit` names the place.
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
