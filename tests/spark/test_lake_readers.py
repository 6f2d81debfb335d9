"""pandas, Polars and DuckDB read one lake, with the same rows as Onibus (R9); without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from onibus import Message
from onibus.client import Client
from onibus.spark.lake import MESSAGES, OUTCOMES
from tests.client.server_helpers import ServerThread
from tests.source_tree import text_of
from tests.spark.lake_helpers import Captures, consume


@pytest.fixture
def bus() -> Iterator[tuple[ServerThread, Client]]:
    with ServerThread() as server, server.client() as client:
        yield server, client


@pytest.mark.promise("R9")
def test_each_program_reads_each_row_once_with_its_columns(
    bus: tuple[ServerThread, Client], tmp_path: Path
) -> None:
    server, client = bus
    client.create_queue("orders/eu", enable_partitioning=True)
    captures = Captures(server.connection_string, "orders/eu")
    for first in range(0, 60, 12):
        numbers = range(first, first + 12)
        client.send_batch("orders/eu", [Message(body=b"%d" % at) for at in numbers])
        captures.run(tmp_path, most=8)
    consume(client, "orders/eu")
    captures.run(tmp_path)
    lake = captures.lake(tmp_path)
    wanted = sorted(captures.rows(tmp_path))
    assert sorted(int(body) for _, body in wanted) == list(range(60))

    table = DeltaTable(lake.address(MESSAGES))
    assert "orders@eu" in lake.address(MESSAGES)
    frame = table.to_pandas()
    assert sorted(zip(frame["sequence_number"], frame["body"], strict=True)) == wanted
    assert str(frame["enqueued_time"].dtype) == "datetime64[us, UTC]"

    lazy = polars.scan_delta(lake.address(MESSAGES))
    half = wanted[len(wanted) // 2][0]
    late = lazy.filter(polars.col("sequence_number") >= half).select("sequence_number", "body")
    assert sorted(late.collect().rows()) == [one for one in wanted if one[0] >= half]

    dataset = table.to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("orders", dataset)
        query = "SELECT sequence_number, body FROM orders WHERE sequence_number < ? ORDER BY 1"
        found = [
            (number, bytes(body)) for number, body in connection.execute(query, [half]).fetchall()
        ]
        connection.register("ends", DeltaTable(lake.address(OUTCOMES)).to_pyarrow_dataset())
        joined = "SELECT count(*) FROM orders JOIN ends USING (partition, sequence_number)"
        assert connection.execute(joined).fetchone() == (60,)
    assert found == [one for one in wanted if one[0] < half]


@pytest.mark.promise("R9")
def test_the_queries_of_a_lake_run_in_each_program(
    bus: tuple[ServerThread, Client], tmp_path: Path
) -> None:
    server, client = bus
    client.create_queue("orders")
    client.send_batch("orders", [Message(body=b"%d" % at) for at in range(5)])
    captures = Captures(server.connection_string, "orders")
    # The broker keeps outcomes once the lake has a reader.
    captures.run(tmp_path)
    with client.receiver("orders") as receiver:
        held = receiver.receive(4)
        receiver.complete(held[0])
        receiver.dead_letter(held[1], reason="NoStock", description="none left")
        receiver.dead_letter(held[2], reason="Gone")
    with client.receiver("orders", dead_letters=True) as receiver:
        receiver.complete(*[one for one in receiver.receive(2) if one.body == b"2"])
    captures.run(tmp_path)
    lake = captures.lake(tmp_path)
    wanted = {
        1: ("completed", None), 2: ("dead-lettered", "NoStock"), 3: ("completed", "Gone"),
        4: ("present", None), 5: ("present", None),
    }  # fmt: skip
    state = Path(lake.address("queries"), "state.sql").read_text()
    dead = Path(lake.address("queries"), "dead_lettered.sql").read_text()
    tables = {name: DeltaTable(lake.address(name)) for name in (MESSAGES, OUTCOMES)}

    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table.to_pyarrow_dataset())
        frame = connection.execute(state).df()
        found = {
            number: (kind, reason if isinstance(reason, str) else None)
            for number, kind, reason in zip(
                frame["sequence_number"], frame["state"], frame["dead_letter_reason"], strict=True
            )
        }
        assert found == wanted
        assert connection.execute(dead).df()["dead_letter_description"].tolist() == ["none left"]

    lazy = polars.SQLContext({name: polars.scan_delta(lake.address(name)) for name in tables})
    rows = lazy.execute(state).select("sequence_number", "state", "dead_letter_reason").collect()
    assert {number: (kind, reason) for number, kind, reason in rows.rows()} == wanted
    assert lazy.execute(dead).collect()["sequence_number"].to_list() == [2]


@pytest.mark.promise("R9")
def test_the_cells_of_the_notebook_run_in_order(
    bus: tuple[ServerThread, Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = bus
    client.create_queue("orders")
    client.send_batch("orders", [Message(body=b"%d" % at) for at in range(4)])
    captures = Captures(server.connection_string, "orders")
    captures.run(tmp_path / "lake")
    with client.receiver("orders") as receiver:
        one, other, third, _ = receiver.receive(4)
        receiver.complete(one, other)
        receiver.dead_letter(third, reason="NoStock")
    captures.run(tmp_path / "lake")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in json.loads(text_of("examples/lake.ipynb"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["counts"].to_dict() == {"completed": 2, "dead-lettered": 1, "present": 1}
    assert names["dead"]["dead_letter_reason"].tolist() == ["NoStock"]
    assert len(names["times"]) == 3
    assert (names["times"] >= 0).all()
