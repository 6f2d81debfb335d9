"""Actions: SET and REMOVE, done to a copy of the message.

Statements run in order; each sees the changes of those before it. A user property that exists in
another case keeps its name; a new one is spelled as in the action. A value that cannot be stored,
or that the system property does not take, is `FilterFailed`: then no copy is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import structs

from onibus.core.errors import FilterFailed, InvalidFilter
from onibus.core.limits import ID_LENGTH_MAX, PROPERTY_LENGTH_MAX, SQL_LENGTH_MAX
from onibus.core.message import Message
from onibus.core.rules import sql_tree as tree
from onibus.core.rules.sql_compile import Evaluate, value
from onibus.core.rules.sql_parser import parse_action
from onibus.core.rules.subject import TEXT_FIELDS, TIME_TO_LIVE, Subject
from onibus.core.rules.values import DURATION, in_range, kind_of

#: Gives the message as the action leaves it; the subject's own stays as it was.
Act = Callable[[Subject], Message]
_Step = Callable[[Subject], None]

_IDS = frozenset({"message_id", "session_id", "partition_key"})
_MILLISECOND = timedelta(milliseconds=1)


def compile_action(
    text: str, parameters: Mapping[str, Any] | None = None, length_max: int = SQL_LENGTH_MAX
) -> Act:
    """Return the function of an action."""
    steps = [_step(statement) for statement in parse_action(text, parameters or {}, length_max)]

    def act(subject: Subject) -> Message:
        message = subject.message
        copy = structs.replace(
            message, properties=dict(message.properties), rewritten=bool(message.as_sent)
        )
        working = subject.with_message(copy)
        working.charge(len(message.properties))
        try:
            for step in steps:
                step(working)
        finally:
            subject.steps = working.steps
        keys = (copy.session_id, copy.partition_key)
        if None not in keys and keys[0] != keys[1]:
            raise FilterFailed("the action makes SessionId and PartitionKey differ")
        return copy

    return act


def changes_session(text: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether an action sets or removes the SessionId."""
    statements = parse_action(text, parameters, SQL_LENGTH_MAX)
    targets = [one.target for one in statements if isinstance(one.target, tree.SystemProperty)]
    return any(TEXT_FIELDS.get(target.name) == "session_id" for target in targets)


def _step(statement: tree.Statement) -> _Step:
    target = statement.target
    new = value(statement.value) if isinstance(statement, tree.SetProperty) else None
    if isinstance(target, tree.UserProperty):
        return _remove(target.name) if new is None else _set(target.name, new)
    if target.name == TIME_TO_LIVE:
        return _set_time_to_live(new)
    if target.name not in TEXT_FIELDS:
        raise InvalidFilter(f"an action cannot change sys.{target.name}")
    return _set_text(TEXT_FIELDS[target.name], new)


def _spelled(properties: dict[str, Any], name: str) -> str:
    """Return the name by which a message has a property, or the given one."""
    if name in properties:
        return name
    folded = name.casefold()
    return next((known for known in properties if known.casefold() == folded), name)


def _set(name: str, new: Evaluate) -> _Step:
    def step(subject: Subject) -> None:
        found = new(subject)
        if kind_of(found) == DURATION:
            raise FilterFailed(f"property {name!r} would become a duration, which messages lack")
        if isinstance(found, datetime) and not in_range(found):
            raise FilterFailed(f"property {name!r} would become a time that is out of range")
        properties = subject.properties
        subject.charge(len(properties))
        spelled = _spelled(properties, name)
        if type(found) is int and type(properties.get(spelled)) is float:
            found = float(found)
        properties[spelled] = found
        subject.changed()

    return step


def _remove(name: str) -> _Step:
    folded = name.casefold()

    def step(subject: Subject) -> None:
        properties = subject.properties
        for known in [known for known in properties if known.casefold() == folded]:
            del properties[known]
        subject.changed()

    return step


def _set_text(field: str, new: Evaluate | None) -> _Step:
    length_max = ID_LENGTH_MAX if field in _IDS else PROPERTY_LENGTH_MAX

    def step(subject: Subject) -> None:
        found = None if new is None else new(subject)
        if found is not None and not (isinstance(found, str) and len(found) <= length_max):
            raise FilterFailed(f"{field} must be a string of at most {length_max} characters")
        setattr(subject.message, field, found)

    return step


def _set_time_to_live(new: Evaluate | None) -> _Step:
    def step(subject: Subject) -> None:
        found = None if new is None else new(subject)
        if found is not None and not (isinstance(found, timedelta) and found >= _MILLISECOND):
            raise FilterFailed("TimeToLive must be a duration of at least a millisecond")
        subject.message.time_to_live_ms = None if found is None else found // _MILLISECOND

    return step
