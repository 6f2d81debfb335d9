"""Seeded commands: what clients, owners, clocks and disks do to a bus.

Everything is drawn from the simulation's own generator, so a seed is a run. `run_seed` is one run
from an empty bus; a difference from the model is raised with the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from onibus.directory.namespace import NAME
from tests.simulator.log_readers import LogReaders
from tests.simulator.mismatch import Mismatch
from tests.simulator.owners import HOUR
from tests.simulator.simulation import Simulation, replay_of, small_sizes
from tests.simulator.trace import Write

SECOND = 1_000
MINUTE, DAY = 60 * SECOND, 24 * HOUR
YEAR = 365 * DAY
#: Called with a simulation whenever everything was compared.
Compared = Callable[[Simulation], None]
EARLIEST, LATEST = 12 * YEAR, 120 * YEAR


class Workload(LogReaders):
    """Draws commands of all sorts and runs them."""

    def __init__(self, simulation: Simulation, kinds: list[str] | None = None) -> None:
        super().__init__(simulation, kinds)
        for name in self.names:
            self.create(name)
        self.table = self._table()
        if simulation.sets_counters:
            self.table.append((self.set_counter, 12))
        self.commands = [command for command, _ in self.table]
        #: added up: it need not be done for every command
        self.weights = list(accumulate(weight for _, weight in self.table))

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
            (self.transact, 60),
            (self.end_transaction, 15),
            (self.make_reader, 8),
            (self.use_reader, 25),
            (self.claim, 25),
            (self.use_claim, 40),
            (self.stage, 25),
            (self.publish, 15),
            (self.change, 8),
            (self.recreate, 4),
            (self.change_rules, 10),
            (self.bad_settings, 3),
            (self.pass_time, 90),
            (self.jump, 8),
            (self.reboot, 2),
            (self.accept_clock, 2),
            (self.finish, 300),
            (self.fail, 4),
            (self.crash, 5),
            (self.restart, 3),
        ]

    def run(self, commands: int, compared: Compared = lambda simulation: None) -> None:
        """Do that many commands, comparing as it goes; everything is compared at the end."""
        sim = self.sim
        choose = self.random.choices
        for _ in range(commands):
            sim.commands += 1
            command = choose(self.commands, cum_weights=self.weights)[0]
            sim.note(command.__name__)
            command()
            if sim.commands % 12 == 0:
                sim.compare_entity(self.random.choice(self.names))
                if sim.commands % 120 == 0:
                    sim.compare()
                    compared(sim)
        sim.compare()

    # Time and faults

    def pass_time(self) -> None:
        self.sim.advance(
            self.random.choice(
                (1, 5, 60, 400, 1_000, 1_000, 1_000, 2_500, 2_500, 6_000, 6_000, 25_000, 310_000)
            )
        )

    def jump(self) -> None:
        self.sim.jump(self._error((SECOND, SECOND, HOUR, HOUR, DAY, DAY, 10 * YEAR)))

    def _error(self, sizes: tuple[int, ...]) -> int:
        """Return by how much a clock is wrong: no machine's clock is before 1970 or after 2100."""
        size, wall = self.random.choice(sizes), self.sim.clock.wall()
        back = wall > LATEST or (wall > EARLIEST and self.random.random() < 0.5)
        return -size if back else size

    def reboot(self) -> None:
        """Switch the machine off and on; its clock is right then, or wrong by hours or years."""
        off = self.random.choice((SECOND, MINUTE, HOUR, DAY))
        self.sim.reboot(off, self._error((0, 0, SECOND, HOUR, 10 * YEAR)))
        self._after_restart()

    def accept_clock(self) -> None:
        self.sim.accept_clock()

    def finish(self) -> None:
        """Let a commit finish, or several; of decisions some get lost just then."""
        sim, busy = self.sim, self.sim.busy()
        if not busy:
            return
        chance = 0.25 if sim.model.namespace.flying else 0.06
        if NAME in busy and self.random.random() < chance:
            if self.random.random() < 0.5:
                self.crash()
            else:
                sim.fail(NAME, kept=self.random.random() < 0.5)
        elif self.random.random() < 0.1:
            sim.finish_all()
        else:
            sim.finish(self.random.choice(busy))

    def fail(self) -> None:
        busy = self.sim.busy()
        if busy:
            self.sim.fail(self.random.choice(busy), kept=self.random.random() < 0.5)

    def crash(self) -> None:
        self.sim.crash()
        self._after_restart()

    def restart(self) -> None:
        model = self.sim.model
        if model.namespace.online and all(store.online for store in model.stores.values()):
            self.sim.restart()
            self._after_restart()

    def _after_restart(self) -> None:
        """Clients that held sessions find them again by name."""
        self.waiting = 0
        self.unfinished = []
        for session in list(self.sessions):
            entity = self.sim.broker.namespace.entities.get(session.entity.name)
            if entity is None or entity.incarnation != session.entity.uid:
                self.sessions.remove(session)
            else:
                session.found, session.partition = entity, entity.partitions[session.index]
        self.publish_again()


def run_seed(
    seed: int,
    commands: int,
    kinds: list[str] | None = None,
    write: Write | None = None,
    compared: Compared = lambda simulation: None,
) -> Simulation:
    """Run commands from an empty bus on; raise `Mismatch` if bus and model differ.

    `write`, if given, gets every line of the trace.
    """
    with small_sizes():
        simulation = Simulation(seed, write)
        try:
            Workload(simulation, kinds).run(commands, compared)
        except Exception as error:
            done = simulation.commands
            trail = "\n".join(f"  {words[:300]}" for words in simulation.history)
            raise Mismatch(
                f"seed {seed}, command {done}: {type(error).__name__}: {error}\n"
                f"last commands:\n{trail}\nreplay: {replay_of(seed, done, kinds)}"
            ) from error
        return simulation
