"""`onibus keys`: shared access keys, whose secrets are shown only when created or rotated.

`token` creates a bearer token for tools that cannot sign, such as Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
import typer

from onibus.cli.entities import Yes
from onibus.cli.printing import print_line
from onibus.cli.session import CommandSession, command
from onibus.cli.values import duration_ms
from onibus.security.keys import AccessKey
from onibus.security.rights import Right

keys_app = typer.Typer(
    help="List, create, rotate or delete shared access keys; create tokens.", no_args_is_help=True
)

KeyName = Annotated[str, typer.Argument(help="Name of the key.")]
Of = Annotated[
    str,
    typer.Option("--entity", "-e", help="Entity of the key. Default: the whole namespace."),
]
Rights = Annotated[
    list[Right] | None,
    typer.Option(
        "--right",
        "-r",
        case_sensitive=False,
        help="Grant this right; Manage includes the others. Repeatable.",
    ),
]
Alone = Annotated[
    bool,
    typer.Option("--connection-string", help="Print only the connection string."),
]


@command(keys_app, "list")
def list_keys(session: CommandSession) -> None:
    """List all keys, without their secrets."""
    columns: dict[str, Callable[[Any], Any]] = {
        "name": lambda one: one.name,
        "entity": lambda one: one.entity or "the whole namespace",
        "rights": lambda one: one.rights,
        "changed by": lambda one: "the configuration" if one.configured else "onibus keys",
    }
    session.out.rows(session.client.keys(), columns, plain=msgspec.to_builtins, empty="no keys")


@command(keys_app, "create")
def create_key(
    session: CommandSession,
    name: KeyName,
    rights: Rights = None,
    entity: Of = "",
    alone: Alone = False,
) -> None:
    """Create a key and show its secrets, this once."""
    if not rights:
        raise typer.BadParameter("name its rights: --right Send, Listen, Manage or Monitor")
    made = session.client.create_key(name, [one.value for one in rights], entity=entity)
    _show(session, made, made.primary, alone)


@command(keys_app, "rotate")
def rotate_key(
    session: CommandSession,
    name: KeyName,
    which: Annotated[
        Literal["primary", "secondary"], typer.Argument(help="Secret to replace.")
    ] = "primary",
    entity: Of = "",
    alone: Alone = False,
    yes: Yes = False,
) -> None:
    """Replace one of a key's two secrets; clients that use the old one are rejected."""
    session.confirm(f"Replace the {which} secret of {name}? Its clients are rejected at once.", yes)
    made = session.client.rotate_key(name, which, entity=entity)
    _show(session, made, getattr(made, which), alone)


@command(keys_app, "token")
def make_token(
    session: CommandSession,
    name: KeyName,
    lasting: Annotated[
        str, typer.Option("--for", help="Lifetime of the token: 12h, 90d. Default: 365d.")
    ] = "365d",
    which: Annotated[
        Literal["primary", "secondary"], typer.Option(help="Secret that signs the token.")
    ] = "primary",
    entity: Of = "",
) -> None:
    """Create a bearer token with the rights of a key, and print only that."""
    seconds = max(duration_ms(lasting) // 1_000, 1)
    made = session.client.key_token(name, seconds, which=which, entity=entity)
    if session.out.as_json:
        session.out.document(msgspec.to_builtins(made))
    else:
        print_line(made.token)


@command(keys_app, "delete")
def delete_key(session: CommandSession, name: KeyName, entity: Of = "", yes: Yes = False) -> None:
    """Delete a key; clients that use it are rejected."""
    session.confirm(f"Delete key {name}? Its clients are rejected at once.", yes)
    session.client.delete_key(name, entity=entity)
    session.out.done({"deleted": name, "entity": entity}, f"key {name} deleted")


def _show(session: CommandSession, key: AccessKey, secret: str, alone: bool) -> None:
    """Show a key, and the connection string with its new secret."""
    from onibus.server.connection_strings import connection_string

    where = urlsplit(session.target.url)
    text = connection_string(
        msgspec.structs.replace(key, primary=secret),
        where.hostname or "",
        where.port or (443 if where.scheme == "https" else 80),
        tls=where.scheme == "https",
    )
    if alone and not session.out.as_json:
        print_line(text)
        return
    plain = {
        "name": key.name,
        "entity": key.entity,
        "rights": [right.value for right in Right if right in key.rights],
        "primary": key.primary,
        "secondary": key.secondary,
    }
    shown = plain | {"entity": key.entity or "the whole namespace"}
    session.out.fields(plain | {"connection_string": text}, shown)
    if not session.out.as_json:
        session.out.console.print(text, markup=False, soft_wrap=True)
    session.out.say("Save the secrets now: they are not shown again.")
