"""Ingest and replay: restartable, and each row once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onibus import Message
from onibus.client import Client
from onibus.core.errors import InvalidArgument, InvalidOperation, LogGap
from onibus.spark.jobs.ingest import Fields, Ingested, ingest
from onibus.spark.jobs.replay import LogSource, Replayed, Selection, plan, replay, select
from tests.client.server_helpers import ServerProcess
from tests.spark.writing_helpers import log_of


def put_orders(folder: Path, name: str, numbers: range) -> None:
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps({"order": number, "customer": f"c{number % 3}", "total": number / 2})
        for number in numbers
    ]
    hidden = folder / f".{name}"
    hidden.write_text("\n".join(lines))
    hidden.rename(folder / f"{name}.json")


@pytest.mark.promise("R6")
def test_files_are_ingested_as_they_come(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str, tmp_path: Path
) -> None:
    client.create_queue(entity, enable_partitioning=True, requires_session=True)
    target = {"connection": server.connection_string, "entity": entity}
    fields = Fields(ids=["order"], session_id="customer", properties=["total"])
    stream = spark.readStream.schema("order INT, customer STRING, total DOUBLE")
    told: list[Ingested] = []

    def run() -> Ingested:
        return ingest(
            stream.json(str(tmp_path / "in")),
            target,
            checkpoint=str(tmp_path / "checkpoint"),
            fields=fields,
            on_progress=told.append,
        )

    put_orders(tmp_path / "in", "one", range(5))
    assert run().rows == 5
    put_orders(tmp_path / "in", "two", range(5, 8))
    assert (run().rows, told[-1].rows) == (3, 3)
    assert run().rows == 0
    found = log_of(client, entity, "message_id", "session_id", "body")
    assert sorted(name for name, _, _ in found) == [str(number) for number in range(8)]
    assert json.loads({name: body for name, _, body in found}["7"]) == {
        "order": 7,
        "customer": "c1",
        "total": 3.5,
    }
    # One batch under a name is written once; without a checkpoint there is no stream.
    rows = spark.createDataFrame([(9, "c0", 1.5)], "order INT, customer STRING, total DOUBLE")
    assert ingest(rows, target, name="late", fields=fields).rows == 1
    assert ingest(rows, target, name="late", fields=fields).again
    assert len(log_of(client, entity, "body")) == 9
    with pytest.raises(InvalidArgument, match="needs a checkpoint"):
        ingest(stream.json(str(tmp_path / "in")), target)
    with pytest.raises(InvalidArgument, match="no column 'nowhere'"):
        ingest(rows, target, fields=Fields(subject="nowhere"))


@pytest.mark.promise("R6", "X7")
def test_a_replay_goes_on_where_it_was(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str, tmp_path: Path
) -> None:
    client.create_queue(entity, enable_partitioning=True, retention_ms=3_600_000)
    client.create_queue("again-" + entity, requires_duplicate_detection=True)
    messages = [
        Message(body=b"%d" % at, message_id=f"m{at}", session_id=f"s{at % 5}", subject="ab"[at % 2])
        for at in range(60)
    ]
    client.send_batch(entity, messages)
    receiver = client.receiver(entity, delete=True)
    while receiver.receive(60):
        continue
    source = LogSource(spark, {"connection": server.connection_string, "entity": entity})
    target = {"connection": server.connection_string, "entity": f"again-{entity}"}
    selection = Selection(where="subject = 'a'", since_ms=0, since="long ago")
    told: list[Replayed] = []

    def run(**more: object) -> Replayed:
        given: dict[str, object] = {
            "name": "first", "state": tmp_path, "selection": selection, "on_progress": told.append,
        } | more  # fmt: skip
        return replay(source, target, **given)  # type: ignore[arg-type]

    assert run(dry_run=True) == Replayed(30, 0, 1)
    assert log_of(client, f"again-{entity}", "body") == []
    # Twenty a second are chunks of at most 100: one chunk; two a second, three chunks of ten.
    chunks = plan(select(source.rows(), selection), 10)
    assert sum(chunk.count for chunk in chunks) == 30
    # It is stopped after the first chunk, and goes on when it is started again.
    stopped = run(rate=2, stopped=lambda: len(told) > 0)
    assert 0 < stopped.sent < 30
    # What was long ago is another time now, and none that is in the plan.
    done = run(rate=1_000, selection=replace(selection, since_ms=2**41))
    assert (done.chosen, done.sent) == (30, 30)
    assert run().sent == 30
    found = log_of(client, f"again-{entity}", "message_id", "session_id", "body")
    assert sorted(found) == sorted(
        (one.message_id, one.session_id, one.body) for one in messages if one.subject == "a"
    )
    for session in {one.session_id for one in messages}:
        order = [int(body) for _, name, body in found if name == session]
        assert order == sorted(order)
    # Old ids are still remembered there; new ones are not.
    assert run(name="second").sent == 30
    assert len(log_of(client, f"again-{entity}", "body")) == 30
    assert run(name="third", new_ids=True).sent == 30
    assert len(log_of(client, f"again-{entity}", "body")) == 60


def test_a_replay_of_what_is_gone_meanwhile(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str, tmp_path: Path
) -> None:
    client.create_queue(entity)
    client.create_queue("again-" + entity)
    # What is sent together is dropped together.
    for numbers in (range(15), range(15, 30)):
        client.send_batch(entity, [Message(body=b"%d" % at) for at in numbers])
    source = LogSource(spark, {"connection": server.connection_string, "entity": entity})
    target = {"connection": server.connection_string, "entity": f"again-{entity}"}
    told: list[Replayed] = []

    def run() -> Replayed:
        return replay(
            source,
            target,
            name="late",
            state=tmp_path,
            selection=Selection(since_ms=0),
            rate=2,
            on_progress=told.append,
            stopped=lambda: len(told) > 0,
        )

    # Chunks have the numbers up to 9, up to 19, up to 29, and 30.
    assert (run().sent, told[-1].chosen) == (9, 30)
    told.clear()
    # This queue retains nothing: what was received is gone.
    client.receiver(entity, delete=True).receive(15)
    with pytest.raises(LogGap, match="messages 10 to 15") as gap:
        run()
    assert (gap.value.first, gap.value.last) == (10, 15)
    assert len(log_of(client, f"again-{entity}", "body")) == 9


def test_replays_that_are_refused(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str, tmp_path: Path
) -> None:
    client.create_queue(entity)
    client.send_batch(entity, [Message(body=b"x", message_id="a")])
    target = {"connection": server.connection_string, "entity": entity}
    source = LogSource(spark, target)
    for given, says in (({"name": "a/b"}, "no /"), ({"name": "a", "rate": 0}, "above 0")):
        with pytest.raises(InvalidArgument, match=says):
            replay(source, target, state=tmp_path, **given)
    replay(source, target, name="a", state=tmp_path, new_ids=True)
    with pytest.raises(InvalidOperation, match="another replay named 'a'"):
        replay(source, target, name="a", state=tmp_path)
    with pytest.raises(InvalidOperation, match=r"was already sent to"):
        replay(source, target, name="a", state=tmp_path / "elsewhere")
    with pytest.raises(PySparkException, match="nowhere"):
        replay(source, target, name="b", state=tmp_path, selection=Selection(where="nowhere = 1"))
