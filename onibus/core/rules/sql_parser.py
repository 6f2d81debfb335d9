"""Filters and actions, read into trees.

    filter      disjunction
    disjunction conjunction {OR conjunction}
    conjunction negation {AND negation}
    negation    NOT negation | condition
    condition   sum [sign sum | [NOT] IN (sum, …) | [NOT] LIKE sum [ESCAPE sum] | IS [NOT] NULL]
    sum         product {+ product | - product}
    product     signed {* signed | / signed | % signed}
    signed      {+ | -} primary
    primary     literal | @parameter | property | property(sum) | p(sum) | EXISTS(property)
                | (disjunction)
    property    [sys. | user.] name
    action      statement {[;] statement} [;]
    statement   SET property = sum | REMOVE property

The parser distinguishes values from conditions by their content, not their position, so a
parenthesis may hold either and nothing is read twice. An expression deeper than SQL_DEPTH_MAX is
rejected before it can overflow the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

from onibus.core.errors import InvalidFilter
from onibus.core.limits import (
    SQL_DEPTH_MAX,
    SQL_LENGTH_MAX,
    SQL_LIST_LENGTH_MAX,
    SQL_STATEMENT_COUNT_MAX,
)
from onibus.core.rules import sql_tree as tree
from onibus.core.rules.sql_lexer import Token, tokens_of
from onibus.core.rules.subject import SYSTEM_PROPERTIES
from onibus.core.rules.values import INTEGER_MAX, INTEGER_MIN, kind_of

_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_LITERALS = {"TRUE": True, "FALSE": False, "NULL": None}
_VALUE = "a value"
_CONDITION = "a condition"


def parse_filter(
    text: str, parameters: Mapping[str, Any], length_max: int = SQL_LENGTH_MAX
) -> tree.Predicate:
    """Return the tree of a filter."""
    parser = _Parser(text, parameters, length_max)
    found: tree.Predicate = parser.condition_at(parser.disjunction)
    parser.end("AND, OR or the end")
    return found


def parse_action(
    text: str, parameters: Mapping[str, Any], length_max: int = SQL_LENGTH_MAX
) -> tuple[tree.Statement, ...]:
    """Return the statements of an action."""
    parser = _Parser(text, parameters, length_max)
    statements = [parser.statement()]
    while True:
        parser.accept("sign", ";")
        if parser.token.kind == "end":
            return tuple(statements)
        if len(statements) == SQL_STATEMENT_COUNT_MAX:
            parser.fail(f"more than {SQL_STATEMENT_COUNT_MAX} statements")
        statements.append(parser.statement())


def check_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters by their folded names without @, or say which of them is wrong."""
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        folded = name.removeprefix("@").casefold() if isinstance(name, str) else ""
        if not folded or folded in found:
            raise InvalidFilter(f"invalid parameter name {name!r}")
        found[folded] = check_value(f"parameter {name!r}", value)
    return found


def check_value(owner: str, value: Any) -> Any:
    """Return a value that rules can compare with, or reject it."""
    if value is not None and kind_of(value) is None:
        raise InvalidFilter(f"{owner} is a {type(value).__name__}, which no message can have")
    if isinstance(value, datetime) and value.tzinfo is None:
        raise InvalidFilter(f"{owner}: a datetime needs a time zone")
    if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        raise InvalidFilter(f"{owner}: a whole number has at most 64 bits")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidFilter(f"{owner} has an unpaired surrogate") from None
    return value


