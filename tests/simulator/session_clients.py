"""Seeded commands of clients that hold sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onibus.core.commands import Command, ReleaseSession, RenewSession, SetSessionState
from onibus.gateway import receiving, settling
from tests.simulator.client_parts import Session, real_of
from tests.simulator.clients import Clients
from tests.simulator.model import PartitionModel
from tests.simulator.model_parts import Op


class SessionClients(Clients):
    """Draws what is done to sessions that were accepted, perhaps long ago."""

    def session_command(self) -> None:
        """Do something to a session that was accepted, perhaps long ago."""
        if not self.sessions:
            return
        place = self.random.randrange(len(self.sessions))
        session = self.sessions[place]
        proof = real_of(session)
        assert proof is not None
        choice = self.random.random()
        if choice < 0.6:
            self._receive_session(session)
        elif choice < 0.7:
            self._deferred_of(session)
        elif choice < 0.8:
            self._on_session(
                session,
                "renew",
                RenewSession(session.found.number, proof),
                lambda model, now: self.sim.model.time.shown(model.renew_session(session.id, now)),
            )
        elif choice < 0.9:
            state = self.random.choice((None, b"%d" % self.bodies))
            self._on_session(
                session,
                f"state {state!r}",
                SetSessionState(session.found.number, proof, state),
                lambda model, now: model.set_state(session.id, state),
            )
        else:
            if self.random.random() < 0.7:
                del self.sessions[place]
            self._on_session(
                session,
                "close",
                ReleaseSession(session.found.number, proof),
                lambda model, now: model.end_session(session.id, now, counted=False),
            )

    def _receive_session(self, session: Session) -> None:
        sim, limit, proof = self.sim, self.limit(), real_of(session)
        assert proof is not None
        take = self.random.random() < 0.15
        wait = self.random.choice((0, 0, 0, 1_500)) if self.waiting < 3 else 0

        def expect(op: Op) -> None:
            op.session = session
            sim.model.receive_session(
                op, session.entity, session.index, session.id, session.lock, limit, take
            )

        self._try(
            session.entity.name,
            wait,
            f"in session {session.id} {limit} take={take} wait={wait}",
            lambda reply: receiving.receive_session(
                sim.broker,
                session.found,
                session.partition,
                proof,
                limit,
                wait,
                reply,
                take=take,
            ),
            expect,
        )

    def _deferred_of(self, session: Session) -> None:
        if self.sim.model.entities.get(session.entity.name) is not session.entity:
            return
        partition = session.entity.partitions[session.index]
        numbers = [
            row.number
            for row in partition.rows.values()
            if row.state == "deferred" and row.message.session_id == session.id
        ]
        if numbers:
            self._receive_deferred(session.entity.name, numbers[:2], False, False, session)

    def _on_session(
        self,
        session: Session,
        verb: str,
        real: Command[Any],
        model: Callable[[PartitionModel, int], Any],
    ) -> None:
        sim = self.sim
        now = sim.broker.clock.now()
        sim.do(
            f"{verb} session {session.id} of {session.entity.name}",
            lambda reply: settling.on_session(
                sim.broker, session.found, session.partition, real, reply
            ),
            lambda op: sim.model.on_session(
                op,
                session.entity,
                session.index,
                session.id,
                session.lock,
                lambda partition: model(partition, now),
            ),
        )
