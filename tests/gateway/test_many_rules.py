"""Rules are compiled once: a subscription may have thousands, and each change is small (B3)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from onibus.core.rules import rule as rules_module
from tests.bus_helpers import Disks, ManualClock, run, send
from tests.gateway.topic_helpers import sql, there


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the rules that are compiled, and the threads that do it."""
    seen: list[tuple[str, str]] = []
    original: Any = rules_module.compile_rule

    def counted(rule: Any) -> Any:
        seen.append((rule.name, threading.current_thread().name))
        return original(rule)

    monkeypatch.setattr(rules_module, "compile_rule", counted)
    return seen


@pytest.mark.promise("B3", "P11")
@run
async def test_a_change_compiles_only_the_rule_that_changes(
    clock: ManualClock, compiled: list[tuple[str, str]]
) -> None:
    async with Disks().bus(clock) as bus:
        await bus.create_topic("t", enable_partitioning=True)
        name = await bus.create_subscription(
            "t", "s", rules=[sql(f"r{at}", f"n = {at}") for at in range(50)]
        )
        assert sorted(one for one, _ in compiled) == sorted(f"r{at}" for at in range(50))
        loop_thread = threading.current_thread().name
        assert loop_thread not in {thread for _, thread in compiled}
        compiled.clear()
        await bus.create_rule(name, sql("more", "n = 100"))
        await send(bus, "t", "x", properties={"n": 100}, partition_key="k")
        await bus.change_rule(name, sql("r3", "n = 200"))
        await send(bus, "t", "y", properties={"n": 200}, partition_key="k")
        await bus.delete_rule(name, "r4")
        await bus.change_subscription(name, max_delivery_count=3)
        await send(bus, "t", "z", properties={"n": 4}, partition_key="k")
        assert [one for one, _ in compiled] == ["more", "r3"]
        assert there(bus, name) == ["x", "y"]


@pytest.mark.promise("B3")
@run
async def test_an_opened_bus_compiles_rules_on_the_threads_of_its_stores(
    clock: ManualClock, compiled: list[tuple[str, str]]
) -> None:
    disks = Disks()
    async with disks.bus(clock) as bus:
        await bus.create_topic("t")
        name = await bus.create_subscription("t", "s", rules=[sql("r", "n = 1")])
    compiled.clear()
    async with disks.bus(clock) as bus:
        await send(bus, "t", "x", properties={"n": 1})
        assert there(bus, name) == ["x"]
    assert len(compiled) == 1
    assert compiled[0][1] != threading.current_thread().name
