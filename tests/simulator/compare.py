"""Comparing the bus with its model: answers, counts, and everything that can be peeked at."""

from __future__ import annotations

from typing import Any

from onibus.api.staging import Published
from onibus.core.commands import ListSessions
from onibus.core.inspection import Filter
from onibus.core.invariants import violations
from onibus.core.message import ReceivedMessage, Sent
from onibus.gateway import entity_info, settling
from onibus.gateway.broker import Broker
from tests.simulator.mismatch import check, same
from tests.simulator.model_bus import BusModel
from tests.simulator.model_parts import EntityModel, Given, Op
from tests.simulator.model_rows import FOREVER, Row


def compare_answer(op: Op) -> None:
    """Check an answer that was given, and that it was not given too early."""
    error = op.reply.error
    if error is not None:
        kinds = (*op.errors, *op.tolerated)
        check(
            bool(kinds) and isinstance(error, kinds),
            f"{op.words}: answered {error!r}; expected {op.errors or op.value}",
        )
        return
    forced = {kind for kind in op.errors if kind.__name__ != "NoSession"}
    check(not forced, f"{op.words}: answered {op.reply.value!r}; expected {forced}")
    if op.audit is not None:
        op.audit(op.reply.value)
        return
    check(op.left == 0, f"{op.words}: answered before it was done")
    for store, serial in op.needs.items():
        check(op.finished[store] >= serial, f"{op.words}: answered before its commit finished")
    if isinstance(op.reply.value, Published):
        told = op.reply.value
        assert op.outcome is not None
        same(op.words, (told.accepted, told.duplicates, told.again), op.outcome())
        return
    compare_value(op.words, op.reply.value, op.value)


def compare_value(words: str, real: Any, model: Any) -> None:
    if isinstance(real, list) and isinstance(model, list):
        same(f"{words}: how many", len(real), len(model))
        for one, expected in zip(real, model, strict=True):
            if isinstance(one, Sent):
                same(words, (one.sequence_number, one.duplicate_of), expected)
            else:
                compare_given(words, one, expected)
    elif isinstance(model, tuple):
        _, _, accepted = real
        _, _, session, lock, until = model
        same(words, (accepted.session_id, accepted.locked_until_ms), (session, until))
        same(f"{words}: non-exclusive", accepted.takeover is not None, lock.takeover > 0)
    else:
        same(words, real, model)


def compare_given(words: str, real: ReceivedMessage, given: Given) -> None:
    _, _, row, until = given
    compare_row(words, real, row)
    same(f"{words}: locked until", real.locked_until_ms, until)
    same(f"{words}: has a token", real.token is not None, until is not None)


def compare_row(words: str, real: ReceivedMessage, row: Row) -> None:
    """Compare one message as it is shown."""
    seen = (
        real.sequence_number,
        real.enqueued_time_ms,
        real.delivery_count,
        real.expires_at_ms or FOREVER,
        real.dead_letter_reason,
        real.dead_letter_description,
        real.message.body,
        real.message.message_id,
        real.message.session_id,
        real.message.partition_key,
        real.message.properties,
        real.message.enqueued_sequence_number,
        real.message.hop_count,
        real.message.dead_letter_of,
        real.message.received_before,
    )
    message = row.message
    expected = (
        row.number,
        row.stamp,
        row.deliveries,
        FOREVER if row.expires == FOREVER else row.stamp + row.expires - row.arrived,
        row.reason,
        row.description,
        message.body,
        message.message_id,
        message.session_id,
        message.partition_key,
        message.properties | row.properties,
        message.enqueued_sequence_number,
        message.hop_count,
        message.dead_letter_of,
        message.received_before,
    )
    if seen != expected:
        same(f"{words}: message {real.sequence_number}", seen, expected)