class _Parser:
    """Tokens, where we are in them, and how deep."""

    def __init__(self, text: str, parameters: Mapping[str, Any], length_max: int) -> None:
        self.parameters = check_parameters(parameters)
        self.tokens = tokens_of(text, length_max)
        self.index = 0
        self.depth = 0

    # Tokens

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def accept(self, kind: str, *values: Any) -> Token | None:
        """Take the next token if it is one of these."""
        token = self.tokens[self.index]
        if token.kind != kind or (values and token.value not in values):
            return None
        self.index += 1
        return token

    def need(self, kind: str, value: str, expected: str = "") -> Token:
        """Take the next token, which must be this one."""
        return self.accept(kind, value) or self.unexpected(expected or value)

    def end(self, expected: str) -> None:
        """Be at the end."""
        if self.token.kind != "end":
            self.unexpected(expected)

    def unexpected(self, expected: str) -> NoReturn:
        token = self.token
        what = "the end" if token.kind == "end" else f"unexpected {str(token.value)[:40]!r}"
        raise InvalidFilter(what, token.position, expected)

    def fail(self, what: str) -> NoReturn:
        raise InvalidFilter(what, self.token.position)

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Go down one level, if there is one left."""
        if self.depth == SQL_DEPTH_MAX:
            self.fail(f"nested more than {SQL_DEPTH_MAX} levels deep")
        self.depth += 1
        yield
        self.depth -= 1

    # Values and conditions

    def value_at(self, read: Callable[[], Any]) -> Any:
        """Read what must be a value."""
        position = self.token.position
        node = read()
        if not isinstance(node, tree.VALUES):
            raise InvalidFilter("a condition", position, _VALUE)
        return node

    def condition_at(self, read: Callable[[], Any]) -> Any:
        """Read what must be a condition."""
        position = self.token.position
        node = read()
        if not isinstance(node, tree.PREDICATES):
            raise InvalidFilter("a value that is compared with nothing", position, _CONDITION)
        return node

    def disjunction(self) -> Any:
        return self._chain("OR", self.conjunction, tree.Either)

    def conjunction(self) -> Any:
        return self._chain("AND", self.negation, tree.All)

    def _chain(self, keyword: str, read: Callable[[], Any], node: Callable[[Any], Any]) -> Any:
        position = self.token.position
        first = read()
        if self.token.value != keyword or self.token.kind != "keyword":
            return first
        if not isinstance(first, tree.PREDICATES):
            raise InvalidFilter("a value that is compared with nothing", position, _CONDITION)
        terms = [first]
        while self.accept("keyword", keyword):
            terms.append(self.condition_at(read))
        return node(tuple(terms))

    def negation(self) -> Any:
        if self.accept("keyword", "NOT"):
            with self.deeper():
                return tree.Not(self.condition_at(self.negation))
        return self.condition()

    def condition(self) -> Any:
        position = self.token.position
        left = self.sum()
        token = self.token
        if token.kind not in ("sign", "keyword") or not self._continues(token):
            return left
        if not isinstance(left, tree.VALUES):
            raise InvalidFilter("a condition", position, _VALUE)
        if sign := self.accept("sign", *_COMPARISONS):
            return tree.Comparison(sign.value, left, self.value_at(self.sum))
        if self.accept("keyword", "IS"):
            return self._is_null(left, position)
        negated = self.accept("keyword", "NOT")
        found: tree.Predicate
        if self.accept("keyword", "IN"):
            found = tree.In(left, self._elements())
        elif self.accept("keyword", "LIKE"):
            pattern = self.value_at(self.sum)
            escape = self.value_at(self.sum) if self.accept("keyword", "ESCAPE") else None
            found = tree.Like(left, pattern, escape)
        else:
            self.unexpected("IN or LIKE")
        return tree.Not(found) if negated else found

    def _continues(self, token: Token) -> bool:
        return token.value in _COMPARISONS or token.value in ("IS", "NOT", "IN", "LIKE")

    def _is_null(self, operand: Any, position: int) -> tree.Predicate:
        negated = self.accept("keyword", "NOT")
        self.need("keyword", "NULL")
        if not isinstance(operand, tree.PROPERTIES):
            raise InvalidFilter("IS NULL of something else", position, "a property")
        found = tree.IsNull(operand)
        return tree.Not(found) if negated else found

    def _elements(self) -> tuple[tree.Value, ...]:
        self.need("sign", "(")
        elements = [self.value_at(self.sum)]
        while self.accept("sign", ","):
            if len(elements) == SQL_LIST_LENGTH_MAX:
                self.fail(f"more than {SQL_LIST_LENGTH_MAX} elements")
            elements.append(self.value_at(self.sum))
        self.need("sign", ")", ", or )")
        return tuple(elements)

    def sum(self) -> Any:
        return self._computation(("+", "-"), self.product)

    def product(self) -> Any:
        return self._computation(("*", "/", "%"), self.signed)

    def _computation(self, signs: tuple[str, ...], read: Callable[[], Any]) -> Any:
        position = self.token.position
        first = read()
        rest: list[tuple[str, tree.Value]] = []
        while sign := self.accept("sign", *signs):
            if not isinstance(first, tree.VALUES):
                raise InvalidFilter("a condition", position, _VALUE)
            rest.append((sign.value, self.value_at(read)))
        return tree.Arithmetic(first, tuple(rest)) if rest else first

    def signed(self) -> Any:
        sign = self.accept("sign", "+", "-")
        if sign is None:
            return self.primary()
        if sign.value == "-" and (number := self.accept("number")):
            return tree.Constant(-number.value)
        with self.deeper():
            return tree.Sign(sign.value, self.value_at(self.signed))

    def primary(self) -> Any:
        if number := self.accept("number"):
            if number.value == INTEGER_MAX + 1 and isinstance(number.value, int):
                raise InvalidFilter("a whole number of more than 64 bits", number.position)
            return tree.Constant(number.value)
        if text := self.accept("text"):
            return tree.Constant(text.value)
        if literal := self.accept("keyword", *_LITERALS):
            return tree.Constant(_LITERALS[literal.value])
        if parameter := self.accept("parameter"):
            if parameter.value not in self.parameters:
                what = f"parameter @{parameter.value} was not given"
                raise InvalidFilter(what, parameter.position)
            return tree.Constant(self.parameters[parameter.value])
        if self.accept("keyword", "EXISTS"):
            return self._exists()
        if self.accept("sign", "("):
            with self.deeper():
                inner = self.disjunction()
            self.need("sign", ")")
            return inner
        return self._property_or_function()

    def _exists(self) -> tree.Predicate:
        self.need("sign", "(")
        with self.deeper():
            position = self.token.position
            operand = self._property_or_function()
        self.need("sign", ")")
        if not isinstance(operand, tree.PROPERTIES):
            raise InvalidFilter("EXISTS of something else", position, "a property")
        return tree.Exists(operand)

    # Properties

    def _property_or_function(self) -> Any:
        word = self.accept("word")
        if word is None:
            return self.property()
        if not self.accept("sign", "("):
            self.index -= 1
            return self.property()
        name = word.value.lower()
        if name == "newid":
            what = "newid() is not supported"
            raise InvalidFilter(what, word.position)
        if name not in ("property", "p"):
            what = f"unknown function {word.value!r}"
            raise InvalidFilter(what, word.position, "property(name) or p(name)")
        with self.deeper():
            argument = self.value_at(self.sum)
        self.need("sign", ")")
        return tree.NamedProperty(argument)

    def property(self) -> tree.UserProperty | tree.SystemProperty:
        """Read a property's name, with or without its scope."""
        first = self.accept("word") or self.accept("name")
        if first is None:
            self.unexpected("a value")
        if not self.accept("sign", "."):
            return tree.UserProperty(first.value)
        scope = first.value.lower() if first.kind == "word" else ""
        if scope not in ("sys", "user"):
            what = f"unknown scope {first.value!r}"
            raise InvalidFilter(what, first.position, "sys or user")
        name = self.accept("word") or self.accept("name")
        if name is None:
            self.unexpected("a property's name")
        if scope == "user":
            return tree.UserProperty(name.value)
        folded = name.value.casefold()
        if folded not in SYSTEM_PROPERTIES:
            raise InvalidFilter(f"messages have no system property {name.value!r}", name.position)
        return tree.SystemProperty(folded)

    # Statements

    def statement(self) -> tree.Statement:
        word = self.accept("word")
        verb = word.value.upper() if word else ""
        if verb == "REMOVE":
            return tree.RemoveProperty(self.property())
        if verb != "SET":
            self.index -= word is not None
            self.unexpected("SET or REMOVE")
        target = self.property()
        self.need("sign", "=")
        return tree.SetProperty(target, self.value_at(self.sum))
