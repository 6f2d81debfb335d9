"""The options of the format `onibus`, parsed and checked in one place.

Spark hands options over as text, their names in lower case. One that is not known is refused: a
typing error must not quietly read something else.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from onibus.client.asking import WAIT_MS_MAX
from onibus.client.connecting import Target
from onibus.client.finding import find_key
from onibus.core.errors import InvalidArgument
from onibus.core.limits import (
    CLAIM_COUNT_MAX,
    CLAIM_LEASE_MS_MAX,
    CLAIM_LEASE_MS_MIN,
    STAGED_LEASE_MS_DEFAULT,
)

if TYPE_CHECKING:
    from onibus.client import Client, Retry
    from onibus.spark.row_stream import RowStream

#: Attempts that cover the restart of a server, about a minute.
_ATTEMPTS = 18

EARLIEST = "earliest"
LATEST = "latest"

#: The table of dead-lettered messages, and what names it at the end of an entity.
DEAD_LETTERED = "dead-lettered"
_DEAD_LETTERS = "/$deadletterqueue"

#: Options of Spark itself that reach a data source too.
_SPARKS = {"checkpointlocation", "path", "queryname"}
#: Maximum partitions of an entity (their ids are below 0x8000, S2).
_PARTITIONS_MAX = 0x8000


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading begins or ends: a word, numbers by partition, or a time."""

    #: earliest or latest; also for partitions that `numbers` does not name
    word: str
    numbers: Mapping[int, int] = field(default_factory=dict)
    #: the first row that was enqueued then or later
    time_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Which entity of which server; the same for reading and for writing."""

    #: a connection string, or an address such as http://localhost:5300
    server: str = field(repr=False)
    entity: str
    key_name: str = ""
    key: str = field(default="", repr=False)
    #: the file of a certificate to trust
    certificate: str | None = None

    def target(self) -> Target:
        """Return where the server is, and who we are to it."""
        target = Target.parse(self.server)
        return replace(target, key_name=self.key_name, key=self.key) if self.key else target

    def client(self, retry: Retry | None = None) -> Client:
        """Return a client; the caller closes it."""
        # Processes that only want to know the schema start often, and do not need it.
        from onibus.client import Client, Retry

        # Trusted certificates are slow to load: skip them without TLS.
        secure = self.target().url.startswith("https:")
        return Client.connect(
            self.server,
            key_name=self.key_name,
            key=self.key,
            verify=(self.certificate or True) if secure else False,
            retry=retry or Retry(attempts=_ATTEMPTS),
        )

    def row_stream(self) -> RowStream:
        """Return what asks the server for rows."""
        from onibus.client import Retry
        from onibus.spark.row_stream import RowStream

        return RowStream(self.target(), self.certificate, Retry(attempts=_ATTEMPTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(ConnectionOptions):
    """Entity to read, and how."""

    mode: str = "log"
    table: str = "messages"
    reader: str | None = None
    starting_position: Position | None = None
    ending_position: Position | None = None
    max_messages_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    columns: tuple[str, ...] | None = None
    body_format: str = "binary"
    body_schema: str | None = None
    properties_format: str = "json"
    messages_per_task: int = 100_000
    max_tasks: int | None = None
    #: longest wait of a stream's request for rows, while it has none
    idle_wait_ms: int = 1_000
    fail_on_gap: bool = True
    #: refuses an entity that was recreated
    incarnation: int | None = None
    fail_on_bad_body: bool = True
    #: whether filters of batch reads go to the server; Spark needs a setting for it
    pushdown: bool = True
    #: long enough for a query that is stopped right after a claim to find it later
    claim_lease_ms: int = CLAIM_LEASE_MS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(ConnectionOptions):
    """Where rows are written, and as whose (R6)."""

    #: name under which the bus records the progress of a query
    producer: str | None = None
    #: number of a batch write; streams use Spark's numbers
    batch: int | None = None
    #: time for which staged rows wait to be published
    lease_ms: int = STAGED_LEASE_MS_DEFAULT
    #: seconds for which an unavailable server is retried
    retry_seconds: int = 120
    #: whether the last batch again, with other rows, is an error
    fail_on_change: bool = True
    #: whether a batch write in foreachBatch belongs to its query's checkpoint
    bind_to_query: bool = True


def _text(name: str, value: str) -> str:
    if not value:
        raise InvalidArgument(f"option {name} is empty: set it or omit it")
    return value


def _whole(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise InvalidArgument(
                f"option {name} is {value!r}: use a whole number from {low} to {high}"
            )
        return number

    return parse


def _one_of(*words: str) -> Callable[[str, str], str]:
    def parse(name: str, value: str) -> str:
        if value.lower() not in words:
            raise InvalidArgument(f"option {name} is {value!r}: use one of {', '.join(words)}")
        return value.lower()

    return parse


def _truth(name: str, value: str) -> bool:
    return _one_of("true", "false")(name, value) == "true"


def _names(name: str, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in _text(name, value).split(","))


def _position(unnamed: str) -> Callable[[str, str], Position]:
    """Read a position; partitions that it does not name are at `unnamed`."""

    def parse(name: str, value: str) -> Position:
        text = value.strip()
        if text in (EARLIEST, LATEST):
            return Position(text)
        if text.startswith("{"):
            return Position(unnamed, _numbers(name, text))
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidArgument(
                f"option {name} is {value!r}: use {EARLIEST}, {LATEST}, a time such as "
                f'2026-01-31T12:00:00Z, or numbers by partition such as {{"0": 1}}'
            ) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return Position(unnamed, time_ms=round(moment.timestamp() * 1000))

    return parse


def _numbers(name: str, text: str) -> dict[int, int]:
    try:
        told = json.loads(text)
        numbers = {int(partition): number for partition, number in told.items()}
    except (ValueError, RecursionError):
        raise InvalidArgument(f'option {name} is not JSON such as {{"0": 1}}: {text!r}') from None
    for partition, number in numbers.items():
        if not 0 <= partition < _PARTITIONS_MAX or type(number) is not int or number < 0:
            raise InvalidArgument(f"option {name}: {partition} → {number!r} is not a row number")
    return numbers


#: What an option is called, what it is called in the dataclass, and how it is read.
Table = Mapping[str, tuple[str, Callable[[str, str], Any]]]

_MANY = _whole(1, 2**53)
CONNECTION: Table = {
    "url": ("server", _text),
    "connection": ("server", _text),
    "keyName": ("key_name", _text),
    "key": ("key", _text),
    "certificate": ("certificate", _text),
    "entity": ("entity", _text),
}
READ: Table = {
    **CONNECTION,
    "mode": ("mode", _one_of("log", "queue")),
    "table": ("table", _one_of("messages", "outcomes", "present", DEAD_LETTERED)),
    "reader": ("reader", _text),
    "startingPosition": ("starting_position", _position(EARLIEST)),
    "endingPosition": ("ending_position", _position(LATEST)),
    "maxMessagesPerTrigger": ("max_messages_per_trigger", _MANY),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", _MANY),
    "columns": ("columns", _names),
    "bodyFormat": ("body_format", _one_of("binary", "text", "json")),
    "bodySchema": ("body_schema", _text),
    "propertiesFormat": ("properties_format", _one_of("json", "map")),
    "messagesPerTask": ("messages_per_task", _whole(1, CLAIM_COUNT_MAX * 100)),
    "maxTasks": ("max_tasks", _whole(1, 100_000)),
    "idleWaitMs": ("idle_wait_ms", _whole(0, WAIT_MS_MAX)),
    "failOnGap": ("fail_on_gap", _truth),
    "incarnation": ("incarnation", _MANY),
    "pushdown": ("pushdown", _truth),
    "failOnBadBody": ("fail_on_bad_body", _truth),
    "claimLeaseMs": ("claim_lease_ms", _whole(CLAIM_LEASE_MS_MIN, CLAIM_LEASE_MS_MAX)),
}

WRITE: Table = {
    **CONNECTION,
    "producer": ("producer", _text),
    "batch": ("batch", _whole(0, 2**53)),
    "leaseMs": ("lease_ms", _MANY),
    "retrySeconds": ("retry_seconds", _whole(0, 86_400)),
    "failOnChange": ("fail_on_change", _truth),
    "bindToQuery": ("bind_to_query", _truth),
}


def parse(given: Mapping[str, str], table: Table) -> dict[str, Any]:
    """Return the values of the options of a table, by the names of fields."""
    known = {name.lower(): name for name in table}
    values: dict[str, Any] = {}
    for option, value in given.items():
        name = known.get(option.lower())
        if name is None:
            if option.lower() not in _SPARKS:
                raise InvalidArgument(_unknown(option, table))
            continue
        to, read = table[name]
        if to in values:
            raise InvalidArgument("options url and connection exclude each other: set one of them")
        values[to] = read(name, value)
    if "server" not in values:
        raise InvalidArgument("no server: set option url, or connection to a connection string")
    target = Target.parse(values["server"])
    values.setdefault("entity", target.entity)
    if not values["entity"]:
        raise InvalidArgument("no queue, topic or subscription: set option entity")
    if ("key" in values) != ("key_name" in values):
        raise InvalidArgument("options key and keyName belong together: set both")
    if "key" not in values and not target.key:
        values["key_name"], values["key"] = find_key(target)
    return values


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read, checked as far as that can be done without the server."""
    options = _in_dead_letters(ReadOptions(**parse(given, READ)))
    if (options.body_format == "json") != (options.body_schema is not None):
        raise InvalidArgument(
            "bodyFormat json needs the fields to read, bodySchema 'name STRING, count INT'; "
            "no other bodyFormat takes a bodySchema"
        )
    if options.mode == "queue" and options.table != "messages":
        raise InvalidArgument(f"table {options.table} needs mode log, not queue")
    return options


def _in_dead_letters(options: ReadOptions) -> ReadOptions:
    """Return the options with the table that an entity such as orders/$deadletterqueue means."""
    if not options.entity.lower().endswith(_DEAD_LETTERS):
        return options
    if options.table not in ("messages", DEAD_LETTERED):
        raise InvalidArgument(
            f"a dead-letter queue has no table {options.table}: omit option table"
        )
    entity = options.entity[: -len(_DEAD_LETTERS)]
    return replace(options, entity=entity, table=DEAD_LETTERED)


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the options of a write, checked as far as that can be done without the server."""
    return WriteOptions(**parse(given, WRITE))


def _unknown(option: str, table: Table) -> str:
    near = difflib.get_close_matches(option.lower(), [name.lower() for name in table], 1)
    meant = next((name for name in table if near and name.lower() == near[0]), None)
    hint = f"did you mean {meant}? " if meant else ""
    return f"unknown option {option!r}: {hint}use {', '.join(table)}"


#: Every option fills an existing field.
assert {to for to, _ in READ.values()} == {one.name for one in fields(ReadOptions)}
assert {to for to, _ in WRITE.values()} == {one.name for one in fields(WriteOptions)}
