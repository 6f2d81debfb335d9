"""Seeded commands of clients: send, receive, settle, sessions, over queues of all kinds.

They know what clients know: tokens, numbers and sessions they were given, outdated ones too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from onibus.core.commands import COMPLETE, HeldSession, Settlement
from onibus.core.inspection import NonExclusive
from onibus.core.message import Message
from onibus.gateway import receiving, sending, settling
from onibus.shard.replies import Reply
from tests.simulator.client_parts import (
    FAIR,
    KINDS,
    TOPICS,
    Held,
    Session,
    brief,
    given_for,
    model_of,
    names_of,
    real_of,
)
from tests.simulator.model import PartitionModel
from tests.simulator.model_parts import Op
from tests.simulator.model_rows import Row, changed
from tests.simulator.simulation import Simulation


class Clients:
    """Draws the commands of clients and gives them to a simulation and its model."""

    def __init__(self, simulation: Simulation, kinds: list[str] | None = None) -> None:
        self.sim = simulation
        self.random = simulation.random
        simulation.on_answer = self.learn
        self.held: deque[Held] = deque(maxlen=24)
        self.numbers: deque[tuple[str, int]] = deque(maxlen=30)
        self.sessions: deque[Session] = deque(maxlen=6)
        self.bodies = 0
        self.waiting = 0
        self.names = names_of(kinds or self.random.sample([*KINDS, *TOPICS], 3))
        self.targets = [name for name in self.names if name in KINDS or name in TOPICS]
        self.sources = [name for name in self.names if name not in TOPICS]

    # What clients know

    def learn(self, op: Op) -> None:
        """Remember what an answer tells."""
        if op.deadline is not None:
            self.waiting -= 1
        if op.reply.error is not None or op.value is None:
            return
        if isinstance(op.value, tuple):
            found, partition, accepted = op.reply.value
            entity, index, _, lock, _ = op.value
            self.sessions.append(Session((found, partition), entity, index, lock, accepted))
            return
        if not isinstance(op.value, list):
            return
        for real, model in zip(op.reply.value, op.value, strict=True):
            if len(model) == 2:
                if not op.words.startswith("send"):
                    continue
                self.numbers.append((op.words.split()[1], model[0]))
                continue
            entity, _, row, _ = model
            number = row.number
            self.numbers.append((entity.name, number))
            if real.token is not None and row.lock is not None:
                held = Held(entity.name, entity.uid, number, row.lock.id, real.token)
                held.session = op.session
                self.held.append(held)

    def entity(self) -> str:
        return self.random.choice(self.names)

    def target(self) -> str:
        """Return where to send to: now and then a subscription, which is refused."""
        return self.random.choice(self.targets if self.random.random() < 0.98 else self.names)

    def source(self) -> str:
        """Return where to receive from: now and then a topic, which is refused."""
        return self.random.choice(self.sources if self.random.random() < 0.98 else self.names)

    def limit(self) -> int:
        return self.random.choice((1, 1, 2, 3, 10))

    def message(self, name: str) -> Message:
        """Return a message for a queue; now and then one that is refused."""
        random, kind = self.random, given_for(name)
        self.bodies += 1
        message = Message(
            body=b"%d" % (random.randrange(12) if name in ("content", "strict") else self.bodies)
        )
        if random.random() < 0.8:
            message.message_id = f"id{random.randrange(random.choice((8, 40)))}"
        if kind.get("requires_session") or kind.get("fifo"):
            if random.random() < 0.98:
                message.session_id = f"s{random.randrange(4)}"
        elif name.startswith("in-"):
            if random.random() < 0.9:
                message.session_id = f"s{random.randrange(4)}"
        elif name in FAIR and random.random() < 0.9:
            message.partition_key = f"k{min(random.randrange(9), random.randrange(9))}"
        elif random.random() < 0.3:
            message.partition_key = f"k{random.randrange(5)}"
            if random.random() < 0.03:
                message.session_id = "other"
        if random.random() < 0.2:
            message.time_to_live_ms = random.choice((1, 500, 3_000, 15_000))
        if random.random() < 0.1:
            message.properties = {"n": self.bodies}
        if name in TOPICS:
            message.properties = random.choice(({}, {"n": 0}, {"n": 1}, {"n": 4}, {"mark": 1}))
            colour = random.choice((None, "red", "blue"))
            if colour is not None:
                message.properties = message.properties | {"colour": colour}
        return message

    # Sending

    def send(self) -> None:
        name = self.target()
        self._send(name, [self.message(name)])

    def send_batch(self) -> None:
        name = self.target()
        self._send(name, [self.message(name) for _ in range(self.random.randrange(2, 6))])

    def schedule(self) -> None:
        name = self.target()
        message = self.message(name)
        wait = self.random.choice((-5, 0, 1, 800, 2_500, 2_500, 30_000))
        message.scheduled_enqueue_time_ms = self.sim.clock.wall() + wait
        self._send(name, [message])

    def _send(self, name: str, messages: list[Message]) -> None:
        sim = self.sim
        sim.do(
            f"send {name} {[brief(message) for message in messages]}",
            lambda reply: sending.send(sim.broker, name, messages, reply),
            lambda op: sim.model.send(op, name, messages),
        )

    # Receiving

    def receive(self) -> None:
        self._receive(self.source(), 0)

    def receive_waiting(self) -> None:
        if self.waiting < 3:
            self._receive(self.source(), self.random.choice((300, 2_000, 10_000)))

    def _receive(self, name: str, wait: int) -> None:
        kind, limit = given_for(name), self.limit()
        dead = self.random.random() < 0.12
        if kind.get("fifo") and not dead:
            self._receive_fifo(name, limit, wait)
        elif kind.get("requires_session") and not dead and self.random.random() < 0.95:
            self._accept(name, wait)
        else:
            take = self.random.random() < 0.2
            sim = self.sim
            self._try(
                name,
                wait,
                f"receive {name} {limit} dead={dead} take={take} wait={wait}",
                lambda reply: receiving.receive(
                    sim.broker, name, limit, wait, reply, dead=dead, take=take
                ),
                lambda op: sim.model.receive(op, name, limit, dead, take),
            )

    def _receive_fifo(self, name: str, limit: int, wait: int) -> None:
        sim = self.sim
        visibility = self.random.choice((None, None, 0, 1_000, 20_000))
        attempt = self.random.choice((None, "one", "two", "three"))
        self._try(
            name,
            wait,
            f"fifo {name} {limit} {visibility} {attempt} wait={wait}",
            lambda reply: receiving.receive_fifo(
                sim.broker, name, limit, wait, reply, visibility_ms=visibility, attempt_id=attempt
            ),
            lambda op: sim.model.receive_fifo(op, name, limit, visibility, attempt),
        )

    def _accept(self, name: str, wait: int) -> None:
        sim = self.sim
        session = self.random.choice((None, None, f"s{self.random.randrange(5)}"))
        sharing, real = self._sharing(name)
        if sharing:
            session = real.id
        wanted = None if sharing is None else NonExclusive(real.lock_token if sharing else None)
        self._try(
            name,
            wait,
            f"accept {name} {session} sharing={sharing} wait={wait}",
            lambda reply: receiving.accept(sim.broker, name, session, "me", wait, reply, wanted),
            lambda op: sim.model.accept(op, name, session, sharing),
        )

    def _sharing(self, name: str) -> tuple[int | None, Any]:
        """Draw how a session is accepted: exclusively, not, or by taking one over (B9)."""
        choice = self.random.random()
        if choice < 0.5:
            return None, None
        shared = [one for one in self.sessions if one.entity.name == name and one.takeover]
        if choice < 0.8 or not shared:
            return 0, None
        chosen = self.random.choice(shared)
        return chosen.takeover, chosen

    def _try(
        self,
        name: str,
        wait: int,
        words: str,
        ask: Callable[[Any], object],
        expect: Callable[[Op], None],
    ) -> None:
        """Receive; where that waits, the model tries whenever the broker does."""
        sim = self.sim
        deadline = sim.broker.clock.now() + wait

        def waited(op: Op) -> None:
            if wait:
                op.deadline = deadline
                self.waiting += 1
            expect(op)
            entity = sim.broker.namespace.entities.get(name)
            waiters = list(entity.waiters) if wait and entity is not None else []
            if waiters and waiters[-1].reply is op.reply:
                sim.wait_with(op, waiters[-1])

        sim.do(words, ask, waited)

    # Settling

    def token(self) -> Held | None:
        """Return a token: mostly one of the last, also one that was used before."""
        if not self.held:
            return None
        place = self.random.randrange(len(self.held))
        if self.random.random() < 0.7:
            held = self.held[place]
            del self.held[place]
            return held
        return self.held[place]

    def complete(self) -> None:
        sim, first = self.sim, self.token()
        if first is None:
            return
        chosen = [first]
        if self.random.random() < 0.3:
            chosen += [held for held in self.held if held.name == first.name][:2]
        name = first.name if self.random.random() < 0.97 else self.entity()
        alike = all(held.session is first.session for held in chosen)
        session = self.holder(first) if alike else None
        sim.do(
            f"complete {name} {[held.proof for held in chosen]} of {model_of(session)}",
            lambda reply: settling.settle_all(
                sim.broker,
                name,
                [held.token for held in chosen],
                COMPLETE,
                reply,
                real_of(session),
            ),
            lambda op: sim.model.complete(
                op, name, [held.proof for held in chosen], model_of(session)
            ),
        )

    def holder(self, held: Held) -> Session | None:
        """Draw a receiver that settles as the holder of a session, perhaps one that lost it."""
        return held.session if self.random.random() < 0.7 else None

    def _settle(
        self,
        verb: str,
        real: Callable[[str, bytes, Reply, HeldSession | None], None],
        model: Callable[[PartitionModel, Row, int], Any],
    ) -> None:
        sim, held = self.sim, self.token()
        if held is None:
            return
        now, session = sim.broker.clock.now(), self.holder(held)
        sim.do(
            f"{verb} {held.name} {held.proof} of {model_of(session)}",
            lambda reply: real(held.name, held.token, reply, real_of(session)),
            lambda op: sim.model.settle(
                op,
                held.name,
                held.proof,
                lambda partition, row: model(partition, row, now),
                model_of(session),
            ),
        )

    def _by(
        self, settlement: Settlement
    ) -> Callable[[str, bytes, Reply, HeldSession | None], None]:
        return lambda name, token, reply, session: settling.settle_all(
            self.sim.broker, name, [token], settlement, reply, session
        )

    def properties(self) -> dict[str, Any] | None:
        return {"seen": self.bodies} if self.random.random() < 0.2 else None

    def abandon(self) -> None:
        delay = self.random.choice((0, 0, 0, 400, 5_000))
        given = self.properties()
        self._settle(
            f"abandon {delay}",
            self._by(Settlement("abandon", delay, properties=given)),
            lambda model, row, now: model.give_back(changed(row, given), now, delay),
        )

    def defer(self) -> None:
        delay = self.random.choice((0, 0, 0, 900))
        given = self.properties()
        self._settle(
            f"defer {delay}",
            self._by(Settlement("defer", delay, properties=given)),
            lambda model, row, now: model.give_back(changed(row, given), now, delay, defer=True),
        )

    def dead_letter(self) -> None:
        given = self.properties()
        self._settle(
            "dead-letter",
            self._by(Settlement("dead-letter", 0, "why", "so", given)),
            lambda model, row, now: model.dead_letter(changed(row, given), "why", "so"),
        )

    def renew(self) -> None:
        visibility = self.random.choice((None, None, 0, 4_000))
        self._settle(
            f"renew {visibility}",
            lambda name, token, reply, session: settling.renew_one(
                self.sim.broker, name, token, reply, visibility, session
            ),
            lambda model, row, now: self.sim.model.time.shown(model.renew(row, now, visibility)),
        )

    # By number

    def _numbers(self) -> tuple[str, list[int]]:
        if not self.numbers:
            return self.entity(), [1]
        name, number = self.random.choice(self.numbers)
        chosen = [number]
        if self.random.random() < 0.3:
            chosen += [n for other, n in self.numbers if other == name][:2]
        return name, chosen

    def _in_state(self, wanted: Callable[[Row], bool]) -> tuple[str, list[int]]:
        """Return numbers that are mostly in a state."""
        found = [
            (entity.name, row.number)
            for entity in self.sim.model.entities.values()
            for partition in entity.partitions
            for row in partition.rows.values()
            if wanted(row)
        ]
        if not found or self.random.random() < 0.15:
            return self._numbers()
        name, number = self.random.choice(found)
        others = [n for other, n in found if other == name and n != number]
        return name, [number, *others[: self.random.choice((0, 0, 1, 2))]]

    def cancel(self) -> None:
        name, numbers = self._in_state(lambda row: row.state == "scheduled")

        def cancelled(partition: PartitionModel, rows: list[Row]) -> list[Row]:
            for row in rows:
                del partition.rows[row.ordinal]
            return []

        sim = self.sim
        sim.do(
            f"cancel {name} {numbers}",
            lambda reply: settling.cancel_scheduled(sim.broker, name, numbers, reply),
            lambda op: sim.model.by_number(
                op,
                name,
                numbers,
                lambda partition, number: partition.find(
                    number, lambda row: row.state == "scheduled"
                ),
                cancelled,
            ),
        )

    def undefer(self) -> None:
        name, numbers = self._in_state(lambda row: row.state == "deferred")

        def given_back(partition: PartitionModel, rows: list[Row]) -> list[Row]:
            for row in rows:
                partition.put(row, state="active", due=0)
            return []

        sim = self.sim
        sim.do(
            f"undefer {name} {numbers}",
            lambda reply: settling.undefer_all(sim.broker, name, numbers, reply),
            lambda op: sim.model.by_number(
                op,
                name,
                numbers,
                lambda partition, number: partition.find(
                    number, lambda row: row.state == "deferred" and row.lock is None
                ),
                given_back,
            ),
        )

    def receive_deferred(self) -> None:
        dead = self.random.random() < 0.2
        take = self.random.random() < 0.2
        name, numbers = self._in_state(lambda row: row.state == "deferred" and row.dead == dead)
        self._receive_deferred(name, numbers, dead, take, None)

    def _receive_deferred(
        self, name: str, numbers: list[int], dead: bool, take: bool, session: Session | None
    ) -> None:
        sim = self.sim
        proof = real_of(session)

        def find(partition: PartitionModel, number: int) -> Row:
            if session is not None:
                partition.held_session(session.id, session.lock)
            return partition.find_deferred(number, dead, session.id if session else None)

        def expect(op: Op) -> None:
            sim.model.receive_deferred(
                op, name, numbers, find, session.id if session else None, dead, take
            )

        sim.do(
            f"deferred {name} {numbers} dead={dead} take={take}",
            lambda reply: settling.receive_deferred(
                sim.broker, name, numbers, reply, dead=dead, take=take, session=proof
            ),
            expect,
        )
