"""`onibus serve`: run a server in the foreground."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onibus.cli import exits
from onibus.cli.printing import print_error, print_line

if TYPE_CHECKING:
    from onibus.bus import Bus
    from onibus.server.config import Config
    from onibus.server.run import Ready

_Flag = bool | None
_ServiceBusProfile = Annotated[
    str | None,
    typer.Option(help="Service Bus tier: standard, premium or relaxed. Default: relaxed."),
]
_SqsProfile = Annotated[str | None, typer.Option(help="SQS dialect: aws or yandex. Default: aws.")]
_SqsAccount = Annotated[
    str | None, typer.Option(help="Account in SQS queue URLs. Default: 000000000000.")
]
_SqsContent = Annotated[
    _Flag,
    typer.Option(
        "--sqs-content-matches-any-id/--no-sqs-content-matches-any-id",
        help="Match equal content under any id in new SQS queues. Default: on for yandex.",
    ),
]
_Development = Annotated[
    _Flag,
    typer.Option(
        "--development/--no-development",
        help="Accept the well-known key SAS_KEY_VALUE until the bus has its own keys.",
    ),
]
_Probe = Annotated[
    int | None,
    typer.Option(help="Probe the disk of a store idle for this long; 0 disables. Default: 2000."),
]

#: The command on its own, which `onibus.cli.entry` runs; `onibus.cli.main` has it too.
app = typer.Typer(name="onibus", pretty_exceptions_show_locals=False)


@app.callback()
def _nothing_before() -> None:
    """Run a server."""


@app.command()
def serve(
    config: Annotated[
        str | None,
        typer.Option(help="Configuration: TOML, or an emulator's Config.json.", metavar="FILE"),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data directory. Default: data.", metavar="DIR")
    ] = None,
    ephemeral: Annotated[
        _Flag, typer.Option("--ephemeral", help="Keep data in memory only, for tests.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")
    ] = None,
    http_port: Annotated[int | None, typer.Option(help="Native API port. Default: 5300.")] = None,
    amqp_port: Annotated[int | None, typer.Option(help="AMQP port. Default: 5672.")] = None,
    amqps_port: Annotated[
        int | None, typer.Option(help="AMQP over TLS port. Default: 5671 if the AMQP port is 5672.")
    ] = None,
    service_bus_profile: _ServiceBusProfile = None,
    sqs_port: Annotated[int | None, typer.Option(help="SQS port. Default: 9324.")] = None,
    sqs_profile: _SqsProfile = None,
    sqs_account: _SqsAccount = None,
    sqs_content_matches_any_id: _SqsContent = None,
    tls: Annotated[
        _Flag,
        typer.Option("--tls/--no-tls", help="Use TLS; generate a certificate if none is given."),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(help="Certificate chain in PEM.", metavar="FILE")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="Private key in PEM.", metavar="FILE")] = None,
    insecure: Annotated[
        _Flag, typer.Option("--insecure", help="Accept clients without credentials; loopback only.")
    ] = None,
    allow_plain_text: Annotated[
        _Flag, typer.Option("--allow-plain-text", help="Listen without TLS beyond loopback.")
    ] = None,
    development: _Development = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Accept this host name in development. Repeatable."),
    ] = None,
    test_mode: Annotated[
        _Flag,
        typer.Option("--test-mode", help="Offer reset and a movable clock; needs --ephemeral."),
    ] = None,
    reserve_bytes: Annotated[
        int | None, typer.Option(help="Reject sends below this free disk space. Default: 512 MiB.")
    ] = None,
    probe_ms: _Probe = None,
    log_format: Annotated[str | None, typer.Option(help="text or json. Default: text.")] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error. Default: info.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print addresses as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print one line when ready.")] = False,
) -> None:
    """Run a server until SIGTERM or Ctrl-C."""
    raise typer.Exit(run(locals()))


def run(
    given: dict[str, Any],
    on_ready: Callable[[Ready], None] = lambda ready: None,
    prepare: Callable[[Bus], Awaitable[None]] | None = None,
    on_config: Callable[[Config], None] = lambda config: None,
) -> int:
    """Serve with the given options; return the exit code."""
    file, as_json, quiet = given["config"], given["as_json"], given["quiet"]
    flags = {name: given[name] for name in given if name not in ("config", "as_json", "quiet")}
    flags["allow_host"] = flags["allow_host"] or None
    begun = time.monotonic()
    # Imported here, so that other commands need not load the server.
    from onibus.core.errors import InvalidArgument
    from onibus.operation.logs import start_logs
    from onibus.server.config import load

    try:
        config = load(file, os.environ, flags)
    except InvalidArgument as error:
        return _fail(exits.USAGE, str(error))
    on_config(config)
    # Files created from here on are readable by their owner only.
    os.umask(0o077)
    start_logs(config.options.log_format, config.options.log_level)

    def announce(ready: Ready) -> None:
        if as_json:
            print_line(json.dumps({"ready": True, **asdict(ready)}))
        else:
            if not quiet:
                _show(config, ready)
            print_line(f"onibus is ready: {ready.http} ({ready.seconds:.2f} s)")
        on_ready(ready)

    from onibus.cli.running import run_server

    return run_server(config, announce, begun, _fail, prepare)


def _fail(code: int, text: str) -> int:
    print_error(f"onibus: {text}")
    return code


def _show(config: Config, ready: Ready) -> None:
    """Print the addresses, and commands to try."""
    from onibus.cli.safe_console import SafeConsole

    rows = [
        ("native API", ready.http),
        ("console", f"{ready.http}/console/"),
        ("SQS", ready.sqs),
        ("SQS key pair", ready.sqs_keys),
        ("data", ready.data or "in memory: lost when the server stops"),
        ("credentials", "not required" if config.options.insecure else ""),
        ("AMQP", " ".join((ready.amqp, ready.amqps)).rstrip()),
        ("connection string", ready.development),
        ("Service Bus clients", ready.service_bus),
        ("connection file", ready.connection_file),
        ("certificate to trust", ready.certificate),
        ("administration", _trusting(ready.offered_certificate)),
        ("created", ", ".join(ready.made)),
    ]
    console = SafeConsole(soft_wrap=True, highlight=False)
    for name, value in rows:
        if value:
            console.print(f"[dim]{name:<22}[/dim]", end="")
            console.print(value, markup=False)
    console.print("[dim]Try in another terminal:[/dim]")
    queue = _plain_queue(config)
    first = "queue list" if queue else "queue create orders"
    queue = queue or "orders"
    for words in (first, f"send {queue} 'three apples' --id first", f"receive {queue}"):
        console.print(f"    {called()} {words}{_where(ready)}", markup=False)


def _trusting(certificate: str) -> str:
    """Return what administration clients need, which speak TLS only."""
    if not certificate:
        return ""
    return f"https, trusting {certificate} (REQUESTS_CA_BUNDLE, SSL_CERT_FILE, NODE_EXTRA_CA_CERTS)"


def _plain_queue(config: Config) -> str:
    """Return a queue without sessions or forwarding, or an empty string."""
    from onibus.core.settings import QueueSettings

    for one in config.entities:
        chosen = one.settings
        if isinstance(chosen, QueueSettings) and not (chosen.requires_session or chosen.forward_to):
            return one.name
    return ""


def _where(ready: Ready) -> str:
    """Return the options with which commands find the server; empty if they need none."""
    from onibus.client.finding import DEVELOPMENT, FILE

    trust = f" --trust {ready.certificate}" if ready.certificate else ""
    known = DEVELOPMENT.replace("localhost", "localhost:5300")
    if ready.connection_file == str(FILE) or (ready.development == known and not trust):
        return trust
    if ready.connection_file:
        return f" -c @{ready.connection_file}{trust}"
    return f" -c '{ready.development or ready.http}'{trust}"


def called() -> str:
    """Return the command that runs this program: its name, if the shell finds it."""
    found = shutil.which("onibus")
    own = sys.argv[0]
    if os.path.basename(own) == "__main__.py":
        return f"{os.path.basename(sys.executable)} -m onibus"
    same = found is not None and os.path.exists(own) and os.path.samefile(found, own)
    return "onibus" if same else own
