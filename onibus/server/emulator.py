"""The Service Bus emulator's Config.json, read unmodified (X11).

It is JSON with comments and trailing commas. Durations are in ISO 8601; an empty string means
unset. Names are case-insensitive. Omitted properties have the defaults of Onibus, which are those
of Service Bus in the cloud; the emulator's own limits do not apply. All properties of Service Bus
are accepted, and settings of Onibus by name. Properties without a meaning here are ignored with a
warning, so that any file that starts the emulator starts Onibus too.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

import msgspec

from onibus.core import limits
from onibus.core.errors import InvalidArgument
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import Filter, Rule, SqlAction, SqlFilter, TrueFilter
from onibus.core.settings import QueueSettings, SubscriptionSettings, TopicSettings
from onibus.protocols.atom.durations import milliseconds
from onibus.server import wanted
from onibus.server.wanted import WantedEntity

_log = logging.getLogger("onibus.server")

#: A string, which is kept, or a comment, which is not.
_TEXT_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
#: A string, which is kept, or a comma before the end of a list.
_TEXT_OR_COMMA = re.compile(r'"(?:[^"\\\n]|\\.)*"|,(?=\s*[}\]])')

Table = dict[str, Any]


def _window(text: str) -> int:
    """Raise a short window to the minimum: the emulator allows 5 seconds, the service 20 (D4)."""
    window = milliseconds(text) or limits.DEDUPLICATION_WINDOW_MS_MAX
    return max(window, limits.DEDUPLICATION_WINDOW_MS_MIN)


def _status(text: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", text).lower()


def _same(value: Any) -> Any:
    return value


#: Service Bus properties: our setting, and how to read its value.
PROPERTIES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "LockDuration": ("lock_duration_ms", milliseconds),
    "MaxDeliveryCount": ("max_delivery_count", _same),
    "DefaultMessageTimeToLive": ("default_time_to_live_ms", milliseconds),
    "DeadLetteringOnMessageExpiration": ("dead_letter_on_expiration", _same),
    "DeadLetteringOnFilterEvaluationExceptions": ("dead_letter_on_filter_error", _same),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _same),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_window_ms", _window),
    "RequiresSession": ("requires_session", _same),
    "EnablePartitioning": ("enable_partitioning", _same),
    "MaxSizeInMegabytes": ("max_size_bytes", lambda number: number << 20),
    "MaxMessageSizeInKilobytes": ("max_message_bytes", lambda number: number << 10),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_ms", milliseconds),
    "Status": ("status", _status),
    "ForwardTo": ("forward_to", _same),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_letters_to", _same),
    "UserMetadata": ("user_metadata", _same),
}
#: Properties without effect here.
_WITHOUT_EFFECT = {"EnableBatchedOperations", "SupportOrdering", "EnableExpress", "PartitionCount"}
#: Fields of a correlation filter, and their names here.
_CORRELATION = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "subject",
    "Subject": "subject",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
    "Properties": "properties",
}


def read_emulator(text: str, file: str) -> list[WantedEntity]:
    """Return the entities that a Config.json defines."""
    whole = Reader(file, _parse(text, file))
    found: list[WantedEntity] = []
    namespaces = list(whole.table("UserConfig", required=True).tables("Namespaces"))
    if len(namespaces) != 1:
        raise InvalidArgument(f"{file}: UserConfig.Namespaces: give exactly one namespace")
    for one in namespaces[0].tables("Queues"):
        given = _settings(one.table("Properties"), QueueSettings)
        found.append(wanted.queue(one.where, one.text("Name"), given))
    for one in namespaces[0].tables("Topics"):
        name = one.text("Name")
        found.append(
            wanted.topic(one.where, name, _settings(one.table("Properties"), TopicSettings))
        )
        for subscription in one.tables("Subscriptions"):
            given = _settings(subscription.table("Properties"), SubscriptionSettings)
            rules = [_rule(rule) for rule in subscription.tables("Rules")]
            found.append(
                wanted.subscription(
                    subscription.where, name, subscription.text("Name"), given, rules or None
                )
            )
    return found


def _parse(text: str, file: str) -> Any:
    """Parse JSON with comments; lines keep their numbers."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    plain = _TEXT_OR_COMMA.sub(blank, _TEXT_OR_COMMENT.sub(blank, text))
    try:
        return json.loads(plain)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{file}: not JSON, even with comments allowed: {error}") from None


