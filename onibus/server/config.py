"""Configuration: one file, then the environment, then flags; the later wins.

Every option has one name: `http_port` in the file, ONIBUS_HTTP_PORT in the environment,
--http-port as a flag. The file is TOML with the options and the tables of `config_file`, or a
Service Bus emulator's Config.json. Paths in a file are relative to the file. Errors name where a
value stands and say what to do; a name that nobody knows is refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from onibus.broker.admission import RESERVE_BYTES
from onibus.broker.probing import PROBE_MS
from onibus.broker.quotas import Quotas
from onibus.core.errors import InvalidArgument
from onibus.protocols.http.limits import Limits
from onibus.security.keys import ROOT_NAME, AccessKey, check_key
from onibus.server.config_file import (
    as_struct,
    as_table,
    check_keys,
    plain,
    read_keys,
    read_queues,
    read_topics,
)
from onibus.server.emulator import read_emulator
from onibus.server.wanted import Wanted

PREFIX = "ONIBUS_"
#: The primary key of RootManageSharedAccessKey, for those who keep secrets in the environment.
ROOT_KEY_VARIABLE = "ONIBUS_ROOT_KEY"

#: The well-known ports of AMQP, plain text and TLS.
AMQP_PORT, AMQPS_PORT = 5672, 5671

#: A name or an address of IPv4, or an address of IPv6.
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:]*::?[0-9A-Fa-f:.]*")
_PATHS = ("data", "tls_certificate", "tls_key")
#: Options that have another name now.
_RENAMED = {"allow_development_key": "development"}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is set by a key of the file, a variable or a flag."""

    #: the directory of the data
    data: str = "data"
    #: keep everything in memory: for tests
    ephemeral: bool = False
    #: the address to listen on
    host: str = "127.0.0.1"
    #: ports; 0 is any that is free
    http_port: int = 5300
    amqp_port: int = AMQP_PORT
    #: where TLS is spoken, a port of AMQP for nothing else; by default 5671, where clients of
    #: Service Bus go, beside an `amqp_port` of 5672
    amqps_port: int | None = None
    #: the tier of Service Bus whose limits its clients get; relaxed has our own
    service_bus_profile: Literal["standard", "premium", "relaxed"] = "relaxed"
    sqs_port: int = 9324
    #: which of the two services SQS follows where they differ
    sqs_profile: Literal["aws", "yandex"] = "aws"
    #: the account that queues belong to, in their URLs and ARNs
    sqs_account: str = "000000000000"
    #: new SQS queues with content-based deduplication match equal content under any id (F7); by
    #: default in profile yandex
    sqs_content_matches_any_id: bool | None = None
    #: speak TLS, with a self-made certificate unless one is given
    tls: bool = False
    #: files in PEM: the certificate with its chain, and its key
    tls_certificate: str = ""
    tls_key: str = ""
    #: ask for no credentials; on loopback only
    insecure: bool = False
    #: let plain text in off loopback
    allow_plain_text: bool = False
    #: accept the emulator's well-known key until the bus has its own keys; by default on
    #: loopback with `ephemeral` or a Config.json
    development: bool | None = None
    #: further names by which clients reach the server in development
    allow_host: tuple[str, ...] = ()
    #: offer what only tests need, with `ephemeral`: reset, and a clock that can be moved
    test_mode: bool = False
    #: sends are refused when less of the disk is free
    reserve_bytes: int = RESERVE_BYTES
    #: write a few bytes to the disk of a store that has not committed for this long; 0 never does
    probe_ms: int = PROBE_MS
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All that a server is told."""

    options: Options
    #: message stores and their directories; empty for one, in the data directory
    stores: dict[str, str] = {}
    quotas: Quotas = Quotas()
    limits: Limits = Limits()
    keys: list[AccessKey] = []
    entities: list[Wanted] = []
    #: the file is a Service Bus emulator's
    of_emulator: bool = False


OPTIONS = Options.__struct_fields__
_TYPES = get_type_hints(Options)
_TABLES = ("stores", "quotas", "limits", "keys", "queues", "topics")


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Return the configuration of a file, the environment and flags; the later wins."""
    variables = environment or {}
    file = file or variables.get(PREFIX + "CONFIG") or None
    parts: dict[str, Any] = {} if file is None else _read_file(Path(file))
    options = parts.pop("options", {})
    options |= _of_environment(variables)
    for name, value in (flags or {}).items():
        if value is not None:
            options[name] = _value("--" + name.replace("_", "-"), name, value)
    keys = _root_key(variables, parts.pop("keys", []))
    config = Config(options=Options(**options), keys=keys, **parts)
    _check(config)
    return config


