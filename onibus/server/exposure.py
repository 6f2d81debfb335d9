"""What is refused before anything listens: settings that would let strangers in.

A server on loopback is reached from this machine only. Anywhere else it asks for keys that not
everybody knows, over TLS, unless the operator says otherwise in so many words.
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


def takes_development_key(config: Config) -> bool:
    """Tell whether the emulator's well-known key is let in.

    On loopback it is, until the configuration has keys: then strangers may come through a proxy.
    """
    options = config.options
    if options.insecure:
        return False
    if options.allow_development_key is not None:
        return options.allow_development_key
    return is_loopback(options.host) and not config.keys


def check_exposure(config: Config) -> None:
    """Refuse to be open to strangers by accident."""
    options = config.options
    if not is_loopback(options.host):
        if options.insecure:
            raise InvalidArgument(
                f"insecure, and reachable from outside (host {options.host}): use keys, or listen "
                "on 127.0.0.1"
            )
        if not speaks_tls(config) and not options.allow_plain_text:
            raise InvalidArgument(
                f"plain text, and reachable from outside (host {options.host}): give --tls (with a "
                "self-made certificate), or --tls-certificate and --tls-key, or, where something "
                "else encrypts, --allow-plain-text"
            )
    allowed = options.allow_development_key
    known = any(key.is_well_known for key in config.keys)
    if known and not (is_loopback(options.host) if allowed is None else allowed):
        raise InvalidArgument(
            "a key is the emulator's SAS_KEY_VALUE, which everybody knows: choose another, or give "
            "--allow-development-key"
        )
    if options.ephemeral and not (config.keys or options.insecure or takes_development_key(config)):
        raise InvalidArgument(
            "an ephemeral bus has nowhere to keep a key that is made for it: name one under "
            "[[keys]], or in ONIBUS_ROOT_KEY"
        )
