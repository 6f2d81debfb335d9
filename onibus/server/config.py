"""Configuration: a file, then the environment, then command-line options; the last one wins.

Every option has one name: `http_port` in the file, ONIBUS_HTTP_PORT in the environment,
--http-port on the command line. The file is TOML with the options and the tables of `config_file`,
or a Service Bus emulator's Config.json. Paths in a file are relative to the file. Errors name the
place of a value and say what to do; unknown names are rejected.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from onibus.core.errors import InvalidArgument
from onibus.directory.probing import PROBE_MS
from onibus.directory.quotas import Quotas
from onibus.protocols.http.limits import Limits
from onibus.security.keys import ROOT_NAME, AccessKey, check_key
from onibus.server.config_file import (
    as_struct,
    as_table,
    check_keys,
    plain,
    read_keys,
    read_lake,
    read_queues,
    read_topics,
)
from onibus.server.emulator import read_emulator
from onibus.server.wanted import WantedEntity
from onibus.shard.clock import DAY_MS
from onibus.shard.disk_room import RESERVE_BYTES

PREFIX = "ONIBUS_"
#: The primary key of RootManageSharedAccessKey, for secrets kept in the environment.
ROOT_KEY_VARIABLE = "ONIBUS_ROOT_KEY"

#: The well-known AMQP ports, plain text and TLS.
AMQP_PORT, AMQPS_PORT = 5672, 5671

#: A name or an IPv4 address, or an IPv6 address.
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:]*::?[0-9A-Fa-f:.]*")
_PATHS = ("data", "tls_certificate", "tls_key")
#: Renamed options.
_RENAMED = {"allow_development_key": "development"}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options that the file, the environment or the command line can set."""

    #: data directory
    data: str = "data"
    #: keep everything in memory, for tests
    ephemeral: bool = False
    #: the address to listen on
    host: str = "127.0.0.1"
    #: ports; 0 chooses a free one
    http_port: int = 5300
    amqp_port: int = AMQP_PORT
    #: port for AMQP over TLS only; default with TLS: 5671, the port of Service Bus clients, if
    #: `amqp_port` is 5672
    amqps_port: int | None = None
    #: the tier of Service Bus whose limits its clients get; relaxed has our own
    service_bus_profile: Literal["standard", "premium", "relaxed"] = "relaxed"
    sqs_port: int = 9324
    #: the service that SQS follows where AWS and Yandex differ
    sqs_profile: Literal["aws", "yandex"] = "aws"
    #: the account of queues, in their URLs and ARNs
    sqs_account: str = "000000000000"
    #: new SQS queues with content-based deduplication match equal content under any id (F7);
    #: default: only with profile yandex
    sqs_content_matches_any_id: bool | None = None
    #: use TLS; generate a self-signed certificate unless one is given
    tls: bool = False
    #: PEM files: the certificate with its chain, and its key
    tls_certificate: str = ""
    tls_key: str = ""
    #: accept clients without credentials; loopback only
    insecure: bool = False
    #: listen without TLS beyond loopback
    allow_plain_text: bool = False
    #: accept the emulator's well-known key until the bus has its own keys; default: on loopback
    #: with `ephemeral` or a Config.json
    development: bool | None = None
    #: further host names that clients use in development
    allow_host: tuple[str, ...] = ()
    #: offer reset and a movable clock, for tests; needs `ephemeral`
    test_mode: bool = False
    #: reject sends when less disk space is free
    reserve_bytes: int = RESERVE_BYTES
    #: probe the disk of a store that has not committed for this long; 0 disables the probe
    probe_ms: int = PROBE_MS
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class LakeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The lake of `onibus up`."""

    #: how long rows stay; 0 for all rows, None for what the lake records
    keep_ms: int | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Complete configuration of a server."""

    options: Options
    #: message stores and their directories; empty for one store in the data directory
    stores: dict[str, str] = {}
    quotas: Quotas = Quotas()
    limits: Limits = Limits()
    keys: list[AccessKey] = []
    entities: list[WantedEntity] = []
    #: what `onibus up` tells its pipeline
    lake: LakeConfig = LakeConfig()
    #: whether the file is a Service Bus emulator's
    of_emulator: bool = False


OPTIONS = Options.__struct_fields__
_TYPES = get_type_hints(Options)
_TABLES = ("stores", "quotas", "limits", "lake", "keys", "queues", "topics")


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Return the configuration from a file, the environment and the command line."""
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
    """Return the fields of a Config that a file sets, with `options` as a dict."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidArgument(
            f"{path}: {error.strerror}: name an existing file with --config"
        ) from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path}: not UTF-8: save it in that encoding") from None
    if path.suffix == ".json" or text.lstrip().startswith(("{", "//", "/*")):
        return {"entities": read_emulator(text, str(path)), "of_emulator": True}
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path}: not TOML: {error}") from None
    return _read_toml(path, table)


