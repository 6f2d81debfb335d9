"""Seeded commands: what clients, owners, clocks and disks do to a bus.

Everything is drawn from the simulation's own generator, so a seed is a run. `run_seed` is one run
from an empty bus; a difference from the model is raised with the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onibus.broker import settling
from onibus.broker.entity import entity_of
from onibus.broker.namespace import NAME
from onibus.core import settings as core_settings
from onibus.core.errors import InvalidArgument, OnibusError, PartitionOffline, Unchangeable
from onibus.core.path.peek import Filter
from onibus.core.records import ENTITIES
from onibus.core.settings import QueueSettings
from onibus.testing.client_parts import KINDS
from onibus.testing.clients import Clients
from onibus.testing.compare import Mismatch, compare_row, same
from onibus.testing.model_parts import EntityModel, Op, meant
from onibus.testing.simulation import Simulation, replay_of, small_sizes

SECOND = 1_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR


class Workload(Clients):
    """Draws commands of all sorts and runs them."""

    def __init__(self, simulation: Simulation, kinds: list[str] | None = None) -> None:
        super().__init__(simulation, kinds)
        for name in self.names:
            self.create(name)
        table = self._table()
        self.commands = [command for command, _ in table]
        self.weights = [weight for _, weight in table]

    def _table(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.send, 160),
            (self.send_batch, 50),
            (self.schedule, 50),
            (self.cancel, 30),
            (self.receive, 180),
            (self.receive_waiting, 40),
            (self.complete, 90),
            (self.abandon, 50),
            (self.defer, 50),
            (self.dead_letter, 30),
            (self.renew, 40),
            (self.receive_deferred, 50),
            (self.undefer, 20),
            (self.peek, 20),
            (self.purge, 12),
            (self.session_command, 120),
            (self.change, 8),
            (self.recreate, 4),
            (self.bad_settings, 3),
            (self.pass_time, 90),
            (self.jump, 8),
            (self.finish, 300),
            (self.fail, 4),
            (self.crash, 5),
            (self.restart, 3),
        ]

    def run(self, commands: int) -> None:
        """Do that many commands, comparing as it goes; everything is compared at the end."""
        sim = self.sim
        choose = self.random.choices
        for _ in range(commands):
            sim.commands += 1
            choose(self.commands, self.weights)[0]()
            if sim.commands % 8 == 0:
                sim.compare_entity(self.random.choice(self.names))
                if sim.commands % 96 == 0:
                    sim.compare()
        sim.compare()

    # Owners

    def _decide(
        self,
        words: str,
        ask: Callable[[Any], None],
        expect: Callable[[], None],
        carried_out: Callable[[], None],
        may_crash: bool = True,
    ) -> None:
        """Create, change or delete: decided by one commit, which a crash may keep or lose (P10)."""
        sim = self.sim
        op = sim.begin(words)
        sim.model.ops.append(op)
        try:
            ask(op.reply)
        except OnibusError as error:
            op.reply.set_exception(error)
        try:
            expect()
        except OnibusError as error:
            op.errors.add(type(error))
        op.resolve(None)
        if NAME in sim.busy():
            if may_crash and self.random.random() < 0.05:
                work, _ = sim.writers[NAME].take()
                if self.random.random() < 0.5:
                    work()
                    carried_out()
                self.crash()
                return
            sim.finish(NAME, carried_out)
        sim.settle_down()

    def _all_online(self, stores: list[str]) -> None:
        for store in stores:
            if not self.sim.model.stores[store].online:
                raise PartitionOffline(store)

    def create(self, name: str) -> None:
        """Create a queue."""
        sim, given = self.sim, KINDS[name]

        def created() -> None:
            entity = entity_of(max(sim.tables[NAME][ENTITIES].values()), {})
            wanted = core_settings.make(given, QueueSettings)
            sim.model.entities[name] = EntityModel(entity.incarnation, name, wanted, entity.stores)

        self._decide(
            f"create {name}",
            lambda reply: sim.broker.namespace.create(name, QueueSettings, given, reply),
            lambda: self._all_online(list(sim.model.stores)),
            created,
        )

    def recreate(self) -> None:
        """Delete a queue, and create it again, now or later."""
        sim, name = self.sim, self.entity()
        entity = sim.model.entities.get(name)
        if entity is None:
            if all(store.online for store in sim.model.stores.values()):
                self.create(name)
            return
        if any(op.steps is not None or op.deadline is not None for op in sim.model.ops):
            return
        self._decide(
            f"delete {name}",
            lambda reply: sim.broker.namespace.delete(name, reply),
            lambda: self._all_online(entity.stores),
            lambda: sim.model.delete(name),
        )
        if self.random.random() < 0.7:
            self.recreate()

    def change(self) -> None:
        """Change a queue's settings."""
        sim, name = self.sim, self.entity()
        entity = sim.model.entities.get(name)
        if entity is None:
            return
        given: dict[str, Any] = self.random.choice(
            (
                {"status": "send-disabled"},
                {"status": "receive-disabled"},
                {"status": "disabled"},
                {"status": "active"},
                {"status": "active"},
                {"status": "active"},
                {"max_delivery_count": self.random.randrange(1, 5)},
                {"dead_letter_on_expiration": self.random.random() < 0.5},
                {"default_time_to_live_ms": self.random.choice((None, 5_000, 50_000))},
                {"retry_backoff_ms": self.random.choice((0, 250))},
                {"duplicate_detection_window_ms": self.random.choice((20_000, 45_000, HOUR))},
            )
        )
        window = "duplicate_detection_window_ms" in given
        if window and entity.settings.fifo:
            return
        sim.finish_all(flush=True)
        wanted = core_settings.change(entity.settings, given)

        self._decide(
            f"change {name} {given}",
            lambda reply: sim.broker.namespace.change(name, given, reply),
            lambda: self._all_online(entity.stores),
            lambda: sim.model.change(entity, wanted),
            may_crash=not window,
        )
        if window:
            sim.finish_all(flush=True)

    def bad_settings(self) -> None:
        """Ask for what cannot be: refused, and nothing changes."""
        sim, name = self.sim, self.entity()
        if name not in sim.model.entities:
            return
        given, error = self.random.choice(
            (
                ({"duplicate_detection_window_ms": 19_999}, InvalidArgument),
                ({"lock_duration_ms": 10**9}, InvalidArgument),
                ({"enable_partitioning": not KINDS[name].get("enable_partitioning")}, Unchangeable),
            )
        )

        def refused(op: Op) -> None:
            raise error

        sim.do(
            f"change {name} {given}",
            lambda reply: sim.broker.namespace.change(name, given, reply),
            refused,
        )

    def filter(self) -> Filter:
        random = self.random
        return Filter(
            state=random.choice((None, "active", "deferred", "scheduled", "dead-lettered")),
            session_id=random.choice((None, None, None, "s1")),
            message_id=random.choice((None, None, None, "id1")),
            enqueued_before_ms=random.choice((None, None, self.sim.clock.wall() - 5_000)),
        )

    def purge(self) -> None:
        """Delete what a filter means."""
        sim, name, wanted = self.sim, self.entity(), self.filter()
        forget = self.random.random() < 0.2
        sim.do(
            f"purge {name} {wanted} forget={forget}",
            lambda reply: settling.purge_all(sim.broker, name, wanted, forget, reply),
            lambda op: sim.model.purge(op, name, wanted, forget),
        )

    def peek(self) -> None:
        """Look at messages through a filter, from somewhere on (P7, X5)."""
        sim, name, wanted = self.sim, self.entity(), self.filter()
        entity = sim.model.entities.get(name)
        if entity is None or not sim.model.online(entity, 0):
            return
        dead = wanted.state in (None, "dead-lettered") and self.random.random() < 0.3
        start, limit = self.random.randrange(20), self.limit()
        real = settling.peek_all(sim.broker, name, start, limit, wanted, dead)
        expected: list[Any] = []
        for index, partition in enumerate(entity.partitions):
            sim.model.advance(entity, index)
            if expected or not sim.model.online(entity, index):
                continue
            expected = [
                (partition.base, row)
                for row in partition.rows.values()
                if (index or row.ordinal >= start)
                and row.ordinal < partition.shown
                and meant(row, wanted, dead)
            ][:limit]
        words = f"peek {name} {start} {wanted} dead={dead}"
        same(
            words,
            [one.sequence_number for one in real],
            [base + row.ordinal for base, row in expected],
        )
        for one, (base, row) in zip(real, expected, strict=True):
            compare_row(words, one, row, base)

    # Time and faults

    def pass_time(self) -> None:
        self.sim.advance(
            self.random.choice(
                (1, 5, 60, 400, 1_000, 1_000, 1_000, 2_500, 2_500, 6_000, 6_000, 25_000, 310_000)
            )
        )

    def jump(self) -> None:
        self.sim.jump(self.random.choice((-1, 1)) * self.random.choice((SECOND, HOUR, DAY)))

    def finish(self) -> None:
        """Let a commit finish, or several."""
        busy = self.sim.busy()
        if busy and self.random.random() < 0.1:
            self.sim.finish_all()
        elif busy:
            self.sim.finish(self.random.choice(busy))

    def fail(self) -> None:
        busy = self.sim.busy()
        if busy:
            self.sim.fail(self.random.choice(busy), kept=self.random.random() < 0.5)

    def crash(self) -> None:
        self.sim.crash()
        self._after_restart()

    def restart(self) -> None:
        if all(store.online for store in self.sim.model.stores.values()):
            self.sim.restart()
            self._after_restart()

    def _after_restart(self) -> None:
        """Clients that held sessions find them again by name."""
        self.waiting = 0
        for session in list(self.sessions):
            entity = self.sim.broker.namespace.entities.get(session.entity.name)
            if entity is None or entity.incarnation != session.entity.uid:
                self.sessions.remove(session)
            else:
                session.found, session.seat = entity, entity.seats[session.index]


def run_seed(seed: int, commands: int, kinds: list[str] | None = None) -> Simulation:
    """Run commands from an empty bus on; raise `Mismatch` where bus and model differ."""
    with small_sizes():
        simulation = Simulation(seed)
        try:
            Workload(simulation, kinds).run(commands)
        except Exception as error:
            done = simulation.commands
            trail = "\n".join(f"  {words[:300]}" for words in simulation.history)
            raise Mismatch(
                f"seed {seed}, command {done}: {type(error).__name__}: {error}\n"
                f"last commands:\n{trail}\nreplay: {replay_of(seed, done)}"
            ) from error
        return simulation