class Reader:
    """A table of the file that knows its place; its names are case-insensitive."""

    def __init__(self, where: str, values: Any) -> None:
        self.where = where
        if not isinstance(values, dict):
            raise InvalidArgument(f"{where}: write a table, in braces")
        self.values = {name.lower(): (name, value) for name, value in values.items()}

    def get(self, name: str) -> Any:
        """Return a value, or None if it is unset."""
        value = self.values.get(name.lower(), ("", None))[1]
        return None if value == "" else value

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise InvalidArgument(f"{self.where}: {name}: write a string")
        return value

    def table(self, name: str, *, required: bool = False) -> Reader:
        value = self.get(name)
        if value is None and not required:
            value = {}
        return Reader(_at(self.where, name), value)

    def tables(self, name: str) -> Iterator[Reader]:
        values = self.get(name) or []
        if not isinstance(values, list):
            raise InvalidArgument(f"{_at(self.where, name)}: write a list, in brackets")
        for index, value in enumerate(values):
            yield Reader(f"{_at(self.where, name)}[{index}]", value)


def _at(where: str, name: str) -> str:
    """Return the place of a key: the file, a colon, and the path of keys."""
    return f"{where}.{name}" if ": " in where else f"{where}: {name}"


def _settings(table: Reader, kind: type[msgspec.Struct]) -> Table:
    """Return the settings for the properties of an entity."""
    known = {name.lower(): (name, *entry) for name, entry in PROPERTIES.items()}
    ours = kind.__struct_fields__
    given: Table = {}
    for lower, (name, value) in table.values.items():
        if value is None or value == "" or name in _WITHOUT_EFFECT:
            continue
        if name in ours:
            given[name] = value
        elif lower in known and known[lower][1] in ours:
            _, setting, read = known[lower]
            given[setting] = _read(f"{table.where}.{name}", read, value)
        else:
            near = get_close_matches(name, PROPERTIES, 1)
            hint = f"; did you mean {near[0]}?" if near and near[0].lower() != lower else ""
            _log.warning("%s.%s ignored: it has no effect here%s", table.where, name, hint)
    return given


def _read(where: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except (InvalidArgument, TypeError) as error:
        raise InvalidArgument(f"{where}: {error}") from None


def _rule(table: Reader) -> Rule:
    properties = table.table("Properties")
    action = properties.table("Action").get("SqlExpression")
    try:
        chosen = None if action is None else SqlAction(action)
        return Rule(table.text("Name"), _filter(properties), chosen)
    except InvalidArgument as error:
        text = str(error)
        raise InvalidArgument(
            text if text.startswith(table.where) else f"{table.where}: {text}"
        ) from None


def _filter(properties: Reader) -> Filter:
    kind = str(properties.get("FilterType") or "").lower().removesuffix("filter")
    if kind == "correlation":
        return _correlation(properties.table("CorrelationFilter", required=True))
    if kind == "sql":
        table = properties.table("SqlFilter", required=True)
        return SqlFilter(table.text("SqlExpression"))
    if not kind or kind == "true":
        return TrueFilter()
    raise InvalidArgument(f"{properties.where}: FilterType: write Correlation or Sql")


def _correlation(table: Reader) -> CorrelationFilter:
    known = {name.lower(): field for name, field in _CORRELATION.items()}
    given: Table = {}
    for lower, (name, value) in table.values.items():
        if lower not in known:
            near = get_close_matches(name, _CORRELATION, 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise InvalidArgument(f"{table.where}: unknown name {name!r}{hint}")
        if value is not None and value != "":
            given[known[lower]] = value
    return CorrelationFilter(**given)
