"""LIKE: patterns in which % stands for any string and _ for any one character.

An escape character makes the next character mean itself. Case matters. The cost is bounded whatever
the pattern. Patterns without _ are searched piece by piece, from left to right. Those with _ run as
an automaton whose states are the bits of one number, one step per character.
"""

from __future__ import annotations

from collections.abc import Callable

from onibus.core.rules.subject import SCANNED

Matcher = Callable[[str], bool]

_MANY, _ONE = "many", "one"


class BadPattern(ValueError):
    """A pattern that cannot be meant: its last character is the escape character."""


def like(pattern: str, escape: str | None) -> tuple[Matcher, int]:
    """Return the function that returns whether a string matches the pattern.

    Also how many characters it looks at in one step (core/rules/subject.py).
    """
    elements = _elements(pattern, escape)
    return (_automaton(elements), 1) if _ONE in elements else (_pieces(elements), SCANNED)


def _elements(pattern: str, escape: str | None) -> list[str]:
    """Return characters as they are, and wildcards by their names of several characters."""
    elements: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise BadPattern("a pattern ends with its escape character")
            elements.append(following)
        elif character == "%":
            elements.append(_MANY)
        else:
            elements.append(_ONE if character == "_" else character)
    return elements


def _pieces(elements: list[str]) -> Matcher:
    """Match the strings between %: the first begins, the last ends, the others follow in order."""
    pieces = [""]
    for element in elements:
        if element == _MANY:
            pieces.append("")
        else:
            pieces[-1] += element
    first, *inner, last = pieces if len(pieces) > 1 else (pieces[0], "")
    if len(pieces) == 1:
        return first.__eq__
    inner = [piece for piece in inner if piece]
    if not inner and not last:
        return lambda text: text.startswith(first)
    if not inner and not first:
        return lambda text: text.endswith(last)
    if len(inner) == 1 and not first and not last:
        only = inner[0]
        return lambda text: only in text

    def matches(text: str) -> bool:
        end = len(text) - len(last)
        if end < len(first) or not text.startswith(first) or not text.endswith(last):
            return False
        position = len(first)
        for piece in inner:
            found = text.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return True

    return matches


def _automaton(elements: list[str]) -> Matcher:
    """Match with _: bit n of the state says that the string so far matches the first n elements."""
    wanted = [element for element in elements if element != _MANY]
    loops = position = 0
    for element in elements:
        if element == _MANY:
            loops |= 1 << position
        else:
            position += 1
    anything = sum(1 << place for place, element in enumerate(wanted) if element == _ONE)
    steps: dict[str, int] = {}
    for place, element in enumerate(wanted):
        if element != _ONE:
            steps[element] = steps.get(element, anything) | 1 << place
    length, final = len(wanted), 1 << len(wanted)

    def matches(text: str) -> bool:
        if len(text) < length or (not loops and len(text) != length):
            return False
        state = 1
        for character in text:
            state = (state & steps.get(character, anything)) << 1 | (state & loops)
            if not state:
                return False
        return bool(state & final)

    return matches
