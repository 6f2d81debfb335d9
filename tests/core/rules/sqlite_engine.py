"""Random filters in two spellings, ours and SQLite's, and SQLite's answers to them.

Where the grammars agree the spelling is the same. They differ in texts put together (+ is ||), in
EXISTS (a column that says so), and in what is left out: values of different kinds in one
comparison, which SQLite orders by kind; floating numbers in / and %, where SQLite knows no infinity
and cuts a remainder's operands; texts of numbers, which it would compute with.
"""

from __future__ import annotations

import random
from typing import Any

import apsw

#: Properties by kind: whole numbers, floating ones, texts, booleans.
NAMES = {
    "integer": ("i", "j", "k"),
    "floating": ("f", "g"),
    "text": ("s", "t", "u"),
    "boolean": ("b", "c"),
}
ALL = tuple(name for names in NAMES.values() for name in names)
SIGNS = ("=", "<>", "!=", "<", "<=", ">", ">=")
TEXTS = ("", "a", "b", "ab", "A", "a%", "a_b", "aab", "ba", "é", "it's")
NUMBERS = (0, 1, 2, 3, 5, 7, 10)

Spelled = tuple[str, str]


class SqliteEngine:
    """SQLite, asked for the value of an expression over a row."""

    def __init__(self) -> None:
        self._connection = apsw.Connection(":memory:")
        self._connection.execute("PRAGMA case_sensitive_like = ON")
        columns = [f":{name} AS {name}, :has_{name} AS has_{name}" for name in ALL]
        self._row = f"(SELECT {', '.join(columns)})"

    def evaluate(
        self, expression: str, properties: dict[str, Any], parameters: dict[str, Any]
    ) -> bool | None:
        """Return True, False or None for unknown."""
        values = {name: properties.get(name) for name in ALL}
        values |= {f"has_{name}": name in properties for name in ALL}
        values |= {name.removeprefix("@"): value for name, value in parameters.items()}
        query = f"SELECT ({expression}) FROM {self._row}"
        [(answer,)] = self._connection.execute(query, values)
        return None if answer is None else bool(answer)


class Generator:
    """Random messages, and filters over their properties."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        #: the parameters of the filters made so far
        self.parameters: dict[str, Any] = {}

    def properties(self) -> dict[str, Any]:
        """Return properties; some are NULL and some are missing."""
        chance = self._chance
        found: dict[str, Any] = {}
        for kind, names in NAMES.items():
            for name in names:
                fate = chance.random()
                if fate > 0.25:
                    found[name] = self._value(kind)
                elif fate > 0.15:
                    found[name] = None
        return found

    def _value(self, kind: str) -> Any:
        chance = self._chance
        if kind == "integer":
            return chance.choice(NUMBERS) * chance.choice((1, 1, -1))
        if kind == "floating":
            return chance.choice((0.0, 0.5, -1.25, 2.0, 1e10, 3.0))
        return chance.choice(TEXTS) if kind == "text" else chance.random() < 0.5

    def filter(self, depth: int = 3) -> Spelled:
        """Return a condition in both spellings."""
        chance = self._chance
        if depth == 0 or chance.random() < 0.3:
            return self._leaf()
        fate = chance.random()
        if fate < 0.15:
            return _both("NOT {}", self.filter(depth - 1))
        if fate < 0.3:
            return _both("({})", self.filter(depth - 1))
        count = chance.randrange(2, 5)
        ours, theirs = self.filter(depth - 1)
        for _ in range(count - 1):
            word = chance.choice((" AND ", " OR ", " and ", " OR NOT "))
            more = self.filter(depth - 1)
            ours, theirs = ours + word + more[0], theirs + word + more[1]
        return ours, theirs

    def _leaf(self) -> Spelled:
        chance = self._chance
        kind = chance.choice(("number", "number", "text", "text", "boolean"))
        negated = chance.choice(("", "", "NOT "))
        fate = chance.random()
        if fate < 0.1:
            name = chance.choice(ALL)
            return _both(f"{name} IS {negated}NULL")
        if fate < 0.2:
            name = chance.choice(ALL)
            return f"EXISTS({name})", f"has_{name}"
        if fate < 0.4:
            elements = [self._operand(kind) for _ in range(chance.randrange(1, 4))]
            listed = ", ".join(["{}"] * len(elements))
            return _both("{} " + f"{negated}IN ({listed})", self._operand(kind), *elements)
        if kind == "text" and fate < 0.65:
            return self._like(negated)
        sign = chance.choice(("=", "<>") if kind == "boolean" else SIGNS)
        return _both("{} " + sign + " {}", self._operand(kind), self._operand(kind))

    def _like(self, negated: str) -> Spelled:
        chance = self._chance
        letters = "".join(chance.choices("ab%_!Aé", k=chance.randrange(6)))
        fate = chance.random()
        pattern = f"'{letters}'" if fate < 0.6 else chance.choice(NAMES["text"])
        if fate > 0.8:
            pattern = self._given(letters)
        escapes = pattern[0] in "'@" and "!" in letters and not letters.endswith("!")
        escape = " ESCAPE '!'" if escapes else ""
        if escapes and chance.random() < 0.3:
            escape = f" ESCAPE {self._given('!')}"
        return _both("{} " + f"{negated}LIKE {pattern}{escape}", self._operand("text"))

    def _operand(self, kind: str) -> Spelled:
        chance = self._chance
        if kind == "boolean":
            if chance.random() < 0.1:
                return _both(self._given(self._value("boolean")))
            return _both(chance.choice((*NAMES["boolean"], "TRUE", "FALSE", "NULL")))
        if kind == "text":
            parts = [self._text() for _ in range(chance.choice((1, 1, 1, 2, 3)))]
            return " + ".join(parts), " || ".join(parts)
        return _both(self._number(2) if chance.random() < 0.5 else self._floating())

    def _given(self, value: Any) -> str:
        """Return a new parameter of that value; SQLite spells them alike."""
        name = f"@p{len(self.parameters)}"
        self.parameters[name] = value
        return name

    def _text(self) -> str:
        chance = self._chance
        fate = chance.random()
        if fate < 0.6:
            return chance.choice(NAMES["text"])
        if fate < 0.7:
            return self._given(chance.choice((*TEXTS, None)))
        literal = chance.choice(TEXTS).replace("'", "''")
        return chance.choice((f"'{literal}'", f"'{literal}'", "NULL"))

    def _number(self, depth: int) -> str:
        """Return whole numbers computed with."""
        chance = self._chance
        if depth == 0 or chance.random() < 0.4:
            if chance.random() < 0.15:
                return self._given(chance.choice((*NUMBERS, None)))
            return chance.choice((*NAMES["integer"], str(chance.choice(NUMBERS)), "NULL"))
        fate = chance.random()
        if fate < 0.15:
            return f"({self._number(depth - 1)})"
        if fate < 0.25:
            return f"- {self._number(0)}"
        terms = [self._number(depth - 1) for _ in range(chance.randrange(2, 4))]
        text = terms[0]
        for term in terms[1:]:
            text += f" {chance.choice('+-*/%')} {term}"
        return text

    def _floating(self) -> str:
        chance = self._chance
        names = (*NAMES["floating"], *NAMES["integer"], "0.5", "2.0", "1E1", "3")
        text = chance.choice(names) if chance.random() < 0.85 else self._given(0.5)
        for _ in range(chance.randrange(3)):
            text += f" {chance.choice('+-*')} {chance.choice(names)}"
        return text


def _both(template: str, *parts: Spelled) -> Spelled:
    return (
        template.format(*(part[0] for part in parts)),
        template.format(*(part[1] for part in parts)),
    )
