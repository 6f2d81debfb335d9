"""Queues, topics, subscriptions and rules on the command line, in both forms."""

from __future__ import annotations

from tests.cli.conftest import Onibus


def test_queues(onibus: Onibus) -> None:
    assert onibus.shown("queue", "create", "orders", "--detect-duplicates", "-s",
                        "lock_duration_ms=30s") == "queue orders created\n"  # fmt: skip
    [made] = onibus.told("queue", "create", "big", "--partitioned", "--sessions")
    assert made["settings"]["enable_partitioning"]
    assert made["settings"]["requires_session"]
    header, first, second = onibus.shown("queue", "list").splitlines()
    assert header.split()[:2] == ["name", "active"]
    assert (first.split()[0], second.split()[0]) == ("big", "orders")
    assert [one["name"] for one in onibus.told("queue", "list")] == ["big", "orders"]
    shown = onibus.shown("queue", "show", "orders")
    assert "30000 (30.0 s)" in shown
    onibus.run("queue", "update", "orders", "--set", "max_delivery_count=3", "-s",
               "default-time-to-live-ms=7d")  # fmt: skip
    [orders] = onibus.told("queue", "show", "orders")
    assert orders["settings"]["max_delivery_count"] == 3
    assert orders["settings"]["default_time_to_live_ms"] == 7 * 86_400_000
    onibus.run("queue", "update", "orders", "-s", "default_time_to_live_ms=never")
    assert onibus.told("queue", "show", "orders")[0]["settings"]["default_time_to_live_ms"] is None
    assert onibus.told("queue", "delete", "orders", "--yes") == [{"deleted": "orders"}]
    assert [one["name"] for one in onibus.told("queue", "list")] == ["big"]


def test_a_fifo_queue(onibus: Onibus) -> None:
    onibus.run("queue", "create", "q", "--fifo", "-s", "content_based_deduplication=true")
    for expected in (None, 1):
        [sent] = onibus.told("send", "q", "same", "--session", "g", "--no-make-id")
        assert sent["duplicate_of"] == expected


def test_topics_subscriptions_and_rules(onibus: Onibus) -> None:
    onibus.run("topic", "create", "news", "--detect-duplicates")
    assert onibus.shown("subscription", "create", "news", "red", "--filter", "color = 'red'") == (
        "subscription news/subscriptions/red created\n"
    )
    onibus.run("topic", "update", "news", "-s", "max_size_bytes=1000000")
    assert onibus.told("topic", "list")[0]["settings"]["max_size_bytes"] == 1_000_000
    assert "news/subscriptions/red" in onibus.shown("topic", "show", "news")
    assert "news" in onibus.shown("topic", "list")
    onibus.run("rule", "create", "news", "red", "big", "--correlation", "subject=big",
               "--correlation", "n=3", "--action", "SET size = 'big'")  # fmt: skip
    onibus.run("rule", "create", "news", "red", "never", "--none")
    listed = onibus.told("rule", "list", "news", "red")
    assert [one["name"] for one in listed] == ["$Default", "big", "never"]
    assert listed[1]["filter"]["properties"] == {"n": 3}
    assert "color = 'red'" in onibus.shown("rule", "list", "news", "red")
    onibus.run("rule", "update", "news", "red", "never", "--sql", "n > 5")
    assert "n > 5" in onibus.shown("rule", "show", "news", "red", "never")
    onibus.run("rule", "delete", "news", "red", "never")
    onibus.run("rule", "show", "news", "red", "never", code=1)
    onibus.run("subscription", "update", "news", "red", "-s", "max_delivery_count=2")
    [one] = onibus.told("subscription", "list", "news")
    assert (one["name"], one["settings"]["max_delivery_count"]) == ("news/subscriptions/red", 2)
    onibus.run("send", "news", "hello", "-p", "color=red")
    onibus.run("send", "news", "hello", "-p", "color=blue")
    assert onibus.told("subscription", "show", "news", "red")[0]["active_count"] == 1
    onibus.run("subscription", "delete", "news", "red", "--yes")
    onibus.run("topic", "delete", "news", "--yes")
    assert onibus.told("topic", "list") == []