def _read_toml(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    for name in _RENAMED.keys() & table.keys():
        raise InvalidArgument(f"{path}: {name} is now called {_RENAMED[name]}")
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
            raise InvalidArgument(f"{path}: stores.{name}: name the store's directory")
    parts: dict[str, Any] = {
        "options": options,
        "stores": {name: str(path.parent / place) for name, place in stores.items()},
        "keys": read_keys(f"{path}: keys", table.get("keys", [])),
        "entities": [
            *read_queues(f"{path}: queues", table.get("queues", {})),
            *read_topics(f"{path}: topics", table.get("topics", {})),
        ],
    }
    if "lake" in table:
        known = LakeConfig.__struct_fields__
        parts["lake"] = read_lake(f"{path}: lake", table["lake"], LakeConfig, known)
        _check_lake(f"{path}: lake.keep_ms", parts["lake"])
    for name, kind in (("quotas", Quotas), ("limits", Limits)):
        if name in table:
            known = kind.__slots__
            parts[name] = as_struct(f"{path}: {name}", table[name], kind, known)
            _check_positive(f"{path}: {name}", parts[name], known)
    return parts


def _of_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that environment variables set; empty variables set nothing."""
    known = {PREFIX + name.upper(): name for name in OPTIONS}
    others = (PREFIX + "CONFIG", ROOT_KEY_VARIABLE)
    found = {}
    for name, now in _RENAMED.items():
        if variables.get(PREFIX + name.upper()):
            now_set = f"{PREFIX}{now.upper()}"
            raise InvalidArgument(f"{PREFIX}{name.upper()} is now called {now_set}")
    for variable, value in variables.items():
        if not variable.startswith(PREFIX) or not value or variable in others:
            continue
        if variable in known:
            name = known[variable]
            several = _TYPES[name] == tuple[str, ...]
            found[name] = _value(variable, name, value.split(",") if several else value)
        elif near := get_close_matches(variable, known, 1, 0.9):
            # Clients use variables with this prefix too: reject only likely misspellings.
            raise InvalidArgument(f"{variable}: unknown variable: did you mean {near[0]}?")
    return found


def _value(where: str, name: str, value: Any, *, strict: bool = False) -> Any:
    try:
        return msgspec.convert(value, _TYPES[name], strict=strict)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{where}: {plain(error)}") from None


def _root_key(variables: Mapping[str, str], keys: list[AccessKey]) -> list[AccessKey]:
    """Add the environment's key to those of the file."""
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


def _check_lake(where: str, lake: LakeConfig) -> None:
    if lake.keep_ms and lake.keep_ms < DAY_MS:
        raise InvalidArgument(f"{where} is {lake.keep_ms}: use at least P1D, or 0 to keep all rows")


def _check(config: Config) -> None:
    options = config.options
    kinds = ("http_port", "amqp_port", "amqps_port", "sqs_port")
    ports = {name: port for name in kinds if (port := getattr(options, name)) is not None}
    for name, port in ports.items():
        if not 0 <= port <= 65_535:
            raise InvalidArgument(f"{name} is {port}: use a port from 0 to 65535")
        same = [other for other in ports if port and other != name and ports[other] == port]
        if same:
            raise InvalidArgument(f"{name} and {same[0]} are both {port}: use different ports")
    if not (options.sqs_account.isascii() and options.sqs_account.isdigit()):
        raise InvalidArgument("sqs_account must be a number, such as 000000000000")
    if not options.host:
        raise InvalidArgument("host is empty: use 0.0.0.0 to listen on all addresses")
    for name in options.allow_host:
        if not _HOST.fullmatch(name):
            raise InvalidArgument(
                f"allow_host {name!r} is not a host: use a name or an address, without a port"
            )
    if options.reserve_bytes < 0:
        raise InvalidArgument("reserve_bytes is below 0: use 0 or more")
    if options.probe_ms < 0:
        raise InvalidArgument(
            f"probe_ms is {options.probe_ms}: use milliseconds, or 0 to disable it"
        )
    if bool(options.tls_certificate) != bool(options.tls_key):
        raise InvalidArgument("tls_certificate and tls_key belong together: set both, or neither")
    if options.ephemeral and config.stores:
        raise InvalidArgument("an ephemeral bus has no stores: remove [stores] or ephemeral")
    if options.test_mode and not options.ephemeral:
        raise InvalidArgument("test_mode can empty the whole bus: it requires ephemeral")
    if options.ephemeral and options.tls and not options.tls_certificate:
        raise InvalidArgument(
            "an ephemeral bus cannot store a generated certificate: set tls_certificate and tls_key"
        )
    if not options.ephemeral and not options.data:
        raise InvalidArgument("data is empty: name a directory, or use --ephemeral")
    names: dict[str, str] = {}
    for one in config.entities:
        if one.name in names:
            raise InvalidArgument(f"{one.where}: {one.name} is already in {names[one.name]}")
        names[one.name] = one.where
