"""Trees made into functions: nothing is decided per message that can be decided once.

A condition becomes a function of a `Subject` that gives True, False or None for unknown; AND and OR
go from left to right and stop as soon as they know. A value becomes a function that gives it, None
for NULL. No string of a user ever becomes code: functions are put into functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from onibus.core.errors import FilterFailed, InvalidFilter
from onibus.core.limits import SQL_LENGTH_MAX
from onibus.core.rules import sql_tree as tree
from onibus.core.rules.like import BadPattern, Matcher, like
from onibus.core.rules.sql_parser import parse_filter
from onibus.core.rules.subject import FOLDED, MISSING, SCANNED, SYSTEM_PROPERTIES, Subject
from onibus.core.rules.values import (
    COMPUTATIONS,
    NUMBER,
    ORDERED,
    TEXT,
    affirm,
    comparison,
    equal,
    kind_of,
    negate,
    plain_comparison,
)

#: A condition: true, false, or None for unknown.
Condition = Callable[[Subject], bool | None]
Evaluate = Callable[[Subject], Any]

#: System properties that a message has only once it is stored.
STAMPS = frozenset({"sequencenumber", "enqueuedtimeutc"})


class Cost(NamedTuple):
    """What running a filter or an action on one message takes."""

    #: steps that it takes for any message
    steps: int = 1
    #: it takes more steps for longer strings: the subject counts them
    costly: bool = False
    #: it reads the message's sequence number or enqueued time
    stamped: bool = False


def compile_filter(
    text: str, parameters: Mapping[str, Any] | None = None, length_max: int = SQL_LENGTH_MAX
) -> Condition:
    """Return the function of a filter. It returns True for a selected message."""
    node = parse_filter(text, parameters or {}, length_max)
    function = condition(node)
    return _counted(function) if work_of(node).costly else function


def _counted(function: Condition) -> Condition:
    """Let a condition begin with no steps taken."""

    def counted(subject: Subject) -> bool | None:
        subject.steps = 0
        return function(subject)

    return counted


def _can_be_costly(node: Any) -> bool:
    """Return whether the steps of a node depend on the lengths of a message's strings."""
    if isinstance(node, tree.Comparison):
        return not isinstance(node.right, tree.Constant)
    if isinstance(node, tree.In):
        return not all(isinstance(element, tree.Constant) for element in node.elements)
    return isinstance(node, tree.Like | tree.NamedProperty)


#: Further steps of each sign of a computation.
_STEPS_COMPUTED = 5


def work_of(nodes: Any) -> Cost:
    """Return what running a condition, or statements, takes."""
    found = list(tree.walk(nodes))
    stamped = any(isinstance(one, tree.SystemProperty) and one.name in STAMPS for one in found)
    computed = sum(len(one.rest) for one in found if isinstance(one, tree.Arithmetic))
    return Cost(
        1 + len(found) + _STEPS_COMPUTED * computed, any(map(_can_be_costly, found)), stamped
    )


def needed_text(node: tree.Predicate) -> tuple[str, str] | None:
    """Return the property and the string that a filter compares first, if it does.

    The filter is false for a message with a different string under exactly that name, and the rest
    of the filter is not evaluated.
    """
    if isinstance(node, tree.All):
        node = node.terms[0]
    if (
        isinstance(node, tree.Comparison)
        and node.sign == "="
        and isinstance(node.left, tree.UserProperty)
        and isinstance(node.right, tree.Constant)
        and type(node.right.value) is str
    ):
        return node.left.name, node.right.value
    return None


def value(node: tree.Value) -> Evaluate:
    """Return the function of a value."""
    if isinstance(node, tree.Constant):
        constant = node.value
        return lambda subject: constant
    if isinstance(node, tree.UserProperty):
        return _user_property(node.name)
    if isinstance(node, tree.SystemProperty):
        return SYSTEM_PROPERTIES[node.name]
    if isinstance(node, tree.NamedProperty):
        find = _find_named(node)
        return lambda subject: None if (found := find(subject)) is MISSING else found
    if isinstance(node, tree.Sign):
        operand = value(node.operand)
        function = negate if node.sign == "-" else affirm
        return lambda subject: function(operand(subject))
    return _arithmetic(node)


