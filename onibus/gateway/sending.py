"""Sending: admit, route, gather; one send batch per partition goes through the core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onibus.core.checks import check_whole
from onibus.core.errors import (
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    OnibusError,
)
from onibus.core.limits import BATCH_COUNT_MAX, DELIVERY_DELAY_MS_MAX
from onibus.core.message import Message, Sent
from onibus.core.path.admit import Prepared, admit
from onibus.core.path.plan import Plan
from onibus.core.settings import LogSettings
from onibus.core.staged import Part
from onibus.directory.entity import QUEUE, Entity
from onibus.directory.routing import (
    Routed,
    any_partition,
    check_room,
    open_for_sends,
    partition_of_message,
    route,
    size_of,
)
from onibus.directory.turns import SLICE_STEPS, Turn, steps_of, waits
from onibus.shard.partition import ShardPartition
from onibus.shard.replies import KeptReply, Reply, answer, fail
from onibus.shard.shard import SendRequest

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker


def send_one(
    broker: Broker, name: str, message: Message, reply: Reply, delay_ms: int | None = None
) -> None:
    """Store one message; the reply gets a list of one `Sent` when it is durable.

    `delay_ms`: how long it waits before it can be received, instead of what its queue says.
    """
    send_one_to(broker, open_for_sends(broker, name), message, reply, delay_ms)


def send_one_to(
    broker: Broker, entity: Entity, message: Message, reply: Reply, delay_ms: int | None = None
) -> None:
    """Store one message, in a queue or topic that takes messages."""
    prepared = admit(message, entity.log_settings, broker.namespace.secret)
    if delay_ms is not None:
        check_delay(entity, delay_ms)
        prepared.delay_ms = delay_ms
    size, partitions = len(prepared.row), entity.partitions
    if len(partitions) == 1:
        partition, keyless = partitions[0], False
        check_room(partition, size)
    else:
        partition, keyless = partition_of_message(entity, prepared), prepared.key is None
    put(broker, SendRequest(partition, [prepared], reply, keyless, size))


def send_each(
    broker: Broker,
    name: str,
    messages: Sequence[Message],
    reply_to: Callable[[list[int]], Reply],
    refuse: Callable[[int, BaseException], None],
) -> None:
    """Store messages that came together, each separately; call `refuse` for rejected ones.

    Messages of one partition get one reply: `reply_to` gets their positions.
    """
    entity = open_for_sends(broker, name)
    settings, secret = entity.log_settings, broker.namespace.secret
    only = entity.partitions[0] if len(entity.partitions) == 1 else None
    groups: dict[tuple[ShardPartition, bool], tuple[list[int], list[Prepared]]] = {}
    one: tuple[list[int], list[Prepared]] = ([], [])
    room = 0
    for place, message in enumerate(messages):
        try:
            prepared = admit(message, settings, secret)
            size = len(prepared.row)
            if only is None:
                partition = partition_of_message(entity, prepared)
                one = groups.setdefault((partition, prepared.key is None), ([], []))
            else:
                partition = only
                if size > room:
                    room = check_room(partition, size)
                room -= size
        except Exception as error:
            refuse(place, error)
            continue
        # It counts at once: the next message may not fit.
        partition.pending_bytes += size
        one[0].append(place)
        one[1].append(prepared)
    if only is not None and one[0]:
        groups[only, False] = one
    for (partition, keyless), (places, batch) in groups.items():
        size = size_of(batch)
        partition.pending_bytes -= size
        put(broker, SendRequest(partition, batch, reply_to(places), keyless, size))


def send(
    broker: Broker,
    name: str,
    messages: Sequence[Message],
    reply: Reply,
    delays_ms: Sequence[int | None] | None = None,
    strict: bool = False,
    admission: Admission | None = None,
) -> None:
    """Store messages; the reply gets a `Sent` for each when all are durable.

    `delays_ms`: of each message, as in `send_one`; only to a queue that is not partitioned.
    `strict`: reject a batch with several keys, whatever the entity's settings say (P13).
    `admission`: of these messages, made before.
    """
    entity = open_for_sends(broker, name)
    settings = entity.log_settings
    if admission is None or admission.settings is not settings:
        admission = Admission(broker, entity)
        admission.admit(messages)
    batch = admission.batch
    if strict or settings.strict_batches:
        check_strict(settings, [prepared.key for prepared in batch])
    if delays_ms is not None:
        if len(entity.partitions) > 1:
            raise InvalidOperation(f"{entity.name} is partitioned: schedule messages instead")
        for prepared, delay_ms in zip(batch, delays_ms, strict=True):
            check_delay(entity, delay_ms or 0)
            prepared.delay_ms = delay_ms
    parts = route(entity, batch)
    if len(parts) == 1:
        partition, _, keyless = parts[0]
        put(broker, SendRequest(partition, batch, reply, keyless, size_of(batch)))
    else:
        _send_parts(broker, batch, parts, reply)


class Admission:
    """A batch on its way into an entity."""

    def __init__(self, broker: Broker, entity: Entity) -> None:
        self.settings = entity.log_settings
        self._secret = broker.namespace.secret
        self.batch: list[Prepared] = []

    def admit(self, messages: Sequence[Message]) -> None:
        """Check all messages; touches nothing of the broker, so any thread may do it."""
        if type(messages) not in (list, tuple) or not 0 < len(messages) <= BATCH_COUNT_MAX:
            raise InvalidArgument(f"a batch must be a list of 1 to {BATCH_COUNT_MAX} messages")
        self.batch = []
        self.admit_more(messages)

    def admit_more(self, messages: Sequence[Message]) -> None:
        """Check further messages of the batch."""
        settings, secret = self.settings, self._secret
        self.batch += [admit(message, settings, secret) for message in messages]


def check_delay(entity: Entity, delay_ms: int) -> None:
    """Reject a delay that is out of range, or for a topic."""
    check_whole("delay_ms", delay_ms, 0, DELIVERY_DELAY_MS_MAX)
    if entity.kind != QUEUE:
        raise InvalidOperation(f"{entity.name} is a {entity.kind}: only queues delay messages")


def _send_parts(broker: Broker, batch: list[Prepared], parts: list[Routed], reply: Reply) -> None:
    """Store a batch over several partitions atomically (P13)."""
    work = {
        partition: Part([batch[position] for position in positions])
        for partition, positions, _ in parts
    }
    do_in_turn(broker, work, reply, lambda: _do_parts(broker, batch, parts, work, reply))


def do_in_turn(
    broker: Broker, work: dict[ShardPartition, Part], reply: Reply, run: Callable[[], None]
) -> None:
    """Do a work that sends, after earlier sends, and when its fan-out is computed."""
    entities = list(dict.fromkeys(partition.entity for partition in work))
    if not waits(entities, [(partition, part.batch) for partition, part in work.items()]):
        run()
        return

    def take(part: Part, plan: Plan) -> None:
        part.plan = plan

    def run_in_turn() -> None:
        # Sends that were before it have taken room since.
        for partition, part in work.items():
            check_room(partition, part.size)
        run()

    parts = [(partition, part.batch, partial(take, part)) for partition, part in work.items()]
    broker.turns.take(Turn(entities, parts, run_in_turn, reply))


def _do_parts(
    broker: Broker,
    batch: list[Prepared],
    parts: list[Routed],
    work: dict[ShardPartition, Part],
    reply: Reply,
) -> None:
    take_in(work)
    now = broker.clock.now()
    for partition, _, _ in parts:
        broker.advance(partition, now)

    def collect(kept: KeptReply) -> None:
        if kept.error is not None:
            fail(reply, kept.error)
            return
        answers: list[Sent | None] = [None] * len(batch)
        for partition, positions, _ in parts:
            for position, sent in zip(positions, kept.value[partition], strict=True):
                answers[position] = sent
        answer(reply, answers)

    broker.works.do(work, now, KeptReply(collect))


def check_strict(settings: LogSettings, keys: Iterable[Any]) -> None:
    """Reject a batch to partitions with several keys, or with and without one, as Azure does."""
    if settings.enable_partitioning and len(set(keys)) > 1:
        distinct, enabled = "SessionId or PartitionKey", "partitioning"
        if settings.requires_duplicate_detection:
            distinct = "SessionId, PartitionKey, or MessageId"
            enabled += " and duplicate detection"
        raise InvalidOperation(
            f"Batching brokered messages with distinct {distinct} is not supported for an entity "
            f"with {enabled} enabled (strict_batches)."
        )


def put(broker: Broker, request: SendRequest) -> None:
    """Let a request wait for its store's next commit, in its turn."""
    entity = request.partition.entity
    if entity.lane is not None or (
        entity.subscriptions and steps_of(entity, request.prepared) > SLICE_STEPS
    ):
        _put_in_turn(broker, request)
    else:
        _put(broker, request)