def compare_counts(broker: Broker, model: BusModel, entity: EntityModel) -> None:
    """Compare what `info` counts."""
    info = entity_info.info(broker, entity.name)
    counted = dict.fromkeys(("active", "deferred", "scheduled", "dead", "held", "dropped"), 0)
    offline = []
    for index, partition in enumerate(entity.partitions):
        if not model.online(entity, index):
            offline.append(index)
            continue
        model.advance(entity, index)
        counted["dropped"] += entity.log.parts[index].duplicates
        for row in partition.rows.values():
            state = "active" if row.state == "delayed" else row.state
            counted["dead" if row.dead else state] += 1
            counted["held"] += row.lock is not None
    real = {
        "active": info.active_count,
        "deferred": info.deferred_count,
        "scheduled": info.scheduled_count,
        "dead": info.dead_lettered_count,
        "held": info.held_count,
        "dropped": info.duplicates_dropped,
    }
    same(f"counts of {entity.name}", real, counted)
    same(f"offline partitions of {entity.name}", info.offline_partitions, tuple(offline))


def compare_all(broker: Broker, model: BusModel) -> None:
    """Compare everything that users can see, and check the core's own statements."""
    same("entities", sorted(broker.namespace.entities), sorted(model.entities))
    for entity in model.entities.values():
        compare_counts(broker, model, entity)
        for dead in (False, True):
            _compare_peek(broker, model, entity, dead)
        for index, core in enumerate(entity.partitions):
            if not model.online(entity, index):
                continue
            if entity.settings.requires_session:
                _compare_sessions(broker, model, entity, index)
            if entity.log is not entity:
                continue
            partition = broker.find(entity.name).partitions[index]
            broken = violations(partition.online())
            check(not broken, f"{entity.name}, partition {index}: {broken}")
            same(
                "duplicates",
                [
                    (name, time, partition.online().numbering.number(ordinal))
                    for name, time, ordinal in partition.online().recent_duplicates
                ],
                core.trace,
            )


def _compare_peek(broker: Broker, model: BusModel, entity: EntityModel, dead: bool) -> None:
    expected = [
        row
        for index, partition in enumerate(entity.partitions)
        if model.online(entity, index)
        for row in partition.rows.values()
        if row.ordinal < partition.shown and row.dead == dead
    ]
    real: list[ReceivedMessage] = []
    if len(entity.partitions) == 1 and not model.online(entity, 0):
        return
    start = 0
    while found := settling.peek_all(broker, entity.name, start, 50, Filter(), dead):
        real += found
        check(len(real) <= len(expected) + 50, f"{entity.name}: pages of a peek do not end")
        start = found[-1].sequence_number + 1
    same(
        f"{entity.name}: numbers peeked, dead={dead}",
        [one.sequence_number for one in real],
        [row.number for row in expected],
    )
    for one, row in zip(real, expected, strict=True):
        compare_row(f"peek {entity.name}", one, row)
        same(f"peek {entity.name} {one.sequence_number}: state", one.state, row.words())


def _compare_sessions(broker: Broker, model: BusModel, entity: EntityModel, index: int) -> None:
    partition = entity.partitions[index]
    expected: dict[str, list[Any]] = {
        name: [0, 0, None, model.time.shown(lock.until), None]
        for name, lock in partition.locks.items()
    }
    for name, state in partition.states.items():
        expected.setdefault(name, [0, 0, None, None, None])[4] = state
    for row in partition.rows.values():
        session = row.message.session_id or ""
        held = row.lock is not None and row.lock.by == session
        waiting = row.state in ("active", "delayed") and row.lock is None
        if row.dead or row.ordinal >= partition.shown or not (held or waiting):
            continue
        facts = expected.setdefault(session, [0, 0, None, None, None])
        facts[held] += 1
        facts[2] = facts[2] or row.stamp
    found = broker.find(entity.name)
    real = {
        info.session_id: [
            info.ready_count,
            info.held_count,
            info.oldest_enqueued_time_ms,
            info.locked_until_ms,
            info.state,
        ]
        for info in broker.use(found, found.partitions[index], ListSessions(found.number))
    }
    same(f"sessions of {entity.name}", real, expected)
