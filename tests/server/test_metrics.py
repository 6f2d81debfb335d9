"""Metrics of a real server: what was done over HTTP is what the pages say."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from onibus import Bus
from onibus.core.path import dead_letter, fan_out
from onibus.core.tally import BROKER_REASONS, BY_APPLICATION, Durations
from onibus.gateway import forwarding
from onibus.operation import collector
from onibus.operation.exposition import COUNTER
from onibus.operation.metrics import METRICS
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import AccessKey, Keyring
from onibus.security.rights import Right
from onibus.server.server import Server
from tests.bus_helpers import (
    MINUTE,
    Disks,
    ManualClock,
    get,
    get_one,
    keys_of,
    msg,
    pass_ms,
    pull,
    run,
    send,
)
from tests.server.web import ask, serving
from tests.source_tree import text_of

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(server: Server, path: str = "/metrics", **headers: str) -> Samples:
    """Return the samples of a page, as Prometheus's own parser reads them."""
    answer = await ask(server, "GET", path, headers=headers)
    assert answer.status_code == 200, answer.content
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every page be a new one."""
    monkeypatch.setattr(collector, "FRESH_SECONDS", 0.0)


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_every_metric_has_its_entry() -> None:
    page = text_of("docs/metrics.md")
    row = r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|"
    listed = re.findall(row, page, re.MULTILINE)
    known = {
        metric.name: (
            metric.kind,
            " ".join(metric.labels),
            " ".join(metric.objects),
            metric.help.replace("'", "").replace("`", ""),
        )
        for metric in METRICS
    }
    assert len(known) == len(METRICS)
    assert {
        name: (kind, *(cell.replace("'", "").replace("`", "").strip() for cell in cells))
        for name, kind, *cells in listed
    } == known


def test_names_are_as_prometheus_wants_them() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"onibus_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == COUNTER), metric.name


@run
async def test_what_was_done_is_counted() -> None:
    async with Bus.ephemeral() as bus, serving(bus) as server:
        settings = {"requires_duplicate_detection": True}
        await ask(server, "PUT", "/v1/queues/orders", settings)
        for message_id in ("1", "2", "3", "4", "1"):
            answer = await ask(
                server, "POST", "/v1/entities/orders/messages", {"message_id": message_id}
            )
            assert answer.status_code == 200
        wrong = await ask(server, "POST", "/v1/entities/nothing/messages", {})
        assert wrong.status_code == 404
        receiver = bus.receiver("orders")
        first, second, third = await receiver.receive(3)
        await receiver.complete(first)
        await receiver.abandon(second)
        await receiver.dead_letter(third, reason="my own")
        await bus.schedule("orders", msg(), int(time.time() * 1000) + MINUTE)
        samples = await scrape(server)
    states = {"active": 2, "locked": 0, "deferred": 0, "scheduled": 1, "deadletter": 1}
    for state, count in states.items():
        assert value(samples, "onibus_queue_messages", state=state) == count, state
    expected = {
        "onibus_messages_accepted_total": 5,
        "onibus_duplicates_dropped_total": 1,
        "onibus_messages_delivered_total": 3,
        "onibus_completed_total": 1,
        "onibus_abandoned_total": 1,
        "onibus_dedup_ids": 4,
    }
    for name, count in expected.items():
        assert value(samples, name) == count, name
    assert value(samples, "onibus_deadlettered_total", reason=BY_APPLICATION) == 1
    assert value(samples, "onibus_http_requests_total", status="2xx") == 6
    assert value(samples, "onibus_http_requests_total", status="4xx") == 1
    assert value(samples, "onibus_http_connections_opened_total") == 8
    assert value(samples, "onibus_http_connections") == 1
    assert value(samples, "onibus_http_request_seconds_count") == 7
    assert value(samples, "onibus_commit_seconds_count", store="main") >= 7
    assert value(samples, "onibus_store_up", store="namespace") == 1
    assert value(samples, "onibus_entities", kind="queue") == 1


@run
async def test_ages_sizes_sessions_readers_and_claims() -> None:
    clock = ManualClock()
    async with Disks().bus(clock) as bus, serving(bus) as server:
        await bus.create_queue("plain")
        await bus.create_queue("s", requires_session=True)
        await bus.create_reader("plain", "audit")
        await send(bus, "plain", "a", "b", "c")
        await send(bus, "s", "x", session_id="one")
        await send(bus, "s", "y", session_id="two")
        assert await bus.claim("plain", "spark", 1) is not None
        await pass_ms(bus, clock, 5_000)
        await bus.accept_session("s", "one")
        detailed = await scrape(server, "/metrics/per-object")
        totals = await scrape(server)
    labels = {"entity": "plain", "partition": "0"}
    assert value(detailed, "onibus_oldest_message_age_seconds", **labels) == 5
    assert value(detailed, "onibus_size_bytes", **labels) > 0
    assert value(detailed, "onibus_reader_lag_messages", reader="audit", **labels) == 3
    assert value(detailed, "onibus_claims", entity="plain", reader="spark") == 1
    assert value(detailed, "onibus_claimed_messages", entity="plain", reader="spark") == 1
    assert value(detailed, "onibus_oldest_claim_age_seconds", entity="plain", reader="spark") == 5
    assert value(detailed, "onibus_sessions_active", entity="s", partition="0") == 1
    assert value(detailed, "onibus_oldest_message_age_seconds", entity="s", partition="0") == 5
    assert value(totals, "onibus_queue_messages", state="active") == 4
    assert value(totals, "onibus_queue_messages", state="locked") == 1
    assert not any(dict(labels).get("entity") for _, labels in totals)


@run
async def test_topics_are_counted_once_and_their_subscriptions_each() -> None:
    async with Bus.ephemeral() as bus, serving(bus) as server:
        await bus.create_topic("t")
        await bus.create_subscription("t", "a")
        await bus.create_subscription("t", "b")
        await send(bus, "t", "1", "2")
        await get(bus, "t/subscriptions/a", delete=True)
        detailed = await scrape(server, "/metrics/per-object")
    assert value(detailed, "onibus_messages_accepted_total", entity="t") == 2
    assert value(detailed, "onibus_completed_total", entity="t/subscriptions/a") == 2
    assert value(detailed, "onibus_completed_total", entity="t/subscriptions/b") == 0
    active = {"state": "active", "partition": "0"}
    assert value(detailed, "onibus_queue_messages", entity="t/subscriptions/a", **active) == 0
    assert value(detailed, "onibus_queue_messages", entity="t/subscriptions/b", **active) == 2


@run
async def test_sums_do_not_fall_when_an_entity_or_a_store_goes() -> None:
    clock = ManualClock()
    disks = Disks()
    async with disks.bus(clock, "one", "two") as bus, serving(bus) as server:
        await bus.create_queue("gone")
        await bus.create_queue("wide", enable_partitioning=True)
        await send(bus, "gone", "a", "b")
        await send(bus, "wide", *[str(n) for n in range(16)])
        await bus.delete_queue("gone")
        pull(bus, "one")
        await send(bus, "wide", *[str(n) for n in range(16)])
        down = await scrape(server)
        await pass_ms(bus, clock, 2_000)
        up = await scrape(server)
    assert value(down, "onibus_messages_accepted_total") == 34
    assert value(down, "onibus_offline_partitions") == 8
    assert value(down, "onibus_store_up", store="one") == 0
    assert value(down, "onibus_alarms_total") == 1
    assert value(down, "onibus_partition_failover_total") >= 1
    assert value(up, "onibus_messages_accepted_total") == 34
    assert value(up, "onibus_store_up", store="one") == 1
    assert value(up, "onibus_queue_messages", state="active") == 32


@run
async def test_metrics_are_for_keys_that_may_monitor() -> None:
    async with Bus.ephemeral() as bus:
        keys = KeptKeys(bus, Keyring())
        for name, right in (("watcher", Right.MONITOR), ("owner", Right.MANAGE)):
            await keys.create(AccessKey(name=name, primary="", rights=frozenset([right])))
        for name in ("sender", "listener"):
            right = Right.SEND if name == "sender" else Right.LISTEN
            await keys.create(AccessKey(name=name, primary="", rights=frozenset([right])))
        await bus.create_queue("secret-project")
        async with Server(bus, keys, http_port=0) as server:
            for path, named in (("/metrics", False), ("/metrics/per-object", True)):
                nobody = await ask(server, "GET", path)
                assert (nobody.status_code, b"secret-project" in nobody.content) == (401, False)
                for name, expected in (("sender", 403), ("listener", 403), ("owner", 200)):
                    assert (await _shown(server, keys, name, path)).status_code == expected, name
                answer = await _shown(server, keys, "watcher", path)
                assert (answer.status_code, b"secret-project" in answer.content) == (200, named)
            # It reads metrics, and nothing else.
            for path in ("/v1/queues", "/v1/alarms", "/v1/keys"):
                assert (await _shown(server, keys, "watcher", path)).status_code == 403


async def _shown(server: Server, keys: KeptKeys, name: str, path: str) -> httpx.Response:
    """Ask as Prometheus does: with a bearer token of a key."""
    token = keys.token("", name, "primary", int(time.time()) + 60)
    return await ask(server, "GET", path, headers={"authorization": f"Bearer {token}"})


@run
async def test_reasons_of_clients_do_not_become_labels() -> None:
    async with Bus.ephemeral() as bus, serving(bus) as server:
        await bus.create_queue("q", max_delivery_count=1)
        await send(bus, "q", "a", "b", "c")
        receiver = bus.receiver("q")
        for reason in ("password=hunter2", "anything"):
            await receiver.dead_letter(await get_one(bus, "q"), reason=reason)
        await receiver.abandon(await get_one(bus, "q"))
        samples = await scrape(server, "/metrics/per-object")
    reasons = {
        dict(labels)["reason"]: count
        for (name, labels), count in samples.items()
        if name == "onibus_deadlettered_total"
    }
    assert reasons == {BY_APPLICATION: 2, dead_letter.TOO_MANY_DELIVERIES: 1}


def test_reasons_of_the_broker_are_known() -> None:
    own = {dead_letter.EXPIRED, dead_letter.TOO_MANY_DELIVERIES, forwarding.TOO_MANY_HOPS}
    assert own | {fan_out.FILTER_FAILED, fan_out.NO_SESSION, "invalid-operation"} <= BROKER_REASONS


def test_a_duration_on_a_bound_is_below_it() -> None:
    durations = Durations()
    for seconds in (0.0005, 0.0006, 1_000.0):
        durations.note(seconds)
    assert (durations.counts[0], durations.counts[1], durations.counts[-1]) == (1, 1, 1)
    more = Durations()
    more.add(durations)
    assert (more.counts, more.total) == (durations.counts, durations.total)


@run
async def test_names_with_quotes_and_backslashes_are_read_as_they_are() -> None:
    async with Bus.ephemeral() as bus, serving(bus) as server:
        await bus.create_queue("q")
        odd = 'a "quoted" \\ reader\nof two lines'
        await bus.create_reader("q", odd)
        samples = await scrape(server, "/metrics/per-object")
    assert value(samples, "onibus_reader_lag_messages", entity="q", reader=odd, partition="0") == 0


@run
async def test_partitions_by_key_are_told_apart() -> None:
    async with Bus.ephemeral() as bus, serving(bus) as server:
        await bus.create_queue("wide", enable_partitioning=True)
        await send(bus, "wide", "x", "y", partition_key=keys_of(7, 1)[0])
        samples = await scrape(server, "/metrics/per-object")
    active = {"entity": "wide", "state": "active"}
    assert value(samples, "onibus_queue_messages", partition="7", **active) == 2
    assert value(samples, "onibus_queue_messages", partition="6", **active) == 0