def _put_in_turn(broker: Broker, request: SendRequest) -> None:
    def run() -> None:
        try:
            # Since it took its turn, its entity may have been deleted or its store may have failed.
            request.partition.check_online()
            check_room(request.partition, request.size)
        except OnibusError as error:
            reroute(broker, request, error)
        else:
            _put(broker, request)

    def take(plan: Plan) -> None:
        request.plan = plan

    parts = [(request.partition, request.prepared, take)]
    broker.turns.take(Turn([request.partition.entity], parts, run, request.reply))


def _put(broker: Broker, request: SendRequest) -> None:
    request.partition.store.gather(request)


def take_in(partitions: Iterable[ShardPartition]) -> None:
    """Apply the sends that gathered for these partitions: an operation must not overtake them."""
    for store in dict.fromkeys(partition.store for partition in partitions):
        store.take_in()


def reroute(broker: Broker, request: SendRequest, error: OnibusError) -> None:
    """Reroute a keyless send whose partition is unavailable; fail others (P5)."""
    if not request.keyless or isinstance(error, EntityNotFound):
        fail(request.reply, error)
        return
    try:
        request.partition = any_partition(request.partition.entity, request.size)
    except OnibusError as refusal:
        fail(request.reply, refusal)
    else:
        request.partition.entity.tally.failovers += 1
        put(broker, request)
