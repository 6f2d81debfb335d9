"""What is refused before anything listens: settings that would let strangers in.

A server on loopback is reached from this machine only. Anywhere else it asks for its own keys, over
TLS, unless the operator says otherwise explicitly: plain text where something else encrypts, the
well-known key in a container that only this machine reaches.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address

from onibus.core.errors import InvalidArgument
from onibus.server.config import AMQP_PORT, AMQPS_PORT, Config


def is_loopback(host: str) -> bool:
    """Tell whether an address, or every address of a name, is this machine's own."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"host {host!r} has no address: {error}") from None
    return all(ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in infos)


def speaks_tls(config: Config) -> bool:
    """Tell whether TLS was asked for."""
    return config.options.tls or bool(config.options.tls_certificate)


def offers_tls(config: Config) -> bool:
    """Return whether ports also answer TLS although the operator did not ask for it.

    Administration clients speak TLS only, and the first byte tells it from plain text. On loopback
    our self-signed certificate is enough for them.
    """
    return not speaks_tls(config) and is_loopback(config.options.host)


def amqps_port(config: Config) -> int | None:
    """Return the port of AMQP over TLS alone; None where there is none."""
    options = config.options
    if not speaks_tls(config):
        return None
    if options.amqps_port is None and options.amqp_port == AMQP_PORT:
        return AMQPS_PORT
    return options.amqps_port


def takes_plain_text(config: Config) -> bool:
    """Tell whether plain text is let in."""
    options = config.options
    return options.allow_plain_text or is_loopback(options.host)


def wants_development(config: Config) -> bool:
    """Return whether the well-known key is accepted until the bus has its own keys.

    A file or a flag says so, or data in memory or a Service Bus emulator's file imply it: then only
    on loopback. A key in the configuration ends it in any case.
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
                f"insecure, and reachable from outside (host {options.host}): use keys, or listen "
                "on 127.0.0.1"
            )
        if options.development and not options.allow_host:
            raise InvalidArgument(
                f"development, and reachable from outside (host {options.host}): listen on "
                "127.0.0.1; or, in a container whose ports are published on 127.0.0.1, name the "
                "hosts that clients use with --allow-host"
            )
        if not speaks_tls(config) and not options.allow_plain_text:
            raise InvalidArgument(
                f"plain text, and reachable from outside (host {options.host}): give --tls (with a "
                "self-made certificate), or --tls-certificate and --tls-key, or, where something "
                "else encrypts, --allow-plain-text"
            )
    if any(key.is_well_known for key in config.keys):
        raise InvalidArgument(
            "a key is the emulator's well-known SAS_KEY_VALUE: choose another, or "
            "leave it out and give --development"
        )
    if options.ephemeral and not (config.keys or options.insecure or wants_development(config)):
        raise InvalidArgument(
            "an ephemeral bus has nowhere to keep a key that is made for it: name one under "
            "[[keys]] or in ONIBUS_ROOT_KEY, or give --development"
        )