def _read_file(path: Path) -> dict[str, Any]:
    """Return the fields of a Config that a file sets; `options` as a dict."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidArgument(
            f"{path}: {error.strerror}: give a file that is there with --config"
        ) from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path}: no UTF-8: save it as such") from None
    if path.suffix == ".json" or text.lstrip().startswith(("{", "//", "/*")):
        return {"entities": read_emulator(text, str(path)), "of_emulator": True}
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path}: no TOML: {error}") from None
    return _read_toml(path, table)


def _read_toml(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    for name in _RENAMED.keys() & table.keys():
        raise InvalidArgument(f"{path}: {name} is {_RENAMED[name]} now: write that")
    check_keys(f"{path}: ", table, (*OPTIONS, *_TABLES))
    options = {
        name: _value(f"{path}: {name}", name, table[name], strict=True)
        for name in OPTIONS
        if name in table
    }
    for name in _PATHS:
        if options.get(name):
            options[name] = str(path.parent / options[name])
    stores = as_table(f"{path}: stores", table.get("stores", {}))
    for name, place in stores.items():
        if not isinstance(place, str) or not place:
            raise InvalidArgument(f"{path}: stores.{name}: write the store's directory")
    parts: dict[str, Any] = {
        "options": options,
        "stores": {name: str(path.parent / place) for name, place in stores.items()},
        "keys": read_keys(f"{path}: keys", table.get("keys", [])),
        "entities": [
            *read_queues(f"{path}: queues", table.get("queues", {})),
            *read_topics(f"{path}: topics", table.get("topics", {})),
        ],
    }
    for name, kind in (("quotas", Quotas), ("limits", Limits)):
        if name in table:
            known = kind.__slots__
            parts[name] = as_struct(f"{path}: {name}", table[name], kind, known)
            _check_positive(f"{path}: {name}", parts[name], known)
    return parts


def _of_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that variables set; an empty one sets nothing."""
    known = {PREFIX + name.upper(): name for name in OPTIONS}
    others = (PREFIX + "CONFIG", ROOT_KEY_VARIABLE)
    found = {}
    for name, now in _RENAMED.items():
        if variables.get(PREFIX + name.upper()):
            raise InvalidArgument(f"{PREFIX}{name.upper()} is {PREFIX}{now.upper()} now: set that")
    for variable, value in variables.items():
        if not variable.startswith(PREFIX) or not value or variable in others:
            continue
        if variable in known:
            name = known[variable]
            several = _TYPES[name] == tuple[str, ...]
            found[name] = _value(variable, name, value.split(",") if several else value)
        elif near := get_close_matches(variable, known, 1, 0.9):
            # Clients have variables of this prefix too: only what looks like a slip is refused.
            raise InvalidArgument(f"{variable}: there is none: did you mean {near[0]}?")
    return found


def _value(where: str, name: str, value: Any, *, strict: bool = False) -> Any:
    try:
        return msgspec.convert(value, _TYPES[name], strict=strict)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{where}: {plain(error)}") from None


def _root_key(variables: Mapping[str, str], keys: list[AccessKey]) -> list[AccessKey]:
    """Add the key of the environment to those of the file."""
    secret = variables.get(ROOT_KEY_VARIABLE)
    if not secret:
        return keys
    try:
        root = check_key(AccessKey(name=ROOT_NAME, primary=secret))
    except InvalidArgument as error:
        raise InvalidArgument(f"{ROOT_KEY_VARIABLE}: {error}") from None
    return [root, *(key for key in keys if (key.name, key.entity) != (ROOT_NAME, ""))]


def _check_positive(where: str, value: Any, names: Any) -> None:
    for name in names:
        if getattr(value, name) <= 0:
            raise InvalidArgument(f"{where}.{name}: write a number above 0")


def _check(config: Config) -> None:
    options = config.options
    kinds = ("http_port", "amqp_port", "amqps_port", "sqs_port")
    ports = {name: port for name in kinds if (port := getattr(options, name)) is not None}
    for name, port in ports.items():
        if not 0 <= port <= 65_535:
            raise InvalidArgument(f"{name} is {port}: a port is a number from 0 to 65535")
        same = [other for other in ports if port and other != name and ports[other] == port]
        if same:
            raise InvalidArgument(f"{name} and {same[0]} are both {port}: choose two ports")
    if not (options.sqs_account.isascii() and options.sqs_account.isdigit()):
        raise InvalidArgument("sqs_account is a number, such as 000000000000")
    if not options.host:
        raise InvalidArgument("host is empty: 0.0.0.0 listens on all addresses")
    for name in options.allow_host:
        if not _HOST.fullmatch(name):
            raise InvalidArgument(
                f"allow_host {name!r} is not a host: write a name or an address, without a port"
            )
    if options.reserve_bytes < 0:
        raise InvalidArgument("reserve_bytes is below 0")
    if options.probe_ms < 0:
        raise InvalidArgument(f"probe_ms is {options.probe_ms}: give milliseconds, or 0 for never")
    if bool(options.tls_certificate) != bool(options.tls_key):
        raise InvalidArgument("tls_certificate and tls_key go together: give both, or neither")
    if options.ephemeral and config.stores:
        raise InvalidArgument("an ephemeral bus has no stores: leave [stores] or ephemeral out")
    if options.test_mode and not options.ephemeral:
        raise InvalidArgument("test_mode can empty the whole bus: it needs ephemeral too")
    if options.ephemeral and options.tls and not options.tls_certificate:
        raise InvalidArgument(
            "an ephemeral bus has nowhere to keep a self-made certificate: give tls_certificate "
            "and tls_key"
        )
    if not options.ephemeral and not options.data:
        raise InvalidArgument("data is empty: give a directory, or --ephemeral")
    names: dict[str, str] = {}
    for one in config.entities:
        if one.name in names:
            raise InvalidArgument(f"{one.where}: {one.name} stands in {names[one.name]} already")
        names[one.name] = one.where
