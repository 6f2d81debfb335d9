"""The calls behind the console: overview, changes, history, search, reasons, files."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from onibus import Bus, Message
from onibus.core.errors import InvalidArgument
from onibus.core.inspection import Filter, json_steps
from onibus.core.rules.rule import Rule, SqlFilter
from onibus.core.tally import WAIT_BOUNDS, percentile
from onibus.operation import history as history_module
from onibus.operation.figures import KnownFigures, figures_of
from onibus.operation.history import History
from onibus.protocols.http.console import pages
from onibus.security.keys import Keyring
from tests.bus_helpers import ManualClock, run, until
from tests.server.http_helpers import KEYS, serving, token


async def make(bus: Bus) -> None:
    for name in ("orders", "orders-eu", "jobs"):
        await bus.create_queue(name)
    await bus.create_topic("news")
    await bus.create_subscription("news", "all")


@run
async def test_an_overview_is_filtered_sorted_and_paged() -> None:
    bus = await Bus.ephemeral()
    await make(bus)
    await bus.send_batch("jobs", [Message(body=b"x") for _ in range(5)])
    async with bus.receiver("jobs") as receiver:
        await receiver.dead_letter((await receiver.receive(1))[0])
    async with serving(bus=bus) as client:
        everything = await client.do("GET", "/overview")
        names = [row["name"] for row in everything["rows"]]
        assert names == sorted(names)
        assert names[-1] == "orders-eu"
        assert everything["count"] == 5
        assert everything["total"]["active"] == 4
        assert everything["total"]["dead_lettered"] == 1
        assert all(store["is_up"] for store in everything["stores"])
        assert everything["node"]["ready"]
        assert everything["node"]["connections"] >= 1
        assert everything["alarms"] == 0
        found = await client.do("GET", "/overview?search=ORDERS&kind=queue&start=1&limit=1")
        assert [row["name"] for row in found["rows"]] == ["orders-eu"]
        assert found["count"] == 2
        found = await client.do("GET", "/overview?sort=active")
        assert found["rows"][0]["name"] == "jobs"
        assert found["rows"][0]["oldest_ms"] > 0
        found = await client.do("GET", "/overview?sort=oldest")
        assert [row["name"] for row in found["rows"][:2]] == ["jobs", "news"]
        found = await client.do("GET", "/overview?only=dead-lettered")
        assert [row["name"] for row in found["rows"]] == ["jobs"]
        assert (await client.do("GET", "/overview?only=limited"))["count"] == 0
        await client.refused(400, "invalid-argument", "GET", "/overview?sort=size")


@run
async def test_figures_count_what_is_left() -> None:
    async with Bus.ephemeral() as bus:
        await make(bus)
        await bus.send_batch("jobs", [Message(body=b"x")] * 3)
        due = int(time.time() * 1_000) + 3_600_000
        await bus.schedule("news", Message(body=b"x"), due)
        async with bus.receiver("jobs") as receiver:
            first, second, third = await receiver.receive(3)
            await receiver.complete(first)
            await receiver.dead_letter(second)
            await receiver.defer(third)
        figures = figures_of(bus.broker.find("jobs"))
        assert (figures.active, figures.deferred, figures.dead_lettered) == (0, 1, 1)
        assert (figures.gone, figures.accepted) == (1, 3)
        assert figures.size_bytes > 0
        assert figures_of(bus.broker.find("news")).scheduled == 1
        for state in ("deferred", "dead-lettered"):
            assert await bus.purge("jobs", Filter(state=state)) == 1
        figures = figures_of(bus.broker.find("jobs"))
        assert (figures.active, figures.deferred, figures.dead_lettered) == (0, 0, 0)
        assert figures.gone == 3


@run
async def test_changes_of_watched_entities_are_streamed() -> None:
    bus = await Bus.ephemeral()
    await make(bus)
    async with serving(bus=bus) as client:
        body = {"names": ["jobs", "orders", "nothing"]}
        async with client.http.stream("POST", "/v1/overview/watch", json=body) as stream:
            lines = (json.loads(line) async for line in stream.aiter_lines() if line)
            first = [await anext(lines) for _ in range(3)]
            assert [row["name"] for row in first] == body["names"]
            assert first[2]["deleted"]
            await client.send("jobs", "a", "b")
            row = await anext(lines)
            assert row["name"] == "jobs"
            while row.get("active", 0) < 2:
                row = await anext(lines)
            await client.do("DELETE", "/queues/orders")
            assert await anext(lines) == {"name": "orders", "deleted": True}


@run
async def test_changes_of_one_entity_are_streamed() -> None:
    bus = await Bus.ephemeral()
    await make(bus)
    async with serving(bus=bus) as client:
        async with client.http.stream("POST", "/v1/entities/jobs/watch", json={}) as stream:
            lines = (json.loads(line) async for line in stream.aiter_lines() if line)
            assert (await anext(lines))["status"] == "active"
            await client.do("PATCH", "/queues/jobs", {"status": "send-disabled"})
            row = await anext(lines)
            while row["status"] == "active":
                row = await anext(lines)
            assert row["status"] == "send-disabled"
            await client.do("DELETE", "/queues/jobs")
            while "deleted" not in row:
                row = await anext(lines)
            assert row == {"name": "jobs", "deleted": True}
        await client.refused(404, "entity-not-found", "POST", "/entities/none/watch", {})


@run
async def test_history_keeps_busy_entities_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history_module, "POINTS", 5)
    monkeypatch.setattr(history_module, "RINGS_MAX", 2)
    async with Bus.ephemeral() as bus:
        for name in ("a", "b", "c", "idle"):
            await bus.create_queue(name)
        history = History(bus.broker, KnownFigures())
        find = bus.broker.find
        await history.sample()
        for sample in range(8):
            for name in ("a", "b", "c") if sample == 0 else ("a", "b"):
                await bus.send_batch(name, [Message(body=b"x")] * 20)
            # Whether an entity was used is known by the millisecond.
            await asyncio.sleep(0.002)
            await history.sample()
        points = history.points(find("a"))
        assert points.times == sorted(points.times)
        assert len(points.times) == len(points.active) == len(points.accepted) <= 6
        assert points.active[-1] == 160
        assert points.accepted[-1] > 0
        accepted, gone = history.rates(find("a"))
        assert accepted > 0 == gone
        assert history.depths(find("idle"), 30) == []
        assert set(history.points(find("idle")).active) == {0}
        kept = [name for name in ("a", "b", "c", "idle") if history.depths(find(name), 30)]
        assert kept == ["a", "b"]


@run
async def test_a_subscription_has_a_history_of_what_its_rules_select() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_topic("news")
        await bus.create_subscription("news", "all")
        rules = [Rule("eu", SqlFilter("region = 'eu'"))]
        await bus.create_subscription("news", "eu", rules=rules)
        history = History(bus.broker, KnownFigures())
        for _ in range(2):
            for region in ("eu", "us", "us"):
                await bus.send("news", Message(body=b"x", properties={"region": region}))
            await history.sample()
        for name, count in (("all", 3), ("eu", 1)):
            entity = bus.broker.find(f"news/subscriptions/{name}")
            assert figures_of(entity).accepted == 2 * count
            assert history.rates(entity)[0] == count
            assert history.points(entity).active == [count, 2 * count]


@run
async def test_a_history_has_the_changes_that_time_brings() -> None:
    clock = ManualClock()
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("jobs", default_time_to_live_ms=30_000)
        history = History(bus.broker, KnownFigures())
        await history.sample()
        await bus.send_batch("jobs", [Message(body=b"x")] * 3)
        await history.sample()
        clock.advance(60_000)
        # Time passes for a queue that no client uses.
        await until(lambda: figures_of(bus.broker.find("jobs")).active == 0)
        await history.sample()
        assert history.points(bus.broker.find("jobs")).active[-2:] == [3, 0]


@run
async def test_known_figures_are_those_that_are_counted(tmp_path: Path) -> None:
    async with Bus.open(tmp_path / "data") as bus:
        await bus.create_queue("jobs", enable_partitioning=True)
        await bus.create_topic("news")
        known = KnownFigures()
        entities = bus.broker.namespace.entities

        def check() -> None:
            for entity in entities.values():
                assert known.of(entity) == figures_of(entity)
                assert known.of(entity) is known.of(entity)
                assert known.oldest_ms(entity) == KnownFigures().oldest_ms(entity)

        check()
        await bus.create_subscription("news", "all")
        check()
        await bus.send_batch("jobs", [Message(body=b"x")] * 20)
        await bus.send("news", Message(body=b"x"))
        check()
        async with bus.receiver("jobs") as receiver:
            for settle in (receiver.complete, receiver.defer, receiver.dead_letter):
                (held,) = await receiver.receive(1)
                check()
                await settle(held)
                check()
            waiting = asyncio.create_task(receiver.receive(100, wait_ms=10_000))
            await until(waiting.done)
            waiting = asyncio.create_task(receiver.receive(1, wait_ms=60_000))
            await until(lambda: figures_of(entities["jobs"]).receivers == 1)
            check()
            waiting.cancel()
        await bus.purge("jobs", Filter(state="deferred"))
        check()
        # A disk that hangs, and a partition that is closed and opened again.
        store = entities["jobs"].partitions[0].store
        store.stalled = "its disk does not respond"
        assert known.of(entities["jobs"]).offline == 16
        store.stalled = ""
        check()
        core, entities["jobs"].partitions[3].core = entities["jobs"].partitions[3].core, None
        assert known.of(entities["jobs"]).offline == 1
        entities["jobs"].partitions[3].core = core
        check()
        await bus.delete_queue("jobs")
        known.keep_only([one.incarnation for one in entities.values()])
        check()


def test_percentiles_of_waits_are_bounds_of_their_classes() -> None:
    assert percentile([], 0.5) is None
    counts = [0] * (len(WAIT_BOUNDS) + 1)
    assert percentile(counts, 0.99) is None
    counts[WAIT_BOUNDS.index(10)] = 98
    counts[-2] = 1
    assert percentile(counts, 0.5) == 10
    assert percentile(counts, 0.98) == 10
    assert percentile(counts, 0.999) == WAIT_BOUNDS[-1]
    assert all(high <= max(low + 1, low * 1.2) for low, high in pairwise(WAIT_BOUNDS))


@run
async def test_dwell_is_the_time_from_enqueue_to_the_first_delivery() -> None:
    clock = ManualClock()
    async with Bus.ephemeral(clock=clock) as bus:
        await bus.create_queue("jobs")
        await bus.create_queue("groups", fifo=True)
        history = History(bus.broker, KnownFigures())
        await history.sample()
        await bus.send_batch("jobs", [Message(body=b"x")] * 10)
        await bus.send("groups", Message(body=b"x", message_id="a", session_id="a"))
        clock.advance(5_000)
        async with bus.receiver("jobs") as receiver:
            await receiver.complete(*await receiver.receive(9))
            (last,) = await receiver.receive(1)
            await receiver.abandon(last)
            await history.sample()
            points = history.points(bus.broker.find("jobs"))
            assert points.dwell_p50_ms[-1] == points.dwell_p99_ms[-1] == _bound(5_000)
            clock.advance(60_000)
            # A second delivery says nothing about how long messages wait.
            await receiver.complete(*await receiver.receive(1))
            await bus.send("jobs", Message(body=b"x"))
            clock.advance(10)
            await receiver.receive(1)
            await history.sample()
            points = history.points(bus.broker.find("jobs"))
            assert points.dwell_p99_ms[-1] == _bound(10)
            await history.sample()
            points = history.points(bus.broker.find("jobs"))
            assert points.dwell_p99_ms[-1] is None
            assert len(points.dwell_p99_ms) == len(points.times)
        assert sum(bus.broker.find("jobs").tally.waits.counts) == 11


def _bound(ms: int) -> int:
    return min(bound for bound in WAIT_BOUNDS if bound >= ms)


@run
async def test_noisy_groups_come_first() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("jobs", fair_delivery=True)
    loud = [Message(body=b"x", partition_key="loud") for _ in range(60)]
    quiet = [Message(body=b"x", partition_key="quiet") for _ in range(2)]
    await bus.send_batch("jobs", [*quiet, *loud])
    async with serving(bus=bus) as client:
        path = "/entities/jobs/groups"
        assert await client.do("GET", path) == {"groups": [], "count": 0}
        async with bus.receiver("jobs") as receiver:
            await receiver.receive(42)
            found = await client.do("GET", path)
            assert found["count"] == 2
            assert [(one["group"], one["in_flight"]) for one in found["groups"]] == [
                ("loud", 40),
                ("quiet", 2),
            ]
            assert [one["noisy"] for one in found["groups"]] == [True, False]
        await client.do("PUT", "/queues/plain", {})
        assert (await client.do("GET", "/entities/plain/groups"))["groups"] == []


@run
async def test_a_search_looks_in_steps_and_ends_with_everything_found() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders", enable_partitioning=True)
    wanted = []
    for at in range(1_000):
        field = {"customer": {"ids": [at % 10, at]}, "name": f"n{at % 7}"}
        if at % 10 == 3:
            wanted.append(str(at))
        body = json.dumps(field).encode()
        await bus.send("orders", Message(body=body, message_id=str(at), partition_key=str(at)))
    async with serving(bus=bus) as client:

        async def search(**where: Any) -> list[str]:
            found: list[str] = []
            start: int | None = 0
            steps = 0
            while start is not None:
                page = await client.on(
                    "orders", "search", start=start, limit=7, looks=100, where=where
                )
                found += [one["message_id"] for one in page["messages"]]
                assert len(page["messages"]) <= 7
                start, steps = page["next"], steps + 1
            assert steps > 5
            return found

        assert sorted(await search(body_path="customer.ids[0]", body_equals="3")) == sorted(wanted)
        assert await search(body_path="customer.ids[1]", body_equals="999") == ["999"]
        assert len(await search(body_path="name", body_equals="n0")) == 143
        assert len(await search(body_path="customer")) == 1_000
        for missing in ("name[0]", "customer.nothing", "customer.ids[2]"):
            assert await search(body_path=missing) == []
        path = "/entities/orders/search"
        for where in ({"body_path": "a..b"}, {"body_path": ""}, {"body_equals": "1"}):
            await client.refused(400, "invalid-argument", "POST", path, {"where": where})
        await client.refused(400, "invalid-argument", "POST", path, {"looks": 1_000_000})


@run
async def test_a_tail_shows_what_arrives_and_changes_nothing() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders", enable_partitioning=True)
    await bus.send("orders", Message(body=b"before"))
    async with serving(bus=bus) as client:
        where = {"body_contains": "wanted"}
        path = "/v1/entities/orders/tail"
        async with client.http.stream("POST", path, json={"where": where}) as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == ""  # it follows from here on
            for at in range(20):
                await client.send("orders", f"wanted {at}", f"other {at}", partition_key=str(at))
            bodies: set[str] = set()
            while len(bodies) < 20:
                if line := await anext(lines):
                    bodies.add(json.loads(line)["body"])
            assert bodies == {f"wanted {at}" for at in range(20)}
        assert bus.queue("orders").held_count == 0
        await client.refused(404, "entity-not-found", "POST", "/entities/none/tail", {"where": {}})


@run
async def test_a_stream_ends_when_its_key_is_deleted() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    keys = Keyring(KEYS)
    async with serving(keys=keys, bus=bus) as client:
        for name, key, path, body in (
            ("listener", "listen-key", "/v1/entities/orders/tail", {"where": {}}),
            ("listener", "listen-key", "/v1/entities/orders/watch", {}),
            ("watcher", "monitor-key", "/v1/overview/watch", {"names": ["orders"]}),
        ):
            headers = token("sb://localhost/", name, key)
            async with client.http.stream("POST", path, json=body, headers=headers) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                keys.replace([one for one in KEYS if one.name != name])
                assert [line async for line in lines] == []
            keys.replace(KEYS)


@run
async def test_dead_lettered_messages_are_counted_and_resubmitted_by_reason() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("jobs")
    await bus.send_batch("jobs", [Message(body=b"x") for _ in range(30)])
    async with bus.receiver("jobs") as receiver:
        for at, held in enumerate(await receiver.receive(30)):
            await receiver.dead_letter(held, reason=None if at == 0 else ("a", "b", "b")[at % 3])
    async with serving(bus=bus) as client:
        told = await client.do("GET", "/entities/jobs/dead-letters/reasons")
        assert told["complete"]
        counts = {one["reason"]: one["count"] for one in told["reasons"]}
        assert counts == {"b": 20, "a": 9, "": 1}
        done = await client.on("jobs", "dead-letters/resubmit", where={"dead_letter_reason": "a"})
        assert len(done["moved"]) == 9
        assert bus.queue("jobs").active_count == 9


@run
async def test_counting_reasons_leaves_marks_on_the_disk(tmp_path: Path) -> None:
    async with Bus.open(tmp_path / "data") as bus:
        await bus.create_queue("jobs")
        await bus.send_batch("jobs", [Message(body=b"x")] * 30)
        async with bus.receiver("jobs") as receiver:
            for at, held in enumerate(await receiver.receive(30)):
                await receiver.dead_letter(held, reason=("a", "b", "b")[at % 3])
    async with Bus.open(tmp_path / "data") as bus, serving(bus=bus) as client:
        told = await client.do("GET", "/entities/jobs/dead-letters/reasons")
        assert {one["reason"]: one["count"] for one in told["reasons"]} == {"b": 20, "a": 10}
        assert not bus.broker.find("jobs").partitions[0].online().subscription.marks.hot


def test_paths_to_fields_are_read_exactly() -> None:
    assert json_steps("a.b[0].c d") == ["a", "b", 0, "c d"]
    assert json_steps("[1][22]") == [1, 22]
    for wrong in ("", ".a", "a.", "a..b", "a[", "a[-1]", "a[01]", "a]b"):
        with pytest.raises(InvalidArgument):
            json_steps(wrong)


@run
async def test_a_browser_at_the_root_is_sent_to_the_console() -> None:
    async with serving() as client:
        response = await client.http.get("/", headers={"accept": "text/html,*/*;q=0.8"})
        assert (response.status_code, response.headers["location"]) == (302, "/console/")
        feed = await client.http.get("/")
        assert feed.status_code == 200
        assert "atom" in feed.headers["content-type"]


@run
async def test_the_files_of_the_console_are_small_and_allow_no_other_code() -> None:
    async with serving() as client:
        total = 0
        for name in ("", *pages._contents()):
            response = await client.http.get(f"/console/{name}")
            assert response.status_code == 200
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            total += len(response.content)
        assert total < 400_000
        for name in ("nothing.js", "..%2Fpages.py", "%2e%2e", "pages.py"):
            assert (await client.http.get(f"/console/{name}")).status_code == 404
        assert (await client.http.get("/console/about.json")).json()["login"] == "none"


@run
async def test_the_sessions_that_wait_longest_are_listed_in_slices() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders", requires_session=True, enable_partitioning=True)
    for at in range(500):
        await bus.send("orders", Message(body=b"x", session_id=f"Customer-{at:03}"))
    async with serving(bus=bus) as client:
        path = "/entities/orders/sessions"
        every = await client.do("GET", path)
        assert every["count"] == len(every["sessions"]) == 500
        found = await client.do("GET", f"{path}?limit=3")
        stamps = [one["oldest_enqueued_time_ms"] for one in found["sessions"]]
        assert stamps == sorted(one["oldest_enqueued_time_ms"] for one in every["sessions"])[:3]
        assert found["count"] == 500
        found = await client.do("GET", f"{path}?limit=3&search=cUSTOMER-07")
        assert len(found["sessions"]) == 3
        assert found["count"] == 10
        await client.refused(400, "invalid-argument", "GET", f"{path}?limit=0")
