"""The tree of a filter or action, as the parser makes it and the compiler takes it apart.

Chains (a AND b AND c, a + b - c) are one node, so that the depth of a tree is the depth of its
parentheses, signs, NOTs and functions, which the parser bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal, or a parameter's value."""

    value: Any


@dataclass(frozen=True, slots=True)
class UserProperty:
    """A property that the sender gave the message."""

    name: str


@dataclass(frozen=True, slots=True)
class SystemProperty:
    """A property of every message; `name` is folded and known."""

    name: str


@dataclass(frozen=True, slots=True)
class NamedProperty:
    """property(name): the user property whose name is computed."""

    name: Value


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign before a value."""

    sign: str
    operand: Value


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Signs of one rank, from left to right."""

    first: Value
    rest: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values and the sign between them."""

    sign: str
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class All:
    """AND."""

    terms: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """OR."""

    terms: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """NOT, including NOT IN, NOT LIKE and IS NOT."""

    term: Predicate


@dataclass(frozen=True, slots=True)
class In:
    """A value and those it may be."""

    operand: Value
    elements: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """A value, a pattern and perhaps an escape character."""

    operand: Value
    pattern: Value
    escape: Value | None


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a property is absent or NULL."""

    operand: Property


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether a property is there."""

    operand: Property


@dataclass(frozen=True, slots=True)
class SetProperty:
    """SET property = value."""

    target: UserProperty | SystemProperty
    value: Value


@dataclass(frozen=True, slots=True)
class RemoveProperty:
    """REMOVE property."""

    target: UserProperty | SystemProperty


Property = UserProperty | SystemProperty | NamedProperty
Value = Constant | Property | Sign | Arithmetic
Predicate = Comparison | All | Either | Not | In | Like | IsNull | Exists
Statement = SetProperty | RemoveProperty

#: The nodes that are values, and those that are conditions.
VALUES = (Constant, UserProperty, SystemProperty, NamedProperty, Sign, Arithmetic)
PREDICATES = (Comparison, All, Either, Not, In, Like, IsNull, Exists)
PROPERTIES = (UserProperty, SystemProperty, NamedProperty)


def walk(node: Any) -> Iterator[Any]:
    """Yield a node and all nodes below it."""
    if isinstance(node, tuple):
        for one in node:
            yield from walk(one)
    elif is_dataclass(node):
        yield node
        for field in fields(node):
            yield from walk(getattr(node, field.name))
