"""Options and filters are read and checked without Spark, in one place."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, LessThan, LessThanOrEqual, Not

from onibus.client import Client
from onibus.core.errors import InvalidArgument
from onibus.spark.filters import narrow
from onibus.spark.options import READ, Position, read_options
from onibus.spark.ranges import Range, pack
from onibus.spark.schema import CLAIMED, LOG, OUTCOMES, PRESENT, schema_of
from tests.client.server_helpers import ServerProcess
from tests.source_tree import text_of
from tests.test_docs import rows, word

WHERE = {"url": "http://localhost:5300", "entity": "orders"}


def test_options_are_read_whatever_their_case() -> None:
    options = read_options(
        {
            "CONNECTION": "Endpoint=sb://host;SharedAccessKeyName=n;SharedAccessKey=secret;"
            "EntityPath=orders",
            "startingposition": '{"1": 7}',
            "endingPosition": "2026-01-31T12:00:00+01:00",
            "failongap": "FALSE",
            "columns": "body, kind",
        }
    )
    assert options.entity == "orders"
    assert options.starting_position == Position("earliest", {1: 7})
    assert options.ending_position == Position("latest", time_ms=1_769_857_200_000)
    assert (options.fail_on_gap, options.columns) == (False, ("body", "kind"))
    assert schema_of(options) == "`body` binary, `kind` string"
    assert "secret" not in repr(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingPositon": "latest"}, "did you mean startingPosition"),
        ({"xyz": "red"}, "unknown option 'xyz': use url,"),
        ({"connection": "Endpoint=sb://x"}, "url and connection exclude each other"),
        ({"key": "k"}, "key and keyName belong together"),
        ({"startingPosition": "yesterday"}, "use earliest, latest, a time"),
        ({"startingPosition": '{"0": "x"}'}, "is not a row number"),
        ({"startingPosition": '{"0"'}, "is not JSON"),
        ({"startingPosition": '{"0":' + "[" * 100_000}, "is not JSON"),
        ({"columns": "body,colour"}, "'colour' is unknown"),
        ({"columns": "body,body"}, "unknown or repeated"),
        ({"bodyFormat": "json"}, "bodyFormat json needs the fields to read"),
        ({"bodySchema": "a INT"}, "no other bodyFormat takes a bodySchema"),
        ({"bodyFormat": "xml"}, "use one of binary, text, json"),
        ({"mode": "queue", "table": "outcomes"}, "needs mode log"),
        ({"messagesPerTask": "many"}, "use a whole number from 1"),
        ({"maxMessagesPerTrigger": "0"}, "use a whole number from 1"),
        ({"failOnGap": "perhaps"}, "use one of true, false"),
        ({"entity": ""}, "option entity is empty"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        schema_of(read_options(WHERE | options))


def test_server_and_entity_are_needed() -> None:
    with pytest.raises(InvalidArgument, match="no server"):
        read_options({"entity": "orders"})
    with pytest.raises(InvalidArgument, match="option entity"):
        read_options({"url": "http://localhost"})


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without a server's file, and no variable that names a server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONIBUS_CONNECTION", raising=False)
    return tmp_path


def shown(url: str, **more: str) -> tuple[str, str]:
    """Return name and secret of the key that a read shows to a server."""
    target = read_options({"url": url, "entity": "orders", **more}).target()
    return target.key_name, target.key


def test_on_this_machine_the_key_is_found_as_the_command_line_finds_it(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ("RootManageSharedAccessKey", "SAS_KEY_VALUE")
    assert shown("http://localhost:5300") == shown("http://127.0.0.1:5301") == known
    (alone / "data").mkdir()
    text = "Endpoint=sb://localhost:{};SharedAccessKeyName={};SharedAccessKey={};"
    (alone / "data/connection-string").write_text(text.format(5300, "root", "of-the-file"))
    assert shown("http://127.0.0.1:5300") == ("root", "of-the-file")
    assert shown("http://localhost") == known, "which is port 80"
    monkeypatch.setenv("ONIBUS_CONNECTION", text.format(5301, "mine", "of-the-variable"))
    assert shown("http://[::1]:5301") == ("mine", "of-the-variable")
    # A key is not shown to another server, and what was given counts.
    assert shown("http://localhost:5300") == known
    assert shown("http://elsewhere.example:5301") == ("", "")
    assert shown("http://localhost:5301", keyName="k", key="given") == ("k", "given")


def test_a_server_in_development_is_read_by_its_address_alone(alone: Path) -> None:
    with ServerProcess(alone / "bus") as server:
        with Client.connect(server.connection_string) as owner:
            owner.create_queue("orders")
        address = f"http://localhost:{server.port}"
        with read_options({"url": address, "entity": "orders"}).client() as client:
            assert client.queues() == ["orders"]


def test_filters_narrow_what_is_read() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    noon_ms = int(noon.timestamp() * 1000)
    later = noon + timedelta(microseconds=1)

    def cut(*filters: Filter) -> tuple[int, int]:
        return narrow(filters, "number", "time").cut(3, 10, 20)

    assert cut() == (10, 20)
    assert cut(EqualTo(("partition",), 2)) == (10, 10)
    assert cut(In(("partition",), (2, 3)), GreaterThan(("number",), 14)) == (15, 20)
    assert cut(LessThan(("number",), 12), LessThanOrEqual(("number",), 99)) == (10, 12)
    assert cut(In(("number",), (12, 14))) == (12, 15)
    assert cut(GreaterThan(("number",), 99)) == (20, 20)
    assert cut(LessThan(("number",), 5)) == (10, 10)
    for unknown in (
        Not(EqualTo(("partition",), 3)),
        EqualTo(("body",), b"x"),
        EqualTo(("number",), None),
    ):
        assert cut(unknown) == (10, 20)

    def times(*filters: Filter) -> tuple[int | None, int | None]:
        narrowed = narrow(filters, "number", "time")
        return narrowed.since_ms, narrowed.before_ms

    assert times(EqualTo(("time",), noon)) == (noon_ms, noon_ms + 1)
    assert times(GreaterThan(("time",), noon)) == (noon_ms + 1, None)
    assert times(LessThan(("time",), noon)) == (None, noon_ms)
    assert times(LessThan(("time",), later)) == (None, noon_ms + 1)
    assert times(LessThanOrEqual(("time",), later)) == (None, noon_ms + 1)


def test_ranges_are_packed_into_few_equal_tasks() -> None:
    def packed(most: int, tasks: int | None = None) -> list[list[tuple[int, int, int]]]:
        ranges = [Range(0, 1, 11, 7), Range(1, 5, 5, 7), Range(2, 1, 3, 7), Range(3, 8, 9, 7)]
        parts = pack(ranges, most, tasks)
        return [[(one.partition, one.start, one.end) for one in part] for part in parts]

    assert packed(100) == [[(0, 1, 11), (2, 1, 3), (3, 8, 9)]]
    assert packed(5) == [[(0, 1, 5)], [(0, 5, 9)], [(0, 9, 11), (2, 1, 3), (3, 8, 9)]]
    assert packed(1, tasks=2) == [[(0, 1, 7)], [(0, 7, 11), (2, 1, 3), (3, 8, 9)]]
    assert len(packed(1)) == 13
    assert pack([], 5) == pack([Range(0, 4, 4, 7)], 5, 3) == []


def test_the_page_lists_every_option_and_column() -> None:
    listed = [re.findall(r"`(\w+)`", cells[0]) for cells in rows("docs/spark.md", "option")]
    assert sorted(name for names in listed for name in names) == sorted(READ)
    columns = {word(cells[0]): cells[1] for cells in rows("docs/spark.md", "column")}
    assert columns == {name: kind.simpleString() for name, kind in LOG.items()}
    text = text_of("docs/spark.md")
    assert all(f"`{name}`" in text for name in (*PRESENT, *CLAIMED, *OUTCOMES))
