"""Lifecycle of a server, from its configuration to its end.

In order: reject unsafe settings, open the bus, create missing keys and entities, then listen.
SIGTERM or SIGINT stops the server: it accepts no new requests, finishes commits in progress, and
keeps locks. After a second signal it no longer waits for clients.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from onibus.bus import Bus
from onibus.core.errors import InvalidArgument
from onibus.operation.reports import Reports
from onibus.protocols import service_bus_profile
from onibus.protocols.sqs.profile import PROFILES, Profile
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import DEVELOPMENT, DEVELOPMENT_SQS, Keyring
from onibus.server.config import Config, Options
from onibus.server.connection_strings import (
    CONNECTION_FILE,
    ConnectionFile,
    connection_string,
    reachable_name,
)
from onibus.server.exposure import (
    amqps_port,
    check_exposure,
    is_loopback,
    offers_tls,
    speaks_tls,
    takes_plain_text,
    wants_development,
)
from onibus.server.listener import Tls
from onibus.server.open_files import allow_open_files
from onibus.server.server import Server
from onibus.server.tls import context, in_memory, self_made
from onibus.server.wanted import create_missing
from onibus.shard.clock import Clock
from onibus.store.files import make_directory

_log = logging.getLogger("onibus.server")


@dataclass(frozen=True, slots=True)
class Ready:
    """Addresses and files of a started server, without secrets."""

    #: address of the native API
    http: str
    #: address of AMQP
    amqp: str
    #: address of AMQP over TLS only; empty without such a port
    amqps: str
    #: address of SQS
    sqs: str
    #: access key and secret access key of SQS, or their place; empty if not needed
    sqs_keys: str
    #: data directory; empty for data in memory
    data: str
    #: the emulator's well-known connection string, if accepted
    development: str
    #: the same for Service Bus clients, with the AMQP port
    service_bus: str
    #: file with the connection string of the root key; empty without one
    connection_file: str
    #: certificate for clients to trust; empty if the operator gave one
    certificate: str
    #: certificate of TLS on plain-text ports; empty if it is not in a file
    offered_certificate: str
    #: names of entities that the server created
    made: list[str]
    #: duration of the start, in seconds
    seconds: float


async def _nothing(bus: Bus) -> None:
    """Prepare nothing."""


async def serve(
    config: Config,
    announce: Callable[[Ready], None],
    begun: float,
    prepare: Callable[[Bus], Awaitable[None]] = _nothing,
) -> None:
    """Run a server until SIGTERM or SIGINT; `prepare` the bus before clients reach it."""
    check_exposure(config)
    config = _with_open_files(config)
    stopping = asyncio.Event()
    hurrying = asyncio.Event()
    _on_signals(stopping, hurrying)
    bus = await open_bus(config)
    try:
        await prepare(bus)
        server, ready = await _start(config, bus, begun)
    except BaseException:
        await bus.close()
        raise
    announce(ready)
    _log.info(
        "ready",
        extra={
            "http": ready.http,
            "seconds": round(ready.seconds, 3),
            "connections_max": config.limits.connections_max,
        },
    )
    await stopping.wait()
    _log.info("stopping: finishing requests in progress")
    finish = asyncio.ensure_future(server.stop())
    hurried = asyncio.ensure_future(hurrying.wait())
    await asyncio.wait((finish, hurried), return_when=asyncio.FIRST_COMPLETED)
    if not finish.done():
        server.hurry()
    hurried.cancel()
    await finish
    _log.info("stopped")


async def open_bus(config: Config, clock: Clock | None = None) -> Bus:
    """Open the bus of a configuration."""
    options = config.options
    if options.ephemeral:
        bus: Bus = await Bus.ephemeral(clock=clock, quotas=config.quotas)
        return bus
    data = Path(options.data)
    # It holds keys and messages: readable by its owner only.
    make_directory(data, 0o700)
    bus = await Bus.open(
        data,
        stores=config.stores or ("main",),
        clock=clock,
        reserve_bytes=options.reserve_bytes,
        quotas=config.quotas,
        probe_ms=options.probe_ms,
    )
    return bus


async def _start(config: Config, bus: Bus, begun: float) -> tuple[Server, Ready]:
    options = config.options
    made = await create_missing(bus, config.entities)
    keys = None
    if not options.insecure:
        keys = KeptKeys(bus, Keyring(development=wants_development(config)), config.keys)
        if not options.ephemeral:
            await keys.make_root()
        _log_development(config, keys)
    tls, certificate, offered = _tls(config)
    server = Server(
        bus,
        keys,
        host=options.host,
        http_port=options.http_port,
        amqp_port=options.amqp_port,
        amqps_port=amqps_port(config),
        tls=tls,
        plain_text=takes_plain_text(config),
        limits=config.limits,
        test_mode=options.test_mode,
        sqs_port=options.sqs_port,
        sqs_profile=_profile(options),
        sqs_account=options.sqs_account,
        service_bus_profile=service_bus_profile.PROFILES[options.service_bus_profile],
        allow_host=options.allow_host,
    )
    if not options.ephemeral:
        server.app.reports = Reports(Path(options.data) / "reports")
    await server.start()
    certificates = (certificate, offered)
    ready = _ready(config, server, keys, certificates, made, time.monotonic() - begun)
    return server, ready


def _profile(options: Options) -> Profile:
    """Return the SQS profile."""
    profile = PROFILES[options.sqs_profile]
    wanted = options.sqs_content_matches_any_id
    return profile if wanted is None else replace(profile, content_matches_any_id=wanted)


def _log_development(config: Config, keys: KeptKeys) -> None:
    """Log the state of the well-known key, if it may surprise its users."""
    if keys.keyring.development:
        if not is_loopback(config.options.host):
            _log.warning("well-known key accepted beyond loopback: any program may use this server")
        return
    if config.options.development and keys.has_own:
        _log.warning("well-known key rejected: this bus has its own keys")
    elif not keys.has_own:
        _log.info(
            "well-known key rejected: use the connection string in %s, or start with --development",
            Path(config.options.data) / CONNECTION_FILE,
        )


def _tls(config: Config) -> tuple[Tls | None, str, str]:
    """Return the TLS contexts, and the files of a generated certificate: required, or offered."""
    options = config.options
    if options.tls_certificate:
        return context(Path(options.tls_certificate), Path(options.tls_key)), "", ""
    if speaks_tls(config):
        certificate, key = self_made(Path(options.data), options.host)
        return context(certificate, key), str(certificate), ""
    if not offers_tls(config):
        return None, "", ""
    if options.ephemeral:
        return partial(in_memory, options.host), "", ""
    try:
        certificate, key = self_made(Path(options.data), options.host)
        return context(certificate, key), "", str(certificate)
    except (OSError, InvalidArgument) as error:
        # The operator did not ask for TLS: plain text works without it.
        _log.warning("cannot offer TLS: %s", error)
        return None, "", ""


def _ready(
    config: Config,
    server: Server,
    keys: KeptKeys | None,
    certificates: tuple[str, str],
    made: list[str],
    seconds: float,
) -> Ready:
    options = config.options
    tls = speaks_tls(config)
    name = reachable_name(options.host)
    port, amqp_port = server.http_port, server.amqp_port
    assert amqp_port is not None
    development = service_bus = ""
    file = ""
    sqs_keys = ""
    if keys is not None and keys.keyring.development:
        sqs_keys = f"{DEVELOPMENT_SQS.name} and {DEVELOPMENT_SQS.primary}"
        development = connection_string(DEVELOPMENT, name, port, tls=tls)
        service_bus = connection_string(DEVELOPMENT, name, amqp_port, tls=tls)
    if keys is not None and not options.ephemeral:
        path = Path(options.data) / CONNECTION_FILE
        ConnectionFile(path, keys, name, port, tls=tls)
        file = str(path) if keys.root is not None else ""
    if file and not sqs_keys:
        sqs_keys = f"SharedAccessKeyName and SharedAccessKey in {file}"
    host = f"[{options.host}]" if ":" in options.host else options.host
    scheme = "https" if tls else "http"
    return Ready(
        http=f"{scheme}://{host}:{port}",
        amqp=f"{'amqps' if tls else 'amqp'}://{host}:{amqp_port}",
        amqps="" if server.amqps_port is None else f"amqps://{host}:{server.amqps_port}",
        sqs=f"{scheme}://{host}:{server.sqs_port}",
        sqs_keys=sqs_keys,
        data="" if options.ephemeral else options.data,
        development=development,
        service_bus=service_bus,
        connection_file=file,
        certificate=certificates[0],
        offered_certificate=certificates[1],
        made=made,
        seconds=seconds,
    )


def _with_open_files(config: Config) -> Config:
    """Return the configuration with the number of connections that the open files allow."""
    wanted = config.limits.connections_max
    # The namespace has its own store.
    stores = 0 if config.options.ephemeral else max(len(config.stores), 1) + 1
    limits = replace(config.limits, connections_max=allow_open_files(wanted, stores))
    return msgspec.structs.replace(config, limits=limits)


def _on_signals(stopping: asyncio.Event, hurrying: asyncio.Event) -> None:
    def stop() -> None:
        (hurrying if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, stop)