def condition(node: tree.Predicate) -> Condition:
    """Return the function of a condition."""
    if isinstance(node, tree.Comparison):
        return _comparison(node)
    if isinstance(node, tree.All):
        return _chain([condition(term) for term in node.terms], False)
    if isinstance(node, tree.Either):
        choice = _choice(node.terms)
        return _in(choice) if choice else _chain([condition(term) for term in node.terms], True)
    if isinstance(node, tree.Not):
        return _not(condition(node.term))
    if isinstance(node, tree.In):
        return _in(node)
    if isinstance(node, tree.Like):
        return _like(node)
    if isinstance(node, tree.IsNull):
        read = value(node.operand)
        return lambda subject: read(subject) is None
    return _exists(node.operand)


# Properties


def _user_property(name: str) -> Evaluate:
    folded = name.casefold()

    def read(subject: Subject) -> Any:
        found = subject.properties.get(name, MISSING)
        if found is MISSING:
            found = subject.by_folded(folded)
            return None if found is MISSING else found
        return found

    return read


def _find_named(node: tree.NamedProperty) -> Evaluate:
    """Return the function of property(name), which returns MISSING if the message has none."""
    name_of = value(node.name)

    def find(subject: Subject) -> Any:
        name = name_of(subject)
        if name is None:
            return MISSING
        if not isinstance(name, str):
            raise FilterFailed(f"property() takes a string, not a {kind_of(name)}")
        subject.charge(1 + len(name) // FOLDED)
        return subject.property(name, name.casefold())

    return find


def _exists(node: tree.Property) -> Condition:
    if isinstance(node, tree.SystemProperty):
        read = SYSTEM_PROPERTIES[node.name]
        return lambda subject: read(subject) is not None
    if isinstance(node, tree.NamedProperty):
        find = _find_named(node)
        return lambda subject: find(subject) is not MISSING
    name, folded = node.name, node.name.casefold()
    return lambda subject: subject.property(name, folded) is not MISSING


# Computing


def _arithmetic(node: tree.Arithmetic) -> Evaluate:
    first = value(node.first)
    steps = [(COMPUTATIONS[sign], value(operand)) for sign, operand in node.rest]

    def compute(subject: Subject) -> Any:
        result = first(subject)
        for function, operand in steps:
            result = function(result, operand(subject))
        return result

    return compute


# Comparing


def _comparison(node: tree.Comparison) -> Condition:
    left, right = value(node.left), value(node.right)
    general = comparison(node.sign)
    if not isinstance(node.right, tree.Constant):

        def compare_two(subject: Subject) -> bool | None:
            one, other = left(subject), right(subject)
            subject.charge(_steps(one, other))
            return general(one, other)

        return compare_two
    constant = node.right.value
    types: tuple[type, ...] = _PLAIN_TYPES.get(kind_of(constant), ())
    if isinstance(node.left, tree.UserProperty) and types:
        return _property_against(node.left.name, types, node.sign, constant)
    plain = plain_comparison(node.sign)

    def compare(subject: Subject) -> bool | None:
        found = left(subject)
        return plain(found, constant) if type(found) in types else general(found, constant)

    return compare


def _steps(one: Any, other: Any) -> int:
    """Return the steps of comparing two values."""
    if isinstance(one, str | bytes) and isinstance(other, str | bytes):
        return 1 + min(len(one), len(other)) // SCANNED
    return 1


#: Types whose values compare with a constant of the kind without further checks.
_PLAIN_TYPES: dict[str | None, tuple[type, ...]] = {TEXT: (str, str), NUMBER: (int, float)}


def _property_against(name: str, types: tuple[type, ...], sign: str, constant: Any) -> Condition:
    """Return the comparison that most filters are made of, in one function."""
    folded = name.casefold()
    usual, other = types
    plain, general = plain_comparison(sign), comparison(sign)

    def rarely(subject: Subject) -> bool | None:
        found = subject.property(name, folded)
        return None if found is MISSING else general(found, constant)

    if sign == "=":

        def is_equal(subject: Subject) -> bool | None:
            found = subject.properties.get(name)
            kind = type(found)
            if kind is usual or kind is other:
                return found == constant  # type: ignore[no-any-return]
            return rarely(subject)

        return is_equal

    def compare(subject: Subject) -> bool | None:
        found = subject.properties.get(name)
        kind = type(found)
        if kind is usual or kind is other:
            return plain(found, constant)
        return rarely(subject)

    return compare


def _in(node: tree.In) -> Condition:
    operand = value(node.operand)
    constants = [element.value for element in node.elements if isinstance(element, tree.Constant)]
    if len(constants) == len(node.elements):
        kind, *others = dict.fromkeys(map(kind_of, constants))
        if not others and kind in ORDERED and all(c == c for c in constants):
            return _in_set(operand, frozenset(constants), kind)
    elements = [value(element) for element in node.elements]

    def among(subject: Subject) -> bool | None:
        found = operand(subject)
        if found is None:
            return None
        answer: bool | None = False
        for element in elements:
            other = element(subject)
            subject.charge(_steps(found, other))
            same = equal(found, other)
            if same:
                return True
            if same is None:
                answer = None
        return answer

    return among


def _choice(terms: tuple[tree.Predicate, ...]) -> tree.In | None:
    """Return a = 1 OR a = 2 OR a = 3 as a IN (1, 2, 3)."""
    elements: list[tree.Value] = []
    operands: dict[tree.Value, None] = {}
    for term in terms:
        if not isinstance(term, tree.Comparison) or term.sign != "=":
            return None
        if not isinstance(term.right, tree.Constant) or not isinstance(term.left, tree.PROPERTIES):
            return None
        elements.append(term.right)
        operands[term.left] = None
    operand, *others = operands
    return None if others else tree.In(operand, tuple(elements))


def _in_set(operand: Evaluate, constants: frozenset[Any], kind: str | None) -> Condition:
    def among(subject: Subject) -> bool | None:
        found = operand(subject)
        return found in constants if kind_of(found) == kind else None

    return among


def _like(node: tree.Like) -> Condition:
    operand = value(node.operand)
    pattern, escape = node.pattern, node.escape or tree.Constant(None)
    if isinstance(pattern, tree.Constant) and isinstance(escape, tree.Constant):
        if pattern.value is None or (node.escape is not None and escape.value is None):
            return lambda subject: None
        try:
            matches, at_once = _matcher(pattern.value, escape.value)
        except FilterFailed as error:
            raise InvalidFilter(str(error)) from None

        def like_constant(subject: Subject) -> bool | None:
            text = operand(subject)
            if not isinstance(text, str):
                return None
            subject.charge(1 + len(text) // at_once)
            return matches(text)

        return like_constant
    pattern_of, escape_of = value(pattern), value(escape)
    escaped = node.escape is not None

    def like_computed(subject: Subject) -> bool | None:
        text, wanted, escape = operand(subject), pattern_of(subject), escape_of(subject)
        if text is None or wanted is None or (escaped and escape is None):
            return None
        matches, at_once = _matcher(wanted, escape)
        if not isinstance(text, str):
            return None
        subject.charge(_STEPS_READ * len(wanted) + len(text) // at_once)
        return matches(text)

    return like_computed


#: Steps of reading one character of a pattern.
_STEPS_READ = 10


def _matcher(pattern: Any, escape: Any) -> tuple[Matcher, int]:
    if not isinstance(pattern, str):
        raise FilterFailed(f"LIKE takes a string as its pattern, not a {kind_of(pattern)}")
    if len(pattern) > SQL_LENGTH_MAX:
        raise FilterFailed(f"a pattern has at most {SQL_LENGTH_MAX} characters")
    if escape is not None and not (isinstance(escape, str) and len(escape) == 1):
        raise FilterFailed("ESCAPE takes a string of one character")
    try:
        return like(pattern, escape)
    except BadPattern as error:
        raise FilterFailed(str(error)) from None


# Three-valued logic


def _not(term: Condition) -> Condition:
    def negated(subject: Subject) -> bool | None:
        answer = term(subject)
        return None if answer is None else not answer

    return negated


def _chain(terms: list[Condition], decisive: bool) -> Condition:
    """Return AND, which one False decides, or OR, which one True decides."""
    if len(terms) == 2:
        left, right = terms

        def two(subject: Subject) -> bool | None:
            first = left(subject)
            if first is decisive:
                return decisive
            second = right(subject)
            return second if first is not None or second is decisive else None

        return two

    def many(subject: Subject) -> bool | None:
        answer: bool | None = not decisive
        for term in terms:
            found = term(subject)
            if found is decisive:
                return decisive
            if found is None:
                answer = None
        return answer

    return many
