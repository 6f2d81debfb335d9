"""The whole bus in one thread, seeded: every answer and every state is compared with the model.

Commits stay on their way until the simulation finishes them, lets them fail, or crashes the bus;
time passes only when it says so. `Simulation.run` does a number of commands of a `Workload`; what
differs from the model raises `Mismatch` with the command that replays it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from onibus.core import limits, noise
from onibus.core import partition as core_partition
from onibus.core.errors import NoSession, OnibusError, StoreFailed
from onibus.core.id_runs import Sizes
from onibus.core.path import bulk, compact, erase, expire, fan_out
from onibus.core.records import COUNTERS, META, TABLES
from onibus.directory import claim_reading, claim_settling, claiming, turns, works
from onibus.directory.namespace import NAME
from onibus.directory.timekeeping import CLOCK_ROW, accept_clock
from onibus.gateway import forwarding, sending, settling
from onibus.shard import erasing, pages
from onibus.shard.partition import PARTITIONS_MAX
from onibus.shard.replies import KeptReply
from onibus.shard.writer import Done, Work
from onibus.store.memory import MemoryStore, Tables
from onibus.testing.clock import SimulatedClock
from tests.simulator.compare import compare_all, compare_answer, compare_counts
from tests.simulator.mismatch import Mismatch, check, same
from tests.simulator.model_bus import PURGE_SLICE
from tests.simulator.model_claims import ClaimsModel
from tests.simulator.model_fair import CROWD
from tests.simulator.model_moves import FORWARD_SLICE
from tests.simulator.model_parts import Op
from tests.simulator.model_rows import begin_anew
from tests.simulator.model_time import BusTime, TrueTime
from tests.simulator.simulated_broker import (
    SimulatedBroker,
    stop_watching,
    watch_claims,
    watch_purges,
)
from tests.simulator.trace import Trace, TracedStore, Write, shown
from tests.staged_blocks import ownerless

STORES = ("a", "b")
#: A bus that has work left after so many rounds of the same moment will never be done.
ROUNDS_MAX = 500
#: Generations of remembered ids so small that all tiers are reached.
SMALL = Sizes(
    seal_at=8,
    runs_merged=2,
    tier_max=2,
    chunk_entries=4,
    segment_words=2,
    writes_a_slice=5,
    deletes_a_slice=3,
)


@contextmanager
def small_sizes() -> Iterator[None]:
    """Make what is usually large so small that a short run reaches it."""
    patches: list[tuple[Any, str, Any]] = [
        (core_partition.Partition, "id_sizes", SMALL),
        (compact, "MERGE_COUNT_MIN", 3),
        (compact, "UNTOUCHED", 1),
        (settling, "PURGE_SLICE", PURGE_SLICE),
        (forwarding, "A_SLICE", FORWARD_SLICE),
        *((module, "CLAIM_SLICE", 2) for module in (claiming, claim_reading, claim_settling)),
        (works, "KEPT_BYTES_MAX", 300),
        (bulk, "STAGED_ROWS_MIN", 1),
        (works, "SLICE_ROWS", 3),
        *((module, "SLICE_STEPS", 12) for module in (turns, sending)),
        (fan_out, "BIT_STEPS", 2),
        (erasing, "ROWS_A_SLICE", 3),
        (erase, "RELEASED_AT_ONCE", 2),
        (pages, "CACHE_BYTES_MAX", 8_000),
        (limits, "PARTITION_COUNT", 5),
        (noise, "CROWD", CROWD),
        # What is left for a moment later would differ from a model that is never late.
        (expire, "BLOCKS_A_SLICE", 1_000_000),
        (expire, "LOOKS_A_SLICE", 1_000_000_000),
        (expire, "LOCKS_A_SLICE", 1_000_000_000),
        (expire, "DUE_A_SLICE", 1_000_000),
        (expire, "DUE_STEPS", 1_000_000_000),
        (expire, "AGED_A_SLICE", 1_000_000),
    ]
    before = [getattr(owner, name) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(patches, before, strict=True):
            setattr(owner, name, value)
        stop_watching()


class PendingWriter:
    """A writer whose work waits until the simulation says how it ends."""

    def __init__(self, started: Callable[[], None]) -> None:
        self._started = started
        self.pending: tuple[Work, Done] | None = None

    def submit(self, work: Work, done: Done) -> None:
        check(self.pending is None, "a commit started while another one was on its way")
        self.pending = (work, done)
        self._started()

    run_here = submit

    def stop(self) -> None:
        self.pending = None

    def take(self) -> tuple[Work, Done]:
        assert self.pending is not None
        taken, self.pending = self.pending, None
        return taken


class AtOnce:
    """A writer for housekeeping, which nobody waits for."""

    def submit(self, work: Work, done: Done) -> None:
        work()
        done(None)

    run_here = submit

    def stop(self) -> None:
        return None


class Simulation:
    """A bus, its model, and what clients know of it."""

    def __init__(self, seed: int, write: Write | None = None) -> None:
        self.seed = seed
        #: in some runs counters are set to near the end of their range (S8)
        self.sets_counters = seed % 4 == 3
        self.trace = Trace(write)
        self.random = Random(seed)
        self.clock = SimulatedClock()
        self.tables: dict[str, Tables] = {
            name: {table: {} for table in TABLES} for name in (*STORES, NAME)
        }
        # The key of all hashes is drawn too: a seed is a run, to the last bit.
        secret = self.random.randbytes(32)
        self.tables[NAME][META]["secret",] = ("secret", secret)
        begin_anew()
        self.opened: dict[str, MemoryStore] = {}
        self.writers: dict[str, PendingWriter] = {}
        self.soon: deque[Callable[[], None]] = deque()
        self.commands = 0
        self.crashes = 0
        self.failures = 0
        self.history: deque[str] = deque(maxlen=40)
        #: found where the bus was in the middle of something
        self.mismatch: Mismatch | None = None
        self.on_answer: Callable[[Op], None] = lambda op: None
        watch_claims(self)
        watch_purges(self)
        self.broker = self._new_broker()
        self.time = BusTime(self.clock)
        self.truth = TrueTime(self.clock, self.time.now())
        self.model = self.broker.model = ClaimsModel(STORES, self.time)
        self.broker.open()

    def _new_broker(self) -> SimulatedBroker:
        self.soon.clear()
        self.writers = {}
        broker = SimulatedBroker(
            self.clock, STORES, self._open_store, self._make_writer, self.soon.append, 0
        )
        broker.note = self.note
        return broker

    def _open_store(self, name: str, _known: bool = False) -> MemoryStore:
        store = self.opened[name] = TracedStore(name, self.tables[name], self.note)
        return store

    def _make_writer(self, name: str) -> Any:
        if name not in (*STORES, NAME):
            return AtOnce()
        writer = self.writers[name] = PendingWriter(lambda: self._commit_started(name))
        return writer

    def _commit_started(self, name: str) -> None:
        self.model.commit_started(name)

    # Commands

    def note(self, words: str) -> None:
        """Add a line to the trace."""
        clock = self.clock
        self.trace.add(f"{self.commands} {clock.monotonic()} {clock.wall()} {words}")

    def step(self, words: str) -> None:
        """Take note of something that is done to the bus."""
        self.history.append(words)
        self.note(words)

    def begin(self, words: str) -> Op:
        """Return a new command under way."""
        op = Op(words, self._answered)
        op.stores = self.model.all_stores()
        op.begun_at = self.model.namespace.told
        self.step(words)
        return op

    def do(self, words: str, ask: Callable[[Any], object], expect: Callable[[Op], object]) -> Op:
        """Give a command to the bus and to the model."""
        op = self.begin(words)
        self.model.ops.append(op)
        try:
            ask(op.reply)
        except OnibusError as error:
            op.reply.set_exception(error)
        try:
            expect(op)
            if op.fetch is not None and not op.fetch() and op.deadline is None:
                op.resolve(None if NoSession in op.errors else [])
                op.fetch = None
        except OnibusError as error:
            op.errors.add(type(error))
            op.fetch = None
        self.settle_down()
        return op

    def wait_with(self, op: Op, waiter: Any) -> None:
        """Let the model try whenever the broker tries for a receiver that waits."""
        tries = waiter.fetch

        def fetch(self_: Any) -> bool:
            try:
                return bool(tries(self_))
            finally:
                op.tried_at = self.broker.clock.now()
                if op.fetch is not None:
                    try:
                        op.fetch()
                    except OnibusError as error:
                        op.errors.add(type(error))
                        op.fetch = None

        waiter.fetch = fetch

    def settle_down(self) -> None:
        """Run what was called soon, and what is due; then look at the answers."""
        for _ in range(ROUNDS_MAX):
            while self.soon:
                self.soon.popleft()()
            slices = self.broker.turns.slices
            while slices and self.random.random() < 0.8:
                slices.popleft()()
            if self.soon:
                continue
            if self.broker.next_wake() > self.broker.clock.now():
                break
            self.broker.tick()
        else:
            check(False, "the bus does not come to rest")
        if self.mismatch is not None:
            raise self.mismatch
        self._look_at_answers()

    def _look_at_answers(self) -> None:
        left = []
        for op in self.model.ops:
            if not op.answered:
                self._check_still_waiting(op)
                left.append(op)
                continue
            if op.deadline is not None and op.fetch is not None:
                # It waited in vain: then there must be nothing for it (P6).
                late = self.broker.clock.now() >= op.deadline
                check(op.reply.error is not None or late, f"{op.words}: given up early")
                # (a store may have been reopened since that try; if the model found nothing at
                # the last try, a message may have: another receiver hides it for no time)
                later = self.broker.opened_now or op.tried_at >= op.deadline
                found = not later and self._would_find(op)
                check(not found, f"{op.words}: told 'nothing', while there is something")
                op.fetch = None
                op.resolve(None if NoSession in op.errors else [])
            compare_answer(op)
            self.on_answer(op)
        self.model.ops = left
        self.broker.opened_now = False

    def _would_find(self, op: Op) -> bool:
        """Tell whether there is something for a receiver that waits."""
        turns = [(entity, entity.next_receive) for entity in self.model.entities.values()]
        try:
            return op.fetch is not None and op.fetch()
        except OnibusError:
            return False
        finally:
            for entity, turn in turns:
                entity.next_receive = turn

    def _check_still_waiting(self, op: Op) -> None:
        if op.fetch is not None:
            check(not self._would_find(op), f"{op.words}: waits, while there is something")
            return
        check(not (op.errors - {NoSession}), f"{op.words}: {op.errors} expected, no answer")
        finished = all(op.stores[n].finished >= s for n, s in op.needs.items())
        check(op.left > 0 or not finished, f"{op.words}: everything is durable, no answer")

    def _answered(self, op: Op) -> None:
        outcome = op.reply.value if op.reply.error is None else op.reply.error
        self.note(f"answer {op.words.split()[0]} {shown(outcome)}")

    # Time and faults

    def advance(self, ms: int) -> None:
        """Let time pass: in one leap, as when the process was stopped, or from timer to timer."""
        self.step(f"advance {ms}")
        hops = 12 if self.random.random() < 0.5 else 0
        while hops and (wait := self.broker.next_wake() - self.broker.clock.now()) < ms:
            hops -= 1
            wait = max(wait, 1)
            self.clock.advance(wait)
            ms -= wait
            self.settle_down()
            if self.random.random() < 0.4:
                self.finish_all()
        self.clock.advance(max(ms, 0))
        self.settle_down()
        self.model.advance_all()

    def jump(self, ms: int) -> None:
        """Set the wall clock; the bus notices within a second, here at once."""
        self.step(f"jump {ms}")
        self.truth.misled(ms)
        self.clock.jump(ms)
        self.broker.clock.observe()
        self.time.look()
        self.check_time()
        self.settle_down()

    def check_time(self) -> None:
        """Compare the bus's clock with the model's, and with the time that really passed."""
        clock, at = self.broker.clock, self.time.at()
        self.truth.check(clock.now(), at.now)
        same("wall time", clock.wall(), at.wall)
        same("time of schedules", clock.moment(), at.due)
        same("clock in doubt", not clock.sure, not self.time.sure)

    def accept_clock(self) -> None:
        """An operator confirms the clock."""
        self.step("accept clock")
        if not self.broker.namespace.online:
            return
        self.truth.misled(self.clock.wall() - self.time.proven(), by_operator=True)
        # The bus commits at once: the model has to know by then.
        self.time.accept()
        self.model.set_stamps_back(self.clock.wall())
        accept_clock(self.broker, KeptReply())
        self.check_time()
        self.settle_down()
        self.model.advance_all()

    def reboot(self, off_ms: int, wrong_ms: int) -> None:
        """Cut the machine's power, and start it later, with a clock that may be wrong."""
        self.step(f"reboot {off_ms} {wrong_ms}")
        self.truth.misled(wrong_ms)
        self.crash(lambda: self.clock.reboot(off_ms, wrong_ms))

    def busy(self) -> list[str]:
        """Return the stores with a commit on its way."""
        return [name for name, writer in self.writers.items() if writer.pending is not None]

    def finish(self, name: str, then: Callable[[], None] | None = None) -> None:
        """Let a commit finish; `then` is done before the bus knows."""
        self.step(f"finish {name}")
        work, done = self.writers[name].take()
        work()
        if then is not None:
            then()
        self.model.commit_finished(name)
        done(None)
        self.model.go_on(name)
        self.settle_down()

    def fail(self, name: str, kept: bool) -> None:
        """Let a commit fail; its rows are there nevertheless, or are not."""
        self.step(f"fail {name} kept={kept}")
        self.failures += 1
        work, done = self.writers[name].take()
        self.opened[name].fail_next(kept=kept)
        try:
            work()
        except StoreFailed as error:
            self.model.store_failed(name, kept)
            done(error)
        self.settle_down()

    def finish_all(self, flush: bool = False) -> None:
        """Let all commits finish, until nothing waits."""
        for _ in range(ROUNDS_MAX):
            if flush:
                self.broker.flush()
                while self.broker.turns.slices:
                    self.broker.turns.slices.popleft()()
                self.settle_down()
            busy = self.busy()
            if not busy:
                return
            for name in busy:
                self.finish(name)
        check(False, "the bus does not come to rest")

    def crash(self, then: Callable[[], None] = lambda: None) -> None:
        """Lose all memory; each commit on its way reached the disk, or did not."""
        self.crashes += 1
        kept = {name: self.random.random() < 0.5 for name in self.busy()}
        self.step(f"crash {kept}")
        for name in kept:
            work, _ = self.writers[name].take()
            if kept[name]:
                work()
        then()
        self._restart(kept)

    def restart(self) -> None:
        """Close the bus as its owner does, and open it again."""
        self.step("restart")
        self.finish_all(flush=True)
        self.broker.close()
        self._restart({})

    def _restart(self, kept: dict[str, bool]) -> None:
        self.broker.closed = True
        self.broker = self._new_broker()
        self.broker.model = self.model
        self.model.crashed(kept)
        row = self.tables[NAME][META].get((CLOCK_ROW,))
        self.time.restarted(None if row is None else str(row[1]), self._seen())
        self.broker.open()
        self.check_time()
        self.settle_down()
        self.model.advance_all()
        if self.random.random() < 0.5:
            # Comparing looks at everything; what nobody has looked at yet must work as well.
            self.compare()

    def _seen(self) -> int:
        """Return the latest bus time that a partition has on the disk: time goes on from there."""
        known = {entity.uid for entity in self.model.logs()}
        rows: list[Any] = [row for name in STORES for row in self.tables[name][COUNTERS].values()]
        column = COUNTERS.columns.index("seen")
        return max((row[column] for row in rows if row[0] // PARTITIONS_MAX in known), default=0)

    # Comparing

    def compare(self) -> None:
        """Compare everything that can be seen."""
        self.settle_down()
        self.model.advance_all()
        timers = self.broker.timers
        entities = self.model.entities.values()
        waits = {e.uid for e in entities if timers.is_set(("forward", e.uid))}
        self.model.check_forwarded(waits | self.broker.forwarding.planning())
        compare_all(self.broker, self.model)
        for name, tables in self.tables.items():
            check(not ownerless(tables), f"{name}: blocks {ownerless(tables)} belong to nothing")

    def compare_entity(self, name: str) -> None:
        """Compare an entity's counts."""
        if name in self.model.entities:
            compare_counts(self.broker, self.model, self.model.entities[name])


def replay_of(seed: int, commands: int, kinds: list[str] | None = None) -> str:
    """Return the command that repeats a run."""
    chosen = f" --kinds {','.join(kinds)}" if kinds else ""
    return f"python -m tests.simulator.simulate --seed {seed} --commands {commands}{chosen}"
