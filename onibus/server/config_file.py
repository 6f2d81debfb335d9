"""Tables of a configuration file: keys, stores, the lake and entities to create.

[stores]                                    names of message stores and their directories
main = "/mnt/first"

[lake]                                      the lake of onibus up
keep_ms = "P90D"

[[keys]]                                    shared access keys kept outside the bus
name = "orders-in"
rights = ["Send"]
entity = "orders"
primary = "…"

[queues.orders]                             settings as in docs/settings.md
lock_duration_ms = "PT30S"                  a duration in milliseconds or ISO 8601
[topics.prices]
[topics.prices.subscriptions.large]
[[topics.prices.subscriptions.large.rules]]
name = "large"                              then one of sql, correlation, everything
sql = "amount > 100"
action = "SET priority = 1"
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from onibus.core.errors import InvalidArgument
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import FalseFilter, Filter, Rule, SqlAction, SqlFilter, TrueFilter
from onibus.protocols.atom.durations import milliseconds
from onibus.security.keys import AccessKey, check_key
from onibus.server import wanted
from onibus.server.wanted import WantedEntity

Table = dict[str, Any]
T = TypeVar("T")

_RULE_KEYS = ("name", "sql", "parameters", "correlation", "everything", "action")


def check_keys(where: str, table: Table, known: Any) -> None:
    """Reject unknown names, and suggest the likely one."""
    for name in table:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
            raise InvalidArgument(f"{where}unknown name {name!r}: {hint}")


def as_table(where: str, value: Any) -> Table:
    """Return a value that must be a table."""
    if not isinstance(value, dict):
        raise InvalidArgument(f"{where}: write a table, not a {type(value).__name__}")
    return value


def as_struct(where: str, value: Any, kind: type[T], known: Any) -> T:
    """Return a table as a struct or a dataclass."""
    table = as_table(where, value)
    check_keys(f"{where}: ", table, known)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{where}: {plain(error)}") from None


def plain(error: Exception) -> str:
    """Return the problem with a value, by its name in the file."""
    text, _, place = str(error).partition(" - at `$")
    key = place.strip("`").lstrip(".")
    return f"{key}: {text}" if key else text


def read_keys(where: str, value: Any) -> list[AccessKey]:
    """Return the keys of a configuration; errors never contain their secrets."""
    if not isinstance(value, list):
        raise InvalidArgument(f"{where}: write [[keys]] for each key")
    found: dict[tuple[str, str], AccessKey] = {}
    for index, table in enumerate(value):
        at = f"{where}[{index}]"
        key = as_struct(at, table, AccessKey, AccessKey.__struct_fields__)
        try:
            key = check_key(key)
        except InvalidArgument as error:
            raise InvalidArgument(f"{at}: {error}") from None
        if (key.entity, key.name) in found:
            raise InvalidArgument(f"{at}: key {key.name!r} exists already")
        found[key.entity, key.name] = key
    return list(found.values())


def read_lake(where: str, value: Any, kind: type[T], known: Any) -> T:
    """Return the settings of the lake of `onibus up`."""
    return as_struct(where, _settings(where, value), kind, known)


def read_queues(where: str, value: Any) -> list[WantedEntity]:
    """Return the queues of a configuration."""
    return [
        wanted.queue(f"{where}.{name}", name, _settings(f"{where}.{name}", given))
        for name, given in as_table(where, value).items()
    ]


def read_topics(where: str, value: Any) -> list[WantedEntity]:
    """Return the topics of a configuration, each before its subscriptions."""
    found = []
    for name, given in as_table(where, value).items():
        at = f"{where}.{name}"
        settings = _settings(at, given)
        subscriptions = settings.pop("subscriptions", {})
        found.append(wanted.topic(at, name, settings))
        below = f"{at}.subscriptions"
        for short_name, inner in as_table(below, subscriptions).items():
            found.append(_subscription(f"{below}.{short_name}", name, short_name, inner))
    return found


def _subscription(where: str, topic: str, name: str, given: Any) -> WantedEntity:
    settings = _settings(where, given)
    rules = settings.pop("rules", None)
    if rules is not None:
        if not isinstance(rules, list):
            raise InvalidArgument(f"{where}.rules: write [[…rules]] for each rule")
        rules = [_rule(f"{where}.rules[{index}]", rule) for index, rule in enumerate(rules)]
    return wanted.subscription(where, topic, name, settings, rules)


def _settings(where: str, given: Any) -> Table:
    """Return settings, with durations as numbers."""
    settings = dict(as_table(where, given))
    for name, value in settings.items():
        if name.endswith(("_ms", "_ms_max")) and isinstance(value, str):
            try:
                settings[name] = milliseconds(value)
            except InvalidArgument as error:
                raise InvalidArgument(f"{where}.{name}: {error}") from None
    return settings


def _rule(where: str, given: Any) -> Rule:
    table = as_table(where, given)
    check_keys(f"{where}: ", table, _RULE_KEYS)
    try:
        action = table.get("action")
        chosen = None if action is None else SqlAction(action)
        return Rule(table.get("name", ""), _filter(where, table), chosen)
    except InvalidArgument as error:
        text = str(error)
        raise InvalidArgument(text if text.startswith(where) else f"{where}: {text}") from None


def _filter(where: str, table: Table) -> Filter:
    kinds = [name for name in ("sql", "correlation", "everything") if name in table]
    if len(kinds) > 1:
        raise InvalidArgument(f"a rule takes only one of {', '.join(kinds)}")
    if kinds == ["sql"]:
        return SqlFilter(table["sql"], table.get("parameters", {}))
    if kinds == ["correlation"]:
        fields = CorrelationFilter.__struct_fields__
        return as_struct(f"{where}.correlation", table["correlation"], CorrelationFilter, fields)
    return TrueFilter() if table.get("everything", True) is True else FalseFilter()
