"""docs/on-disk.md says what the code writes."""

from __future__ import annotations

import re

from onibus.core.arrow_block import SCHEMA
from onibus.core.message import Message
from onibus.core.records import TABLES
from tests.source_tree import text_of

PAGE = text_of("docs/on-disk.md")


def cells(heading: str) -> list[list[list[str]]]:
    """Return the code words in each cell of the table under that first line."""
    lines = PAGE.split(heading, 1)[1].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([re.findall(r"`(\w+)`", cell) for cell in line.strip("|").split("|")])
    return rows


def test_tables_and_their_columns_are_listed() -> None:
    listed = [(name, tuple(key + others), len(key)) for [name], key, others in
              cells("| table | key | other columns |")]  # fmt: skip
    assert listed == [(table.name, table.columns, table.key) for table in TABLES]


def test_the_fields_of_a_row_are_listed_in_order() -> None:
    listed = [name for row in cells("| field | type |") for name in row[0]]
    assert listed == list(Message.__struct_fields__)


def test_the_columns_of_arrow_are_listed_in_order_with_their_types() -> None:
    rows = cells("| columns, in order | type |")
    assert [name for row in rows for name in row[0]] == SCHEMA.names
    for line in PAGE.split("| columns, in order | type |", 1)[1].splitlines()[2:]:
        for name in re.findall(r"`(\w+)`", line.split("|")[1]) if line.startswith("|") else ():
            field = SCHEMA.field(name)
            assert line.split("|")[2].split()[0].strip(":,") == str(field.type)
            assert ("not null" in line) == (not field.nullable)
