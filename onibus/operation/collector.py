"""Gathers the values of all metrics when somebody asks for them.

Nothing is counted here: the core and the broker keep plain integers (core/tally.py), and this walks
over them, a few milliseconds at a time, so that a namespace of thousands of queues can be looked at
while it works.
"""

from __future__ import annotations

import asyncio
import platform
import time
from typing import TYPE_CHECKING

import apsw

from onibus.broker.claim_rows import RELEASING, STAGING
from onibus.broker.entity import TOPIC, Entity, Seat
from onibus.broker.namespace import NAME
from onibus.broker.readers import lag_of
from onibus.core.block import NEVER
from onibus.core.errors import OnibusError
from onibus.core.lifecycle import State
from onibus.core.partition import Partition
from onibus.core.subscription import Subscription
from onibus.core.tally import Durations, Tally
from onibus.operation import metrics
from onibus.operation.exposition import Labels, Metric, Samples
from onibus.operation.traffic import Traffic
from onibus.operation.version import own_version

if TYPE_CHECKING:
    from onibus.bus import Bus
    from onibus.store.interface import Store

#: How long the page is worked at before others have their turn.
SLICE_SECONDS = 0.004


class Collector:
    """Makes the pages of one bus."""

    def __init__(self, bus: Bus, traffic: Traffic) -> None:
        self._broker = bus.broker
        self._traffic = traffic
        #: the connections of AMQP; none where it is not spoken
        self.amqp = Traffic()
        self._started = time.time()
        #: the first waiting ordinal of (partition, subscription), and its stamp
        self._oldest: dict[tuple[int, int], tuple[int, int]] = {}
        self._before = self._oldest

    async def page(self, *, per_object: bool) -> str:
        """Return all metrics; of each object, or added up."""
        gathering = _Gathering()
        # Only what is still there is remembered for the next page.
        self._before, self._oldest = self._oldest, {}
        self._process(gathering)
        self._stores(gathering)
        self._listener(gathering)
        # What deleted entities did belongs to the sums, which must never fall.
        _tally(gathering, "", self._broker.past)
        pause = time.perf_counter() + SLICE_SECONDS
        for entity in list(self._broker.namespace.entities.values()):
            self._entity(gathering, entity)
            if time.perf_counter() > pause:
                await asyncio.sleep(0)
                pause = time.perf_counter() + SLICE_SECONDS
        return gathering.text(per_object)

    def _process(self, gathering: _Gathering) -> None:
        words = (own_version(), platform.python_version(), apsw.sqlite_lib_version())
        gathering.put(metrics.INFO, words, 1)
        gathering.put(metrics.START, (), self._started)
        gathering.put(metrics.ALARMS, (), self._broker.alarms.count)

    def _stores(self, gathering: _Gathering) -> None:
        broker = self._broker
        opened: dict[str, tuple[Store | None, Durations]] = {
            NAME: (broker.namespace.store, broker.namespace.commit_seconds)
        }
        for name, one in broker.stores.items():
            opened[name] = (one.loop.store if one.loop is not None else None, one.commit_seconds)
        for name, (store, seconds) in opened.items():
            gathering.put(metrics.STORE_UP, (name,), int(store is not None))
            gathering.samples[metrics.COMMITS].durations[(name,)] = seconds
            if store is None:
                continue
            try:
                gathering.put(metrics.STORE_SIZE, (name,), store.size())
                gathering.put(metrics.STORE_FREE, (name,), store.free())
            except (OnibusError, OSError):
                # It is failing; whoever writes to it next finds out.
                continue

    def _listener(self, gathering: _Gathering) -> None:
        traffic = self._traffic
        gathering.put(metrics.CONNECTIONS, (), len(traffic.open))
        gathering.put(metrics.CONNECTIONS_OPENED, (), traffic.opened)
        gathering.put(metrics.CONNECTIONS_REFUSED, (), traffic.turned_away)
        gathering.put(metrics.AMQP_CONNECTIONS, (), len(self.amqp.open))
        gathering.put(metrics.AMQP_CONNECTIONS_OPENED, (), self.amqp.opened)
        for key, seen in traffic.routes.items():
            gathering.samples[metrics.REQUEST_SECONDS].durations[key] = seen.seconds
            for digit, count in enumerate(seen.statuses):
                if count:
                    gathering.put(metrics.REQUESTS, (f"{digit}xx", *key), count)

    # Entities

    def _entity(self, gathering: _Gathering, entity: Entity) -> None:
        name = entity.name
        gathering.add(metrics.ENTITIES, (entity.kind,), 1)
        gathering.put(metrics.WAITING, (name,), len(entity.waiters))
        offline = sum(seat.partition is None for seat in entity.seats)
        gathering.put(metrics.OFFLINE, (name,), offline)
        _tally(gathering, name, entity.tally)
        for seat in entity.seats:
            partition = seat.partition
            part = None if partition is None else partition.subscriptions.get(entity.number)
            if partition is not None and part is not None:
                self._partition(gathering, entity, seat, partition, part)
        for reader in entity.readers.values():
            for seat in entity.seats:
                if seat.partition is not None:
                    lag = lag_of(entity, reader, seat.partition)
                    gathering.put(metrics.LAG, (name, reader.name, str(seat.index)), lag)
        self._claims(gathering, entity)

    def _partition(
        self,
        gathering: _Gathering,
        entity: Entity,
        seat: Seat,
        partition: Partition,
        part: Subscription,
    ) -> None:
        key = (entity.name, str(seat.index))
        for word, states in metrics.STATES.items():
            if entity.kind != TOPIC or word == "scheduled":
                count = sum(part.counts[state] for state in states)
                gathering.put(metrics.MESSAGES, (word, *key), count)
        if entity.topic is None:
            gathering.put(metrics.SIZE, key, partition.log.live_bytes)
            gathering.put(metrics.IDS, key, partition.ids.count)
            gathering.put(metrics.IDS_BYTES, key, partition.ids.memory_bytes())
        if entity.kind == TOPIC:
            return
        # The core's active count has those that are locked or delayed in it.
        waiting = part.active_count() - part.counts[State.LOCKED] - part.counts[State.DELAYED]
        gathering.put(metrics.MESSAGES, ("active", *key), waiting)
        gathering.put(metrics.SESSIONS, key, part.sessions.locked_count())
        gathering.put(metrics.OLDEST, key, self._age(seat, part))

    def _age(self, seat: Seat, part: Subscription) -> float:
        """Return how long the first waiting message has been there; its block is read once."""
        first = part.sessions.first_ready()
        if not part.settings.requires_session:
            first = part.ready.firsts[0] if part.ready.count else NEVER
        if first >= part.log.visible_below:
            return 0.0
        known = self._before.get(part.key)
        if known is None or known[0] != first:
            try:
                stamp = self._broker.ask(seat, lambda _: part.view(first).enqueued_time_ms)
            except OnibusError:
                return 0.0
            known = (first, stamp)
        self._oldest[part.key] = known
        return max(self._broker.clock.wall() - known[1], 0) / 1_000

    def _claims(self, gathering: _Gathering, entity: Entity) -> None:
        now = self._broker.clock.now()
        for reader in self._broker.claims.readers.get(entity.incarnation, {}).values():
            open_ones = [
                held.info(now)
                for held in reader.claims.values()
                if held.stage not in (STAGING, RELEASING)
            ]
            key = (entity.name, reader.name)
            oldest = max((one.age_ms for one in open_ones), default=0) / 1_000
            gathering.put(metrics.CLAIMS, key, len(open_ones))
            gathering.put(metrics.CLAIMED, key, sum(one.count for one in open_ones))
            gathering.put(metrics.OLDEST_CLAIM, key, oldest)


class _Gathering:
    """The samples of one page."""

    def __init__(self) -> None:
        self.samples = {metric: Samples(metric) for metric in metrics.METRICS}

    def put(self, metric: Metric, labels: Labels, value: float) -> None:
        self.samples[metric].values[labels] = value

    def add(self, metric: Metric, labels: Labels, value: float) -> None:
        values = self.samples[metric].values
        values[labels] = values.get(labels, 0) + value

    def text(self, per_object: bool) -> str:
        lines = [line for one in self.samples.values() for line in one.lines(per_object)]
        return "\n".join((*lines, ""))


def _tally(gathering: _Gathering, entity: str, tally: Tally) -> None:
    gathering.put(metrics.ACCEPTED, (entity,), tally.accepted)
    gathering.put(metrics.DUPLICATES, (entity,), tally.duplicates)
    gathering.put(metrics.DELIVERED, (entity,), tally.delivered)
    gathering.put(metrics.FAILOVERS, (entity,), tally.failovers)
    for metric, inputs in metrics.CHANGES.items():
        gathering.put(metric, (entity,), sum(tally.inputs[one] for one in inputs))
    for reason, count in tally.dead_letters.items():
        gathering.put(metrics.DEAD_LETTERED, (reason, entity), count)
