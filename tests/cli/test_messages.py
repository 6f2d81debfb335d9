"""Messages on the command line: sent, received, peeked, settled and tidied up."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from onibus import Filter, Message, Rule, SqlFilter
from onibus.cli.top import look_at_all, row_of
from tests.cli.conftest import Onibus
from tests.client.server_helpers import ServerThread


@pytest.fixture
def queue(onibus: Onibus) -> Onibus:
    onibus.run("queue", "create", "q", "--detect-duplicates")
    return onibus


@pytest.mark.promise("X1", "X9")
def test_a_duplicate_is_sent_and_seen(queue: Onibus) -> None:
    assert queue.shown("send", "q", "three apples", "--id", "a") == "sent with sequence number 1\n"
    assert (
        queue.shown("send", "q", "three", "--id", "a")
        == "dropped: duplicate of sequence number 1\n"
    )
    assert queue.told("send", "q", "x", "--id", "a") == [{"sequence_number": 1, "duplicate_of": 1}]
    assert [one["duplicate_of"] for one in queue.told("duplicates", "q")] == [1, 1]
    header, first, _ = queue.shown("duplicates", "q").splitlines()
    assert "duplicate of" in header
    assert first.split()[0] == "a"


def test_what_is_sent_has_what_was_given(queue: Onibus) -> None:
    queue.run("send", "q", "[b]bold[/b]", "--subject", "s", "--session", "x", "--ttl", "10m",
              "-p", "n=3", "-p", "t=text", "-p", 'quoted="3"')  # fmt: skip
    [message] = queue.told("peek", "q")
    assert message["properties"] == {"n": 3, "t": "text", "quoted": "3"}
    assert (message["subject"], message["time_to_live_ms"]) == ("s", 600_000)
    # Nothing in a body is taken for a command to the terminal.
    assert "[b]bold[/b]" in queue.shown("peek", "q")


def test_lines_of_a_file_and_of_the_standard_input(queue: Onibus, tmp_path: Path) -> None:
    lines = "".join(f"line {at}\n" for at in range(1_200))
    assert queue.told("send", "q", "--from", "-", given=lines) == [
        {"accepted": 1_200, "duplicates": 0}
    ]
    file = tmp_path / "lines"
    file.write_text("one\ntwo")
    assert queue.shown("send", "q", "--from", str(file)) == "2 sent, 0 dropped as duplicates\n"
    assert len(queue.told("peek", "q", "-n", "5000")) == 1_202
    [last] = queue.told("peek", "q", "--start", "1202")
    assert last["body"] == "two"


def test_what_was_peeked_can_be_sent_again(queue: Onibus, tmp_path: Path) -> None:
    queue.run("queue", "create", "copy")
    queue.run("send", "q", "a", "--subject", "s", "-p", "n=1")
    queue.run("send", "q", "b")
    file = tmp_path / "messages.jsonl"
    file.write_text("\n".join(json.dumps(one) for one in queue.told("peek", "q")))
    queue.run("send", "copy", "--from", str(file), "--json-lines")
    old, new = queue.told("peek", "q"), queue.told("peek", "copy")
    for one in (*old, *new):
        del one["enqueued_time_ms"]
    assert new == old
    file.write_text('{"body": 3}\n')
    assert "line 1" in queue.run("send", "q", "--from", str(file), "--json-lines", code=2).output


@pytest.mark.promise("X5")
def test_peek_with_filters(queue: Onibus) -> None:
    for at in range(3):
        queue.run("send", "q", f"body {at}", "--session", f"s{at}", "-p", f"n={at}")
    for flags, expected in (
        (["--sql", "n > 0"], ["body 1", "body 2"]),
        (["--contains", "y 2"], ["body 2"]),
        (["--session", "s0"], ["body 0"]),
        (["--since", "1h"], ["body 0", "body 1", "body 2"]),
        (["--before", "2020-01-01T00:00Z"], []),
        (["--state", "deferred"], []),
    ):
        assert [one["body"] for one in queue.told("peek", "q", *flags)] == expected, flags
    queue.run("peek", "q", "--state", "asleep", code=2)
    queue.run("peek", "q", "--since", "yesterday", code=2)


def test_receiving_completes_unless_told_otherwise(queue: Onibus) -> None:
    queue.run("send", "q", "--from", "-", given="a\nb\nc\nd\ne\n")
    assert "a" in queue.shown("receive", "q")
    [left] = queue.told("receive", "q", "--then", "leave")
    assert queue.told("settle", "q", "renew", left["token"]) == [{"settled": 1, "verb": "renew"}]
    assert queue.shown("settle", "q", "complete", left["token"]) == "complete: 1\n"
    assert "The lock expired" in queue.run("settle", "q", "complete", left["token"], code=1).stderr
    [deferred] = queue.told("receive", "q", "--then", "defer")
    [found] = queue.told("receive", "q", "--deferred", str(deferred["sequence_number"]))
    assert found["body"] == "c"
    queue.run("receive", "q", "--then", "abandon", "--delay", "1h")
    assert [one["body"] for one in queue.told("receive", "q", "-n", "9", "--delete")] == ["e"]
    assert queue.told("receive", "q", "--wait", "50ms") == []
    queue.run("receive", "q", "--then", "eat", code=2)


@pytest.mark.promise("X6")
def test_dead_letters(queue: Onibus) -> None:
    queue.run("send", "q", "--from", "-", given="a\nb\n")
    queue.run("receive", "q", "-n", "2", "--then", "dead-letter", "--reason", "bad")
    listed = queue.told("dead-letters", "list", "q")
    assert [(one["body"], one["dead_letter_reason"]) for one in listed] == [
        ("a", "bad"),
        ("b", "bad"),
    ]
    assert "bad" in queue.shown("dead-letters", "list", "q")
    planned = queue.told("dead-letters", "resubmit", "q", "--all", "--dry-run")
    assert [one["new_sequence_number"] for one in planned] == [None, None]
    assert "would be resubmitted" in queue.shown(
        "dead-letters", "resubmit", "q", "--all", "--dry-run"
    )
    [moved] = queue.told("dead-letters", "resubmit", "q", "1")
    assert moved["new_sequence_number"] == 3
    queue.run("dead-letters", "resubmit", "q", "--contains", "b")
    assert [one["body"] for one in queue.told("peek", "q")] == ["a", "b"]
    assert queue.told("dead-letters", "list", "q") == []
    queue.run("dead-letters", "resubmit", "q", code=2)


@pytest.mark.promise("X3", "S5")
def test_scheduled_and_deferred(queue: Onibus) -> None:
    queue.run("send", "q", "later", "--in", "1h", "--id", "m")
    queue.run("send", "q", "on its day", "--at", "2030-01-01T00:00:00Z")
    first, second = queue.told("scheduled", "list", "q")
    assert second["scheduled_enqueue_time_ms"] == 1_893_456_000_000
    assert "2030-01-01 00:00:00" in queue.shown("scheduled", "list", "q")
    assert len(queue.told("scheduled", "list", "q", "--id", "m")) == 1
    queue.run("scheduled", "cancel", "q", str(first["sequence_number"]))
    queue.run("scheduled", "cancel", "q", str(first["sequence_number"]), code=1)
    queue.run("send", "q", "now")
    queue.run("receive", "q", "--then", "defer")
    [deferred] = queue.told("deferred", "list", "q")
    assert "now" in queue.shown("deferred", "list", "q")
    queue.run("deferred", "undefer", "q", str(deferred["sequence_number"]))
    assert queue.told("receive", "q")[0]["body"] == "now"
    queue.run("send", "q", "x", "--in", "1h", "--at", "2030-01-01", code=2)


@pytest.mark.promise("X2")
def test_purge(queue: Onibus) -> None:
    queue.run("send", "q", "--from", "-", given="a\nb\nc\n")
    assert queue.told("purge", "q", "--contains", "a", "--yes") == [{"purged": 1}]
    queue.run("purge", "q", code=2)
    assert queue.shown("purge", "q", "--yes", "--forget-ids") == "2 deleted\n"


@pytest.mark.promise("X8")
def test_sessions(onibus: Onibus) -> None:
    onibus.run("queue", "create", "q", "--sessions")
    onibus.run("send", "q", "a", "--session", "s")
    assert onibus.told("sessions", "q")[0]["ready_count"] == 1
    assert onibus.shown("sessions", "q").splitlines()[1].split()[0] == "s"
    assert onibus.told("receive", "q", "--session", "s")[0]["body"] == "a"
    onibus.run("send", "q", "b", "--session", "t")
    assert onibus.told("receive", "q", "--session", "")[0]["body"] == "b"
    assert "no-session" in onibus.run("receive", "q", "--session", "", code=1).stderr


def test_top(queue: Onibus) -> None:
    queue.run("topic", "create", "news")
    queue.run("subscription", "create", "news", "all")
    queue.run("queue", "create", "wide", "--partitioned")
    queue.run("send", "wide", "--from", "-", given="a\nb\n")
    queue.run("send", "q", "x", "--id", "1")
    queue.run("send", "q", "x", "--id", "1")
    looks = queue.told("top", "--looks", "2", "--interval", "0.2")
    assert len(looks) == 8
    last = {one["name"]: one for one in looks[4:]}
    assert (last["q"]["active"], last["q"]["duplicates"], last["q"]["in_per_s"]) == (1, 1, 0.0)
    assert 0 <= last["q"]["oldest_ms"] < 60_000
    assert (last["wide"]["active"], last["wide"]["state"]) == (2, "available")
    assert last["news/subscriptions/all"]["in_per_s"] == 0.0
    shown = queue.shown("top", "--looks", "1", "--interval", "0.2")
    assert "in/s" in shown
    assert "news/subscriptions/all" in shown


def test_rates_of_queues_topics_and_subscriptions(server: ServerThread) -> None:
    with server.client() as client:
        client.create_queue("q")
        client.create_topic("news")
        some = client.create_subscription("news", "some", rules=[Rule("n", SqlFilter("n < 6"))])
        looks = [look_at_all(client)]
        for entity in ("q", "news"):
            client.send_batch(entity, [Message(properties={"n": n}) for n in range(12)])
        client.schedule("q", Message(), int(time.time() * 1000) + 3_600_000)
        for entity in ("q", some):
            with client.receiver(entity) as receiver:
                one, two, three = receiver.receive(3)
                receiver.complete(one)
                receiver.dead_letter(two)
                receiver.abandon(three)
        client.purge(some, Filter(state="dead-lettered"))
        looks.append(look_at_all(client))

    def came_and_went(name: str) -> tuple[int | None, int | None]:
        before, after = (look[name] for look in looks)
        found = row_of(before, after)
        seconds = after.at - before.at
        incoming, outgoing = (found["in_per_s"], found["out_per_s"])
        return round(incoming * seconds), None if outgoing is None else round(outgoing * seconds)

    assert came_and_went("q") == (13, 1)
    assert came_and_went("news") == (12, None)
    assert came_and_went(some) == (6, 2)


@pytest.mark.promise("B10")
def test_noisy_groups_are_in_the_description_and_in_top(
    queue: Onibus, server: ServerThread
) -> None:
    queue.run("queue", "create", "fair", "-s", "fair_delivery=true")
    lines = "\n".join(["x"] * 40)
    queue.run("send", "fair", "--from", "-", "--key", "noisy", given=lines)
    assert queue.told("queue", "show", "fair")[0]["noisy_groups"] == []
    with server.client() as client, client.receiver("fair") as receiver:
        receiver.receive(30)
        queue.run("send", "fair", "y", "--key", "quiet")
        (first,) = receiver.receive(1)
        assert first.message.partition_key == "quiet"
        shown = {"group": "noisy", "in_flight_count": 30, "passed_count": 10}
        assert queue.told("queue", "show", "fair")[0]["noisy_groups"] == [shown]
        looks = {one["name"]: one["noisy"] for one in queue.told("top", "--looks", "1")}
        assert looks == {"fair": "noisy", "q": None}
