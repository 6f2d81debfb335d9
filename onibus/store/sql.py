"""All SQL statements, generated from the tables of core/records.py.

Columns have no declared type, so SQLite stores every value as given. A table whose key is one
integer is a plain table with that integer as its rowid. Rows are appended at the end of the tree,
and large values, which come last, are on separate pages that a scan of other columns skips. All
other tables are in key order (WITHOUT ROWID).
"""

from __future__ import annotations

from dataclasses import dataclass

from onibus.core.records import META, REPAIRS, TABLES, Table

BEGIN = "BEGIN IMMEDIATE"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
COUNT_TABLES = "SELECT count(*) FROM sqlite_schema"
#: Ends at the first damaged page.
CHECK_PAGES = "PRAGMA quick_check(1)"
READ_META = "SELECT name, value FROM meta"
PUT_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
PUT_POSITION = "UPDATE meta SET value = ? WHERE name = 'position'"


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one table."""

    put: str
    delete: str
    read: str
    highest: str


def create(table: Table) -> str:
    """Return the statement that creates the table."""
    if table.key == 1 and table is not META:
        others = ", ".join(f'"{column}"' for column in table.columns[1:])
        return f'CREATE TABLE "{table.name}" ("{table.columns[0]}" INTEGER PRIMARY KEY, {others})'
    columns = ", ".join(f'"{column}"' for column in table.columns)
    return f'CREATE TABLE "{table.name}" ({columns}, PRIMARY KEY ({_key(table)})) WITHOUT ROWID'


def give_back(pages: int) -> str:
    """Return the statement that releases free pages."""
    return f"PRAGMA incremental_vacuum({pages})"


def scan(table: Table, columns: tuple[str, ...]) -> str:
    """Return the statement that reads all rows in key order."""
    wanted = ", ".join(f'"{column}"' for column in columns or table.columns)
    return f'SELECT {wanted} FROM "{table.name}" ORDER BY {_key(table)}'


def _key(table: Table) -> str:
    return ", ".join(f'"{column}"' for column in table.columns[: table.key])


def _statements(table: Table) -> Statements:
    values = ", ".join("?" for _ in table.columns)
    row = " AND ".join(f'"{column}" = ?' for column in table.columns[: table.key])
    return Statements(
        put=f'INSERT OR REPLACE INTO "{table.name}" VALUES ({values})',
        delete=f'DELETE FROM "{table.name}" WHERE {row}',
        read=f'SELECT * FROM "{table.name}" WHERE {row}',
        highest=f'SELECT max("{table.columns[0]}") FROM "{table.name}"',
    )


SCHEMA = tuple(create(table) for table in TABLES)
#: Statements that migrate a store from a format to the next one.
MIGRATIONS = {
    1: ('ALTER TABLE "outcomes" ADD COLUMN "stamp"', create(REPAIRS)),
    2: (
        'ALTER TABLE "sessions" ADD COLUMN "takeover"',
        'ALTER TABLE "sessions" ADD COLUMN "state_set"',
    ),
    3: ('ALTER TABLE "block_index" ADD COLUMN "entries"',),
}
STATEMENTS = {table.name: _statements(table) for table in TABLES}
