"""Rejection of settings that expose the server, before it listens.

On loopback only this machine reaches the server. Elsewhere it requires its own keys over TLS,
unless the operator explicitly allows plain text behind other encryption, or the well-known key in a
container that only this machine reaches.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address

from onibus.core.errors import InvalidArgument
from onibus.server.config import AMQP_PORT, AMQPS_PORT, Config


def is_loopback(host: str) -> bool:
    """Return whether an address, or every address of a name, is on loopback."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"cannot resolve host {host!r}: {error}") from None
    return all(ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in infos)


def speaks_tls(config: Config) -> bool:
    """Return whether TLS is configured."""
    return config.options.tls or bool(config.options.tls_certificate)


def offers_tls(config: Config) -> bool:
    """Return whether ports also answer TLS although the operator did not ask for it.

    Administration clients speak TLS only, and the first byte tells it from plain text. On loopback
    our self-signed certificate is enough for them.
    """
    return not speaks_tls(config) and is_loopback(config.options.host)


def amqps_port(config: Config) -> int | None:
    """Return the port for AMQP over TLS only, or None."""
    options = config.options
    if not speaks_tls(config):
        return None
    if options.amqps_port is None and options.amqp_port == AMQP_PORT:
        return AMQPS_PORT
    return options.amqps_port


def takes_plain_text(config: Config) -> bool:
    """Return whether plain text is accepted."""
    options = config.options
    return options.allow_plain_text or is_loopback(options.host)


def wants_development(config: Config) -> bool:
    """Return whether the well-known key is accepted until the bus has its own keys.

    An option enables it, or data in memory or a Service Bus emulator's file do, and then only on
    loopback. A key in the configuration disables it in any case.
    """
    options = config.options
    if options.insecure or config.keys:
        return False
    if options.development is not None:
        return options.development
    return (options.ephemeral or config.of_emulator) and is_loopback(options.host)


def check_exposure(config: Config) -> None:
    """Reject settings that expose the server by mistake."""
    options = config.options
    if not is_loopback(options.host):
        if options.insecure:
            raise InvalidArgument(
                f"insecure on host {options.host}, which others can reach: use keys, or listen "
                "on 127.0.0.1"
            )
        if options.development and not options.allow_host:
            raise InvalidArgument(
                f"development on host {options.host}, which others can reach: listen on "
                "127.0.0.1; or, in a container whose ports are published on 127.0.0.1, name the "
                "hosts that clients use with --allow-host"
            )
        if not speaks_tls(config) and not options.allow_plain_text:
            raise InvalidArgument(
                f"plain text on host {options.host}, which others can reach: use --tls (with a "
                "self-signed certificate), or --tls-certificate and --tls-key; or use "
                "--allow-plain-text if a proxy encrypts"
            )
    if any(key.is_well_known for key in config.keys):
        raise InvalidArgument(
            "a key is the emulator's well-known SAS_KEY_VALUE: choose another one, or "
            "remove it and use --development"
        )
    if options.ephemeral and not (config.keys or options.insecure or wants_development(config)):
        raise InvalidArgument(
            "an ephemeral bus cannot store a generated key: set one under [[keys]] or in "
            "ONIBUS_ROOT_KEY, or use --development"
        )
