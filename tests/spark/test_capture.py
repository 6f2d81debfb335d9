"""Capture into a lake, what the audit makes of it, and the page that shows it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onibus.client import Client
from onibus.core.errors import EntityReplaced
from onibus.core.message import Message
from onibus.spark.jobs.audit import Verdict, audit
from onibus.spark.jobs.capture import Captured, capture
from onibus.spark.jobs.capture_all import capture_round, everything
from onibus.spark.jobs.report import report
from onibus.spark.lake import ERRORS, MESSAGES, OUTCOMES, Lake
from tests.client.server_helpers import ServerProcess


class Case:
    """A queue and its lake."""

    def __init__(
        self, spark: SparkSession, server: ServerProcess, client: Client, entity: str, lake: Path
    ) -> None:
        self._spark = spark
        self.source = {"connection": server.connection_string, "entity": entity}
        self.client = client
        self.entity = entity
        self.folder = str(lake)
        self.lake = Lake(self.folder, entity)

    def capture(
        self, *, body: str | None = None, on_error: str = "rescue", **options: str
    ) -> Captured:
        source = self.source | options
        return capture(self._spark, source, self.folder, body=body, on_error=on_error)

    def audit(self) -> Verdict:
        return audit(lambda: self._spark, self.source, self.folder)

    def wrong(self) -> dict[str, int]:
        """What the audit finds, by the beginning of its name."""
        found = self.audit().findings
        return {" ".join(one.check.split()[:4]): one.count for one in found if one.count}

    def send(self, first: int, last: int) -> None:
        self.client.send_batch(
            self.entity,
            [
                Message(body=b"%d" % one, message_id=f"m{one}", session_id=f"s{one % 7}")
                for one in range(first, last + 1)
            ],
        )

    def numbers(self, table: str = MESSAGES) -> list[int]:
        column = "number" if table == OUTCOMES else "sequence_number"
        return [
            number
            for one in self.lake.files(table)
            for number in self.lake.read(one)[1].column(column).to_pylist()
        ]


@pytest.fixture
def case(
    spark: SparkSession, server: ServerProcess, client: Client, entity: str, tmp_path: Path
) -> Case:
    client.create_queue(
        entity,
        requires_session=True,
        requires_duplicate_detection=True,
        retention_ms=3_600_000,
    )
    return Case(spark, server, client, entity, tmp_path / "lake")


#: A formula that is none, and control characters.
REASON = "NoStock $x^{$ \x1b[2J\x00"


def settle_some(case: Case) -> None:
    """Complete, dead-letter and defer what is in two sessions."""
    for _ in range(2):
        with case.client.accept_session(case.entity, wait_ms=1_000) as session:
            held = session.receive(20)
            session.dead_letter(held[0], reason=REASON)
            session.defer(held[1])
            session.complete(*held[2:])


def test_everything_is_captured_once_and_the_audit_proves_it(
    case: Case, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.send(1, 60)
    case.send(50, 59)
    first = case.capture()
    assert (first.messages, first.outcomes) == (60, 0)
    assert case.capture().messages == 0
    settle_some(case)
    case.client.schedule(case.entity, Message(session_id="s1", message_id="later"), 2**42)
    case.send(61, 70)
    second = case.capture(maxMessagesPerTrigger="4")
    assert second.messages == 11
    assert second.outcomes > 4
    assert sorted(case.numbers()) == list(range(1, 72))
    verdict = case.audit()
    assert verdict.passed, verdict.findings
    assert (verdict.messages, verdict.remarks) == (71, ())
    assert dict(verdict.covered) == {0: (1, 71)}
    assert [finding.check.split()[0] for finding in verdict.findings].count("messages") == 3
    # A large lake is read by Spark's tasks, with the same result.
    monkeypatch.setattr("onibus.spark.audit_reading.LOCAL_ROWS", 0)
    assert case.audit() == verdict
    page = report(
        spark, case.source, case.folder, tmp_path / "report.html", verdict=verdict
    ).read_text("utf-8")
    assert r"NoStock $x^{$ \x1b[2J\x00" in page
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", page)
    for svg in re.findall("<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    assert "10 duplicates dropped" in page
    assert page.count("<svg") == 6
    # The broker knows what it need not keep for the lake any more.
    readers = case.client.readers(case.entity)
    assert [one.lag for one in readers] == [(0,), (0,)]
    assert {one.address for one in readers} == {case.lake.store.address}


def test_bodies_that_cannot_be_decoded(case: Case, spark: SparkSession) -> None:
    for number, body in enumerate((b'{"n": 1}', b"no JSON", b'{"n": 3}'), 1):
        case.client.send(case.entity, Message(body=body, session_id="s", message_id=f"m{number}"))
    with pytest.raises(PySparkException, match="the body of message 2 of"):
        case.capture(body="n INT", on_error="suspend")
    assert case.numbers() == []
    done = case.capture()
    assert (done.messages, done.errors) == (3, 1)
    [file] = case.lake.files(MESSAGES)
    _, table = case.lake.read(file)
    assert table.column("decoded").to_pylist() == [{"n": 1}, None, {"n": 3}]
    assert table.column("body").to_pylist()[1] == b"no JSON"
    [errors] = case.lake.files(ERRORS)
    [error] = case.lake.read(errors)[1].to_pylist()
    assert (error["sequence_number"], error["message_id"], error["field"]) == (2, "m2", None)
    assert "is not JSON" in error["problem"]
    assert case.audit().passed


def test_a_namesake_and_a_lake_without_it(case: Case) -> None:
    verdict = case.audit()
    assert verdict.verdict == "INCOMPLETE"
    assert "no rows of" in verdict.incomplete[0]
    case.send(1, 3)
    case.capture()
    case.client.delete_queue(case.entity)
    case.client.create_queue(case.entity, requires_session=True)
    with pytest.raises(EntityReplaced, match="capture into another lake"):
        case.capture()


def test_everything_of_a_server_in_one_round(
    case: Case, spark: SparkSession, entity: str, tmp_path: Path
) -> None:
    topic = f"{entity}-topic"
    case.client.create_topic(topic, retention_ms=3_600_000)
    subscription = case.client.create_subscription(topic, "all")
    case.client.send(topic, Message(body=b"to all"))
    with case.client.receiver(subscription) as receiver:
        receiver.complete(*receiver.receive(1, wait_ms=5_000))
    done: dict[str, Captured] = {}
    failed: list[str] = []
    source = {"connection": case.source["connection"]}
    mine = tmp_path / "round"
    assert {topic, subscription, case.entity} <= set(everything(case.client))
    # Other tests have queues of their own on this server.
    round_of = capture_round(
        spark,
        source,
        str(mine),
        entities=[topic, subscription],
        on_captured=done.__setitem__,
        on_failure=lambda name, error: failed.append(f"{name}: {error}"),
    )
    assert (round_of, failed) == (2, [])
    assert (done[topic].messages, done[subscription].outcomes) == (1, 1)
    assert Lake(str(mine), subscription).files(MESSAGES) == []

    # What a subscription did to the messages of its topic is proved too.
    case.source, case.folder = source | {"entity": subscription}, str(mine)
    verdict = case.audit()
    assert verdict.passed, verdict.findings
    assert (verdict.messages, verdict.outcomes) == (1, 1)
