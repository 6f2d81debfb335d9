"""Topics against a model: random commands, restarts and crashes, then both are compared."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from onibus import Bus, Filter, Rule, Sent
from onibus.core.path import compact
from onibus.shard.tidying import tidy
from tests.bus_helpers import (
    HOUR,
    MINUTE,
    Disks,
    ManualClock,
    msg,
    pass_ms,
    peek_everything,
    run,
    settle,
)
from tests.gateway.topic_helpers import reopen, reopen_after_crash, sound, sql

STORES = ("a", "b")
#: Rules by name: as they are, when they select, and whether they have an action.
RULES: dict[str, tuple[Rule, Callable[[int], bool], bool]] = {
    "all": (Rule("all"), lambda n: True, False),
    "even": (sql("even", "n % 2 = 0"), lambda n: n % 2 == 0, False),
    "third": (sql("third", "n % 3 = 0", "SET x = n"), lambda n: n % 3 == 0, True),
    "label": (sql("label", "n > 5", "SET sys.Label = 'big'; REMOVE n"), lambda n: n > 5, True),
    "session": (sql("session", "n = 4", "SET sys.SessionId = 'new'"), lambda n: n == 4, True),
    "divide": (sql("divide", "12 / n = 3"), lambda n: 12 // n == 3, False),
}

#: A message as the model knows it: its text, the rule whose action made it, and where it is.
Item = tuple[str, str | None, str]


class Model:
    """One subscription."""

    def __init__(self, rules: list[str], ttl: int | None, sessions: bool) -> None:
        self.rules = rules
        self.ttl = ttl
        self.sessions = sessions
        self.items: list[tuple[Item, int]] = []

    def arrive(self, text: str, n: int, session: str | None, now: int) -> None:
        """Run the rules as the documentation says."""
        made: list[str | None] = []
        failed = False
        for name in self.rules:
            try:
                if RULES[name][1](n):
                    made.append(name if RULES[name][2] else None)
            except ZeroDivisionError:
                failed = True
        copies = [name for name in made if name is not None]
        if None in made:
            copies.append(None)  # type: ignore[arg-type]
        for name in copies:
            nowhere = self.sessions and session is None and name != "session"
            self.items.append(((text, name, "dead" if nowhere else "active"), now))
        if failed and not copies:
            self.items.append(((text, None, "dead"), now))

    def expire(self, now: int) -> None:
        """Drop what is too old."""
        if self.ttl is not None:
            ttl = self.ttl
            self.items = [
                (item, at) for item, at in self.items if item[2] == "dead" or at + ttl > now
            ]

    def move(self, text: str, rule: str | None, old: str, new: str | None) -> None:
        """A message is somewhere else now, or gone."""
        for at, (item, arrived) in enumerate(self.items):
            if item == (text, rule, old):
                self.items[at : at + 1] = [] if new is None else [((text, rule, new), arrived)]
                return
        raise AssertionError(f"the bus has {(text, rule, old)}, and should not")


class Run:
    """One random run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.disks = Disks()
        self.models: dict[str, Model] = {}
        self.scheduled: dict[int, tuple[str, int, str | None, int]] = {}
        self.count = 0

    async def go(self, steps: int) -> None:
        self.bus: Bus = await self.disks.bus(self.clock, *STORES)
        partitioned = self.random.random() < 0.5
        self.partitioned = partitioned
        await self.bus.create_topic("t", enable_partitioning=partitioned)
        weights = {
            self.send: 10, self.receive: 12, self.deferred: 3, self.purge: 1, self.subscribe: 3,
            self.unsubscribe: 1, self.rule: 2, self.schedule: 2, self.cancel: 1, self.wait: 2,
            self.restart: 2, self.tidy: 6,
        }  # fmt: skip
        for step in range(steps):
            (act,) = self.random.choices(list(weights), list(weights.values()))
            await act()
            if step % 7 == 0:
                self.compare()
        self.compare()
        await self.restart()
        self.compare()
        await self.bus.close()

    def compare(self) -> None:
        """The bus has what the model has, and is sound."""
        sound(self.bus)
        for name, model in self.models.items():
            model.expire(self.clock.wall())
            seen: Counter[Item] = Counter()
            for dead in (False, True):
                for one in peek_everything(self.bus, name, dead_letters=dead):
                    rule = one.properties.get("RuleName")
                    state = "dead" if dead else one.state
                    seen[(one.body.decode().rstrip("."), rule, state)] += 1
            assert seen == Counter(item for item, _ in model.items), name

    def pick(self) -> str | None:
        return self.random.choice(sorted(self.models)) if self.models else None

    async def send(self) -> None:
        batch, facts = [], []
        session = self.random.choice([None, "s1", "s2", ""])
        for _ in range(self.random.randint(1, 6)):
            n = self.random.randint(0, 9)
            self.count += 1
            text = f"{self.count}"
            facts.append((text, n))
            body = text + "." * self.random.choice([0, 2_000])
            batch.append(msg(body, session_id=session, properties={"n": n}))
        sent: list[Sent] = await self.bus.send_batch("t", batch)
        assert len({one.sequence_number for one in sent}) == len(sent)
        for text, n in facts:
            for model in self.models.values():
                model.arrive(text, n, session, self.clock.wall())

    async def receive(self) -> None:
        name = self.pick()
        if name is None:
            return
        model = self.models[name]
        model.expire(self.clock.wall())
        limit = self.random.randint(1, 30)
        session = None
        if model.sessions:
            if not any(one.ready_count for one in self.bus.sessions(name)):
                return
            session = await self.bus.accept_session(name)
            held = await session.receive(limit)
        else:
            held = await self.bus.receiver(name).receive(limit)
        settler = session or self.bus.receiver(name)
        gone = []
        for one in held:
            text, rule = one.body.decode().rstrip("."), one.properties.get("RuleName")
            what = self.random.choice(["complete"] * 6 + ["abandon", "defer", "dead_letter"])
            if what == "complete":
                gone.append(one)
                model.move(text, rule, "active", None)
            elif what == "abandon":
                await settler.abandon(one, properties={"again": 1})
            elif what == "defer":
                await settler.defer(one)
                model.move(text, rule, "active", "deferred")
            else:
                await settler.dead_letter(one)
                model.move(text, rule, "active", "dead")
        if gone:
            await settler.complete(gone)
        if session is not None:
            await session.close()

    async def deferred(self) -> None:
        name = self.pick()
        if name is None or self.models[name].sessions:
            return
        found = peek_everything(self.bus, name, where=Filter(state="deferred"))
        if not found:
            return
        chosen = self.random.sample(found, self.random.randint(1, len(found)))
        receiver = self.bus.receiver(name)
        held = await receiver.receive_deferred([one.sequence_number for one in chosen])
        for one in held:
            text, rule = one.body.decode().rstrip("."), one.properties.get("RuleName")
            self.models[name].move(text, rule, "deferred", None)
        await receiver.complete(held)

    async def purge(self) -> None:
        name = self.pick()
        if name is not None:
            model = self.models[name]
            model.expire(self.clock.wall())
            state = self.random.choice(["active", "deferred", "dead-lettered"])
            word = state.partition("-")[0]
            count = await self.bus.purge(name, Filter(state=state))
            assert count == sum(item[2] == word for item, _ in model.items)
            model.items = [(item, at) for item, at in model.items if item[2] != word]

    async def subscribe(self) -> None:
        if len(self.models) >= 5:
            return
        self.count += 1
        sessions = self.random.random() < 0.3
        names = self.random.sample(sorted(RULES), self.random.randint(0, 3))
        if sessions and self.partitioned:
            names = [name for name in names if name != "session"]
        ttl = self.random.choice([None, None, HOUR])
        name = await self.bus.create_subscription(
            "t",
            f"s{self.count}",
            rules=[RULES[one][0] for one in names],
            default_time_to_live_ms=ttl,
            requires_session=sessions,
            max_delivery_count=1_000,
        )
        self.models[name] = Model(names, ttl, sessions)

    async def unsubscribe(self) -> None:
        if (name := self.pick()) is not None:
            await self.bus.delete_subscription(name)
            del self.models[name]

    async def rule(self) -> None:
        name = self.pick()
        if name is None:
            return
        model = self.models[name]
        chosen = self.random.choice(sorted(RULES))
        if chosen in model.rules:
            await self.bus.delete_rule(name, chosen)
            model.rules.remove(chosen)
        elif not (chosen == "session" and model.sessions and self.partitioned):
            await self.bus.create_rule(name, RULES[chosen][0])
            model.rules.append(chosen)

    async def schedule(self) -> None:
        self.count += 1
        text, n = f"{self.count}", self.random.randint(0, 9)
        session = self.random.choice([None, "s1"])
        due = self.clock.wall() + self.random.choice([MINUTE, HOUR])
        number = await self.bus.schedule(
            "t", msg(text, session_id=session, properties={"n": n}), due
        )
        self.scheduled[number] = (text, n, session, due)

    async def cancel(self) -> None:
        if self.scheduled:
            number = self.random.choice(sorted(self.scheduled))
            await self.bus.cancel_scheduled("t", [number])
            del self.scheduled[number]

    async def wait(self) -> None:
        await pass_ms(self.bus, self.clock, self.random.choice([MINUTE, HOUR // 3]))
        for number, (text, n, session, due) in sorted(self.scheduled.items()):
            if due <= self.clock.wall():
                for model in self.models.values():
                    model.arrive(text, n, session, self.clock.wall())
                del self.scheduled[number]
        assert self.bus.topic("t").scheduled_count == len(self.scheduled)

    async def restart(self) -> None:
        again = self.random.choice([reopen, reopen_after_crash])
        self.bus = await again(self.bus, self.disks, self.clock, *STORES)

    async def tidy(self) -> None:
        """Tidy the topic; other commands may come before the last slice."""
        slices = self.random.choice([1, 2, 5, 1_000])
        for partition in self.bus.broker.find("t").partitions:
            for _ in range(slices):
                if not tidy(partition):
                    break
                await settle(self.bus)


@pytest.mark.promise("B3", "B8", "P12")
@pytest.mark.parametrize("seed", range(8))
def test_a_topic_does_what_its_model_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        # A slice then reads a block or two, or asks a few subscriptions.
        monkeypatch.setattr(compact, "SLICE_STEPS", 500)
        monkeypatch.setattr(compact, "MERGE_COUNT_MIN", 4)
        monkeypatch.setattr(compact, "UNTOUCHED", 2)
    run(Run(seed).go)(150)
