"""Forwarding as the promises describe it: messages and dead letters that go on by themselves.

When it is done is up to the bus, which tells (`forward`); what is done then, and that it is done at
all, is up to the model (B6, P9).
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from onibus.core.errors import InvalidOperation, OnibusError
from onibus.core.message import Message
from onibus.core.settings import AnySettings
from tests.simulator.mismatch import check
from tests.simulator.model_parts import EntityModel, Op
from tests.simulator.model_rows import Prepared, Row, prepare
from tests.simulator.model_works import Change, Place, WorkPart, Works

HOPS_MAX = 4
#: Messages of a partition that one operation forwards.
FORWARD_SLICE = 4
TOO_MANY_HOPS = (
    "MaxTransferHopCountExceeded",
    "The message was forwarded 4 times already.",
)
#: A source, its partition, and whether its dead letters go on.
Key = tuple[int, int, bool]


class TooManyHops(InvalidOperation):
    """It was forwarded as often as is allowed."""


class Moves(Works):
    """Messages that leave one entity for another."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.moving: dict[Key, Op] = {}
        #: dead letters that their destination does not take
        self.kept: dict[Key, set[int]] = {}

    def crashed(self, kept: dict[str, bool]) -> None:
        self.moving, self.kept = {}, {}
        super().crashed(kept)

    def store_failed(self, name: str, kept: bool) -> None:
        self.kept = {key: letters for key, letters in self.kept.items() if not self._in(name, key)}
        super().store_failed(name, kept)

    def _in(self, store: str, key: Key) -> bool:
        """Tell whether a store has that partition of a source."""
        return any(
            entity.uid == key[0] and entity.stores[key[1]] == store
            for entity in self.entities.values()
        )

    def change(self, entity: EntityModel, settings: AnySettings) -> None:
        self.kept = {key: kept for key, kept in self.kept.items() if key[0] != entity.uid}
        super().change(entity, settings)

    def to_be_forwarded(self, source: EntityModel, index: int, dead: bool) -> list[Row]:
        """Return the messages of a partition that the next operation forwards."""
        key = (source.uid, index, dead)
        if key in self.moving or not self.online(source, index):
            return []
        self.advance(source, index)
        kept = self.kept.get(key, set())
        partition = source.partition(index)
        rows = partition.ready(dead=dead)
        return [row for row in rows if row.ordinal not in kept][:FORWARD_SLICE]

    def target(self, source: EntityModel, dead: bool) -> EntityModel | None:
        """Return where messages, or dead letters, go on to, if any leave and are taken now."""
        settings = source.settings
        if settings.status not in ("active", "send-disabled"):
            return None
        name = settings.forward_dead_letters_to if dead else settings.forward_to
        entity = self.entities.get(name or "")
        if entity is None or entity.settings.status not in ("active", "receive-disabled"):
            return None
        return entity

    def forward(
        self, op: Op, source: EntityModel, index: int, dead: bool, looked_at: int, fits: int
    ) -> bool:
        """The bus looks for messages to forward; return whether a work was begun.

        It looks at fewer messages, and forwards fewer, if its destination has many rules.
        """
        rows = self.to_be_forwarded(source, index, dead)[:looked_at]
        target = self.target(source, dead)
        if not rows or target is None or self._in_doubt(source, index):
            return False
        chosen: list[tuple[Row, Prepared]] = []
        for row in rows:
            try:
                message = forwarded(row, source if dead else None)
                prepared = prepare(message, target.settings)
                if dead and target.settings.fifo:
                    prepared = replace(prepared, identities=())
                chosen.append((row, prepared))
            except OnibusError as error:
                self._keep(source, index, row, dead, error)
        chosen = chosen[:fits]
        if not chosen:
            return False
        try:
            parts = self.move(
                source,
                [(index, row) for row, _ in chosen],
                target,
                [prepared for _, prepared in chosen],
            )
            op.value = [None] * len(chosen)
            self.do_work(op, parts)
        except OnibusError:
            return False
        self.moving[source.uid, index, dead] = op
        return True

    def _in_doubt(self, source: EntityModel, index: int) -> bool:
        """Return whether an operation on some may be decided in a store that is down."""
        rows = source.partition(index).rows.values()
        online = self.namespace.online and all(store.online for store in self.stores.values())
        return not online and any(row.lock and row.lock.work > 0 for row in rows)

    def _keep(
        self, source: EntityModel, index: int, row: Row, dead: bool, error: OnibusError
    ) -> None:
        """What the destination never takes stays: as a dead letter that says why."""
        if dead:
            self.kept.setdefault((source.uid, index, True), set()).add(row.ordinal)
            return
        reason = (error.code, str(error))
        self.part(source, index).kill(
            row, *(TOO_MANY_HOPS if isinstance(error, TooManyHops) else reason)
        )

    def move(
        self,
        source: EntityModel,
        rows: list[tuple[int, Row]],
        target: EntityModel,
        batch: list[Prepared],
    ) -> dict[Place, WorkPart]:
        """Return the work by which messages leave one entity for another."""
        parts: dict[Place, WorkPart] = {}
        for index, row in rows:
            part = parts.setdefault((source.log, index), WorkPart())
            part.changes = [*part.changes, Change(source.uid, row.ordinal, "move")]
        for index, places in self.route(target, batch).items():
            part = parts.setdefault((target, index), WorkPart())
            part.batch, part.places = [batch[place] for place in places], places
        return parts

    def check_forwarded(self, waits: set[int]) -> None:
        """Check that every message that can be forwarded is, unless its source waits."""
        for source in self.entities.values():
            for dead in (False, True):
                target = None
                if source.uid not in waits and source.settings.receives:
                    target = self.target(source, dead)
                if target is None or not all(map(self.is_up, target.stores)):
                    continue
                for index in range(len(source.partitions)):
                    rows = self.to_be_forwarded(source, index, dead)
                    check(not rows, f"{source.name}: {len(rows)} messages are not forwarded")

    def is_up(self, store: str) -> bool:
        return self.stores[store].online


def forwarded(row: Row, morgue_of: EntityModel | None) -> Message:
    """Return a message as its next entity gets it; `morgue_of`: whose dead letter it is."""
    message, number = row.message, row.number
    if message.hop_count >= HOPS_MAX:
        raise TooManyHops("too many hops")
    properties = message.properties | row.properties
    first, origin = message.enqueued_sequence_number, message.dead_letter_of
    if morgue_of is not None:
        properties |= {
            "DeadLetterReason": row.reason,
            "DeadLetterErrorDescription": row.description,
            "DeadLetterSource": morgue_of.name,
            "DeadLetterSourceId": morgue_of.uid,
        }
        origin = origin or (morgue_of.uid, number)
    return replace(
        message,
        hop_count=message.hop_count + 1,
        enqueued_sequence_number=number if first is None else first,
        scheduled_enqueue_time_ms=None,
        time_to_live_ms=message.time_to_live_ms if morgue_of is None else None,
        properties=properties,
        dead_letter_of=origin,
        received_before=message.received_before + (row.deliveries if morgue_of else 0),
    )
